//! Sequence groups, scores of a prompt, and pooled prompts, step by step against the test engine.

use crate::testing::{Rig, options, params, sequence};
use crate::{Event, Items, NewSequence, Pooling, SchedulerOptions, SequenceGroup};
use engine::EngineError;

fn sequence_group(prompt: &[u32], count: u64, max_tokens: u32) -> Vec<NewSequence> {
    let sequence_group = Some(SequenceGroup::unique());
    (0..count).map(|seed| NewSequence { sequence_group, params: params(seed), ..sequence(prompt.to_vec(), max_tokens) }).collect()
}

fn rows(rig: &Rig) -> (usize, usize) {
    let control = rig.control.lock().unwrap();
    (control.num_rows, control.num_copies)
}

#[test]
fn a_familys_prompt_is_computed_once() {
    for max_in_flight in [1, 2] {
        for prefix_cache in [true, false] {
            // 14 shared tokens in blocks of 4: three blocks are shared, and each member except the first copies the fourth.
            let mut rig = Rig::new(64, max_in_flight, SchedulerOptions { prefix_cache, ..options(32, 8) });
            let prompt: Vec<u32> = (0..15).collect();
            let clients: Vec<usize> = sequence_group(&prompt, 5, 1).into_iter().map(|new| rig.enqueue(new)).collect();
            rig.step().unwrap();
            assert_eq!(rows(&rig), (14, 0), "the shared part runs first");
            rig.step().unwrap();
            assert_eq!(rows(&rig), (14 + 5, 4), "then one row per member for the last token");
            rig.finish();
            clients.into_iter().for_each(|client| rig.assert_solo(client));
            assert_eq!(rows(&rig).0, 14 + 5);
            assert_eq!(rig.metrics().prompt_tokens_total.get(), 15, "the prompt counts once");
        }
    }
}

#[test]
fn a_shared_prompt_of_whole_blocks_needs_no_copy() {
    let mut rig = Rig::new(64, 2, options(32, 8));
    let clients: Vec<usize> = sequence_group(&(0..9).collect::<Vec<_>>(), 3, 6).into_iter().map(|new| rig.enqueue(new)).collect();
    rig.finish();
    clients.into_iter().for_each(|client| rig.assert_solo(client));
    assert_eq!(rows(&rig).1, 0);
}

#[test]
fn family_members_that_start_late_share_the_blocks_still_held() {
    for max_in_flight in [1, 2] {
        // Two run at a time. Each of the others starts when another has ended.
        let mut rig = Rig::new(64, max_in_flight, options(32, 2));
        let prompt: Vec<u32> = (0..14).collect();
        let clients: Vec<usize> = sequence_group(&prompt, 6, 9)
            .into_iter()
            .enumerate()
            .map(|(i, new)| rig.enqueue(NewSequence { max_tokens: 3 + i as u32, ..new }))
            .collect();
        rig.finish();
        clients.iter().for_each(|&client| rig.assert_solo(client));
        let generated: u32 = (0..6).map(|i| 3 + i).sum();
        assert!(rows(&rig).0 as u32 <= 13 + generated + max_in_flight as u32 * 6, "only surplus rows on top");
    }
}

#[test]
fn the_tokens_of_a_refused_copy_are_computed() {
    for max_in_flight in [1, 2] {
        for at in 1..6 {
            let mut rig = Rig::new(64, max_in_flight, options(32, 8));
            let clients: Vec<usize> = sequence_group(&(0..14).collect::<Vec<_>>(), 4, 8).into_iter().map(|new| rig.enqueue(new)).collect();
            rig.control.lock().unwrap().fault = Some((at, Some(EngineError::OutOfMemory("no room".into()))));
            while rig.scheduler.has_work() {
                let _ = rig.step();
            }
            rig.check_baseline();
            let failed = |client: &usize| matches!(rig.clients[*client].seen.last, Some(Event::Failed(_)));
            assert!(clients.iter().filter(|client| failed(client)).count() <= 1);
            clients.iter().filter(|client| !failed(client)).for_each(|&client| rig.assert_solo(client));
        }
    }
}

#[test]
fn every_prompt_token_is_scored_across_chunks_and_despite_the_cache() {
    for max_in_flight in [1, 2] {
        let mut rig = Rig::new(64, max_in_flight, options(7, 4));
        let prompt: Vec<u32> = (0..30).map(|i| i % 11).collect();
        let plain = rig.enqueue(sequence(prompt.clone(), 3));
        rig.finish();
        for max_tokens in [0, 3] {
            let scored = rig.enqueue(NewSequence { score_prompt: Some(2), max_tokens, ..sequence(prompt.clone(), 1) });
            rig.finish();
            rig.assert_solo(scored);
            assert_eq!(rig.clients[scored].seen.scores.len(), 29);
        }
        let one = rig.enqueue(NewSequence { score_prompt: Some(0), max_tokens: 0, ..sequence(vec![5], 1) });
        rig.finish();
        rig.assert_solo(one);
        rig.assert_solo(plain);
    }
}

#[test]
fn a_prompt_becomes_the_vector_that_its_pooling_names() {
    for max_in_flight in [1, 2] {
        for kind in [Pooling::First, Pooling::Last, Pooling::Mean] {
            let mut rig = Rig::new(64, max_in_flight, options(7, 4));
            let prompt: Vec<u32> = (0..30).map(|i| 3 + i % 11).collect();
            for prompt in [prompt, vec![4], vec![9; 8]] {
                // Twice, because the second must not use what the first left in the cache.
                let clients = [0, 1].map(|_| rig.enqueue(NewSequence { pool: Some(kind), ..sequence(prompt.clone(), 0) }));
                rig.finish();
                clients.into_iter().for_each(|client| rig.assert_solo(client));
            }
            let both = rig.enqueue(NewSequence { pool: Some(kind), ..sequence(vec![1, 2], 3) });
            rig.step().unwrap();
            assert!(matches!(rig.clients[both].seen.last, Some(Event::Failed(_))), "a sequence cannot become a vector and generate");
        }
    }
}

#[test]
fn a_prompt_whose_rows_see_each_other_is_never_cut() {
    for max_in_flight in [1, 2] {
        let mut rig = Rig::new(64, max_in_flight, options(32, 8));
        let whole = |length: u32| NewSequence {
            pool: Some(Pooling::Mean),
            ..NewSequence::new(Items::text((0..length).map(|i| 3 + i % 11).collect()).whole(), params(1), 0)
        };
        let beside = rig.enqueue(sequence(vec![5; 20], 30));
        let clients = [31, 32, 3, 20, 1].map(|length| rig.enqueue(whole(length)));
        rig.step().unwrap();
        let first = rows(&rig).0;
        assert!([20, 23, 24].contains(&first), "{first} rows: prompts of 31 and 32 tokens wait, shorter ones fit beside the first");
        rig.finish();
        clients.into_iter().chain([beside]).for_each(|client| rig.assert_solo(client));
    }
}
