//! Families that share a prompt, scores of a prompt, and prompts that become vectors: step by step against the fake engine.

use super::tests::{Rig, options, params, sequence};
use super::*;
use crate::engine::EngineError;

fn family(prompt: &[u32], count: u64, max_tokens: u32) -> Vec<NewSequence> {
    let family = Some(Family::unique());
    (0..count).map(|seed| NewSequence { family, params: params(seed), ..sequence(prompt.to_vec(), max_tokens) }).collect()
}

fn rows(rig: &Rig) -> (usize, usize) {
    let control = rig.control.lock().unwrap();
    (control.num_rows, control.num_copies)
}

#[test]
fn a_familys_prompt_is_computed_once() {
    for max_in_flight in [1, 2] {
        for prefix_cache in [true, false] {
            // 14 shared tokens of blocks of 4: three blocks are shared, the fourth is copied by each but the first.
            let mut rig = Rig::new(64, max_in_flight, SchedulerOptions { prefix_cache, ..options(32, 8) });
            let prompt: Vec<u32> = (0..15).collect();
            let clients: Vec<usize> = family(&prompt, 5, 1).into_iter().map(|new| rig.enqueue(new)).collect();
            rig.step().unwrap();
            assert_eq!(rows(&rig), (14, 0), "as far as it is shared");
            rig.step().unwrap();
            assert_eq!(rows(&rig), (14 + 5, 4), "then the last token's rows, side by side");
            rig.finish();
            clients.into_iter().for_each(|client| rig.assert_solo(client));
            assert_eq!(rows(&rig).0, 14 + 5);
            assert_eq!(rig.scheduler.metrics.prompt_tokens_total.get(), 15, "and counted once");
        }
    }
}

#[test]
fn a_prompt_that_ends_with_a_block_needs_no_copy() {
    let mut rig = Rig::new(64, 2, options(32, 8));
    let clients: Vec<usize> = family(&(0..9).collect::<Vec<_>>(), 3, 6).into_iter().map(|new| rig.enqueue(new)).collect();
    rig.finish();
    clients.into_iter().for_each(|client| rig.assert_solo(client));
    assert_eq!(rows(&rig).1, 0);
}

#[test]
fn relatives_that_come_late_share_what_is_still_there() {
    for max_in_flight in [1, 2] {
        // Two at a time: the others start when one of the first has ended.
        let mut rig = Rig::new(64, max_in_flight, options(32, 2));
        let prompt: Vec<u32> = (0..14).collect();
        let clients: Vec<usize> = family(&prompt, 6, 9)
            .into_iter()
            .enumerate()
            .map(|(i, new)| rig.enqueue(NewSequence { max_tokens: 3 + i as u32, ..new }))
            .collect();
        rig.finish();
        clients.iter().for_each(|&client| rig.assert_solo(client));
        let generated: u32 = (0..6).map(|i| 3 + i).sum();
        assert!(rows(&rig).0 as u32 <= 13 + generated + max_in_flight as u32 * 6, "nothing but surplus rows on top");
    }
}

#[test]
fn a_refused_copy_is_made_up_for() {
    for max_in_flight in [1, 2] {
        for at in 1..6 {
            let mut rig = Rig::new(64, max_in_flight, options(32, 8));
            let clients: Vec<usize> = family(&(0..14).collect::<Vec<_>>(), 4, 8).into_iter().map(|new| rig.enqueue(new)).collect();
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
fn a_prompt_is_scored_in_chunks_and_whole_whatever_is_cached() {
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
fn a_prompt_becomes_a_vector_of_its_kind() {
    for max_in_flight in [1, 2] {
        for kind in [Pooling::First, Pooling::Last, Pooling::Mean] {
            let mut rig = Rig::new(64, max_in_flight, options(7, 4));
            let prompt: Vec<u32> = (0..30).map(|i| 3 + i % 11).collect();
            for prompt in [prompt, vec![4], vec![9; 8]] {
                // twice: what the first left in the cache is of no use
                let clients = [0, 1].map(|_| rig.enqueue(NewSequence { pool: Some(kind), ..sequence(prompt.clone(), 0) }));
                rig.finish();
                clients.into_iter().for_each(|client| rig.assert_solo(client));
            }
            let both = rig.enqueue(NewSequence { pool: Some(kind), ..sequence(vec![1, 2], 3) });
            rig.step().unwrap();
            assert!(matches!(rig.clients[both].seen.last, Some(Event::Failed(_))), "a vector and a text");
        }
    }
}
