//! Models with recurrent state, step by step against the test engine: who holds which state slot, and from where a state is copied.

use crate::testing::{Rig, options, params, sequence};
use crate::{Event, Family, NewSequence, SchedulerOptions};
use engine::EngineError;

fn family(prompt: &[u32], count: u64, max_tokens: u32) -> Vec<NewSequence> {
    let family = Some(Family::unique());
    (0..count).map(|seed| NewSequence { family, params: params(seed), ..sequence(prompt.to_vec(), max_tokens) }).collect()
}

/// Rows that were computed, and state slots that were copied.
fn counts(rig: &Rig) -> (usize, usize) {
    let control = rig.control.lock().unwrap();
    (control.num_rows, control.num_state_copies)
}

#[test]
fn a_preempted_sequence_gives_its_state_slot_back_and_computes_its_state_again() {
    for max_in_flight in [1, 2] {
        // Eight blocks hold 32 tokens, and each sequence needs 26.
        let mut rig = Rig::recurrent(8, 4, max_in_flight, options(32, 4));
        let clients: Vec<usize> = (0..3).map(|i| rig.enqueue(sequence(vec![i; 6], 20))).collect();
        rig.finish();
        assert!(rig.metrics().num_preemptions_total.get() > 0);
        clients.into_iter().for_each(|client| rig.assert_solo(client));
    }
}

#[test]
fn no_more_sequences_run_than_there_are_state_slots() {
    for max_in_flight in [1, 2] {
        let mut rig = Rig::recurrent(64, 2, max_in_flight, options(32, 6));
        let clients: Vec<usize> = (0..6).map(|i| rig.enqueue(sequence(vec![i; 6], 9))).collect();
        while rig.scheduler.has_work() {
            rig.step().unwrap();
            assert!(rig.scheduler.sequences().running.len() <= 2);
        }
        rig.check_baseline();
        clients.into_iter().for_each(|client| rig.assert_solo(client));
    }
}

#[test]
fn a_recurrent_model_reuses_no_prefix() {
    for max_in_flight in [1, 2] {
        let mut rig = Rig::recurrent(64, 4, max_in_flight, SchedulerOptions { prefix_cache: true, ..options(32, 4) });
        for _ in 0..2 {
            let client = rig.run(sequence((0..16).collect(), 3));
            assert_eq!(rig.clients[client].seen.cached(), 0);
        }
        assert_eq!(rig.metrics().prefix_cache_queries_total.get(), 0);
    }
}

#[test]
fn each_fork_of_a_family_copies_the_state_after_the_shared_prompt() {
    for max_in_flight in [1, 2] {
        // 14 shared tokens end inside a block of 4, and 12 at its end.
        for num_tokens in [15, 13] {
            let mut rig = Rig::recurrent(64, 8, max_in_flight, options(32, 8));
            let prompt: Vec<u32> = (0..num_tokens).collect();
            let clients: Vec<usize> = family(&prompt, 5, 6).into_iter().map(|new| rig.enqueue(new)).collect();
            rig.step().unwrap();
            assert_eq!(counts(&rig), (prompt.len() - 1, 0), "the shared part runs first");
            rig.step().unwrap();
            assert_eq!(counts(&rig), (prompt.len() - 1 + 5, 4), "then one row per member for the last token");
            rig.finish();
            clients.into_iter().for_each(|client| rig.assert_solo(client));
        }
    }
}

#[test]
fn a_member_that_starts_after_the_state_moved_on_computes_the_prompt_itself() {
    for max_in_flight in [1, 2] {
        // Two run at a time. Each of the others starts when one has ended.
        let mut rig = Rig::recurrent(64, 8, max_in_flight, options(32, 2));
        let prompt: Vec<u32> = (0..14).collect();
        let members = family(&prompt, 6, 1).into_iter().enumerate();
        let clients: Vec<usize> = members.map(|(i, new)| rig.enqueue(NewSequence { max_tokens: 3 + i as u32, ..new })).collect();
        rig.finish();
        clients.into_iter().for_each(|client| rig.assert_solo(client));
        let (rows, state_copies) = counts(&rig);
        assert!(rows > 2 * prompt.len() && state_copies < 5, "{rows} rows and {state_copies} copies");
    }
}

#[test]
fn a_fork_whose_copy_was_refused_starts_again() {
    for max_in_flight in [1, 2] {
        for at in 1..8 {
            let mut rig = Rig::recurrent(64, 8, max_in_flight, options(32, 8));
            let mut clients: Vec<usize> = family(&(0..14).collect::<Vec<_>>(), 4, 8).into_iter().map(|new| rig.enqueue(new)).collect();
            clients.push(rig.enqueue(sequence(vec![3; 5], 8)));
            rig.control.lock().unwrap().fault = Some((at, Some(EngineError::OutOfMemory("no room".into()))));
            while rig.scheduler.has_work() {
                let _ = rig.step();
            }
            rig.check_baseline();
            let failed = |client: &usize| matches!(rig.clients[*client].seen.last, Some(Event::Failed(_)));
            assert_eq!(clients.iter().filter(|client| failed(client)).count(), 1, "only the youngest fails, at step {at}");
            clients.iter().filter(|client| !failed(client)).for_each(|&client| rig.assert_solo(client));
        }
    }
}

#[test]
fn a_cancelled_sequence_frees_its_state_slot_within_a_step() {
    for max_in_flight in [1, 2] {
        let mut rig = Rig::recurrent(64, 1, max_in_flight, options(16, 4));
        let cancelled = rig.enqueue(sequence(vec![1; 5], 50));
        let next = rig.enqueue(sequence(vec![2; 5], 9));
        (0..3).for_each(|_| rig.step().unwrap());
        rig.clients[cancelled].events = None;
        rig.step().unwrap();
        assert_eq!((rig.scheduler.sequences().running.len(), rig.scheduler.sequences().num_waiting()), (1, 0));
        rig.finish();
        rig.assert_solo(next);
    }
}
