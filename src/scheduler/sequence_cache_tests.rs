//! Models with recurrent state, step by step against the test engine: state slots, copies of states, and windows.

use crate::testing::{Rig, options, params, sequence};
use crate::{Event, NewSequence, SchedulerOptions, SequenceGroup};
use engine::{CacheGroup, CacheWindow, EngineError, KvCapacity};

fn sequence_group(prompt: &[u32], count: u64, max_tokens: u32) -> Vec<NewSequence> {
    let sequence_group = Some(SequenceGroup::unique());
    (0..count).map(|seed| NewSequence { sequence_group, params: params(seed), ..sequence(prompt.to_vec(), max_tokens) }).collect()
}

/// Numbers of rows computed and of state slots copied.
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
fn a_recurrent_model_goes_on_from_the_last_border_of_a_prompt_and_of_an_answer() {
    for max_in_flight in [1, 2] {
        let mut rig = Rig::recurrent(64, 8, max_in_flight, options(32, 4));
        let prompt: Vec<u32> = (0..18).collect();
        let first = rig.run(sequence(prompt.clone(), 9));
        assert_eq!(rig.clients[first].seen.cached(), 0);
        let again = rig.run(sequence(prompt.clone(), 1));
        assert_eq!(rig.clients[again].seen.cached(), 16, "the last border of the prompt");
        // 18 + 9 tokens, the last of which was never computed: the last border is at 24.
        let turn = [prompt, rig.clients[first].seen.tokens.clone(), vec![1, 2, 3]].concat();
        let next = rig.run(sequence(turn, 1));
        assert_eq!(rig.clients[next].seen.cached(), 24, "the last border of the answer");
        assert_eq!(rig.metrics().prefix_cache_hits_total.get(), 40);
    }
}

#[test]
fn without_a_prefix_cache_a_recurrent_model_keeps_no_state() {
    let mut rig = Rig::recurrent(64, 8, 1, SchedulerOptions { prefix_cache: false, ..options(32, 4) });
    for _ in 0..2 {
        let client = rig.run(sequence((0..16).collect(), 9));
        assert_eq!(rig.clients[client].seen.cached(), 0);
    }
    assert_eq!((counts(&rig).1, rig.scheduler.sequences().blocks.num_checkpoints()), (0, 0));
}

#[test]
fn what_two_prompts_share_gets_a_checkpoint_for_the_third() {
    for max_in_flight in [1, 2] {
        let mut rig = Rig::recurrent(64, 8, max_in_flight, options(32, 4));
        let prompt = |n: u32| (0..14).chain([n; 9]).collect::<Vec<u32>>();
        let cached = [20, 21, 22].map(|n| {
            let client = rig.run(sequence(prompt(n), 2));
            rig.clients[client].seen.cached()
        });
        assert_eq!(cached, [0, 0, 12]);
    }
}

#[test]
fn checkpoints_leave_their_slots_to_sequences_that_run() {
    for max_in_flight in [1, 2] {
        for num_state_slots in 1..5 {
            let mut rig = Rig::recurrent(64, num_state_slots, max_in_flight, options(32, 4));
            for round in 0..3 {
                let clients: Vec<usize> = (0..6).map(|i| rig.enqueue(sequence(vec![i % 3; 9], 4 + round))).collect();
                rig.finish();
                clients.into_iter().for_each(|client| rig.assert_solo(client));
            }
            assert!(rig.scheduler.sequences().blocks.num_checkpoints() <= num_state_slots);
        }
    }
}

#[test]
fn the_only_state_slot_goes_from_one_turn_to_the_next() {
    for max_in_flight in [1, 2] {
        let mut rig = Rig::recurrent(64, 1, max_in_flight, options(32, 4));
        let first = rig.run(sequence(vec![2; 9], 4));
        let turn = [&[2; 9][..], &rig.clients[first].seen.tokens, &[1, 2]].concat();
        let next = rig.run(sequence(turn, 5));
        assert_eq!((rig.clients[next].seen.cached(), counts(&rig).1), (12, 0), "the state itself, not a copy");
    }
}

#[test]
fn a_long_prompt_has_a_bounded_number_of_checkpoints() {
    let mut rig = Rig::recurrent(600, 64, 1, options(512, 2));
    let prompt: Vec<u32> = (0..2000).map(|i| i * i % 47).collect();
    rig.run(sequence(prompt.clone(), 30));
    let num_checkpoints = rig.scheduler.sequences().blocks.num_checkpoints();
    assert!((6..=10).contains(&num_checkpoints), "{num_checkpoints}");
    let client = rig.run(sequence(prompt[..1990].to_vec(), 1));
    assert_eq!(rig.clients[client].seen.cached(), 1792, "seven times 256");
}

#[test]
fn a_preempted_sequence_goes_on_from_its_last_checkpoint() {
    // Each fills twelve of the 24 blocks when the older one needs its last.
    let mut rig = Rig::recurrent(24, 8, 1, options(64, 2));
    let old = rig.enqueue(sequence(vec![1; 30], 20));
    let young = rig.enqueue(sequence(vec![2; 30], 30));
    rig.finish();
    assert_eq!(rig.metrics().num_preemptions_total.get(), 1);
    [old, young].into_iter().for_each(|client| rig.assert_solo(client));
    let rows = counts(&rig).0;
    assert!(rows <= 30 + 20 + 30 + 30 + 8, "{rows} rows: at most two blocks run twice");
}

/// A model with one whole group and two with a window of 8 tokens.
fn windows(num_blocks: usize) -> KvCapacity {
    let window = CacheGroup { window: Some(CacheWindow::Sliding(8)) };
    KvCapacity { groups: vec![CacheGroup::default(), window, window], ..KvCapacity::blocks(num_blocks, 4) }
}

#[test]
fn a_window_holds_a_bounded_number_of_blocks_through_a_long_prompt_and_answer() {
    for max_in_flight in [1, 2] {
        // 100 blocks for 400 tokens of the whole group, and 2 · (8 / 4 + 1) for the windows.
        let mut rig = Rig::with_capacity(windows(106), max_in_flight, options(16, 2));
        assert_eq!(rig.capacity.max_tokens(), 400);
        let client = rig.enqueue(sequence((0..300).map(|i| i % 31).collect(), 200));
        while rig.scheduler.has_work() {
            rig.step().unwrap();
        }
        rig.check_baseline();
        rig.assert_solo(client);
        assert_eq!(rig.clients[client].seen.tokens.len(), 101, "the cache is full, and the last token need not be in it");
        assert_eq!(rig.metrics().num_preemptions_total.get(), 0);
    }
}

#[test]
fn a_model_of_windows_only_has_no_longest_sequence() {
    let window = CacheGroup { window: Some(CacheWindow::Sliding(8)) };
    let capacity = KvCapacity { groups: vec![window], ..KvCapacity::blocks(8, 4) };
    let mut rig = Rig::with_capacity(capacity, 1, options(16, 2));
    let client = rig.enqueue(sequence((0..300).map(|i| i % 31).collect(), 200));
    rig.finish();
    rig.assert_solo(client);
}

#[test]
fn a_prefix_of_a_model_with_windows_is_reused_if_its_last_window_is_there() {
    for max_in_flight in [1, 2] {
        let mut rig = Rig::with_capacity(windows(100), max_in_flight, options(16, 2));
        let prompt: Vec<u32> = (0..41).collect();
        rig.run(sequence(prompt.clone(), 3));
        let again = rig.run(sequence(prompt.clone(), 1));
        assert_eq!(rig.clients[again].seen.cached(), 40);
        let half = rig.run(sequence(prompt[..21].to_vec(), 1));
        assert_eq!(rig.clients[half].seen.cached(), 20, "blocks that the window has left are cached, too");
    }
}

#[test]
fn forks_share_the_blocks_of_the_last_window() {
    for max_in_flight in [1, 2] {
        let mut rig = Rig::with_capacity(windows(100), max_in_flight, SchedulerOptions { prefix_cache: false, ..options(32, 8) });
        let prompt: Vec<u32> = (0..31).collect();
        let clients: Vec<usize> = sequence_group(&prompt, 5, 30).into_iter().map(|new| rig.enqueue(new)).collect();
        rig.finish();
        clients.into_iter().for_each(|client| rig.assert_solo(client));
        let control = rig.control.lock().unwrap();
        assert_eq!(control.num_copies, 3 * 4, "one block per group and fork");
        assert!(control.num_rows <= 30 + 5 * 30 + 5 * max_in_flight, "{} rows: the prompt runs once", control.num_rows);
    }
}

#[test]
fn each_fork_of_a_family_copies_the_state_after_the_shared_prompt() {
    for max_in_flight in [1, 2] {
        // 14 shared tokens end inside a block of 4, and 12 at its end.
        for num_tokens in [15, 13] {
            let mut rig = Rig::recurrent(64, 8, max_in_flight, SchedulerOptions { prefix_cache: false, ..options(32, 8) });
            let prompt: Vec<u32> = (0..num_tokens).collect();
            let clients: Vec<usize> = sequence_group(&prompt, 5, 6).into_iter().map(|new| rig.enqueue(new)).collect();
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
fn a_member_that_starts_after_the_state_moved_on_starts_from_a_checkpoint() {
    for max_in_flight in [1, 2] {
        // Two run at a time. Each of the others starts when another has ended.
        let mut rig = Rig::recurrent(64, 8, max_in_flight, options(32, 2));
        let prompt: Vec<u32> = (0..14).collect();
        let members = sequence_group(&prompt, 6, 1).into_iter().enumerate();
        let clients: Vec<usize> = members.map(|(i, new)| rig.enqueue(NewSequence { max_tokens: 3 + i as u32, ..new })).collect();
        rig.finish();
        clients.into_iter().for_each(|client| rig.assert_solo(client));
        // From the checkpoint at twelve tokens, the fourteenth is two rows away.
        let rows = counts(&rig).0;
        assert!(rows <= 13 + 3 + 4 + (5..9).map(|tokens| tokens + 2).sum::<usize>() + 6 * max_in_flight, "{rows} rows");
    }
}

#[test]
fn a_fork_whose_copy_was_refused_starts_again() {
    for max_in_flight in [1, 2] {
        for at in 1..8 {
            let mut rig = Rig::recurrent(64, 8, max_in_flight, options(32, 8));
            let mut clients: Vec<usize> =
                sequence_group(&(0..14).collect::<Vec<_>>(), 4, 8).into_iter().map(|new| rig.enqueue(new)).collect();
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
