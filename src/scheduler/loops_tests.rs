//! Loops change no text, and give way to whatever needs the host.

use crate::cache_size::Cost;
use crate::fake::{BLOCK_BYTES, NAN_SEED, VOCAB, solo_run};
use crate::testing::{Rig, params, sequence};
use crate::{Event, NewSequence, SchedulerOptions, SequenceGroup};
use engine::{CacheGroup, CacheWindow, EngineError, KvCapacity, LoopLimits};
use logits::rng::philox4x32;

const LIMITS: LoopLimits = LoopLimits { most_steps: 16, turn: 2, most_seqs: 8 };

fn capacity(num_blocks: usize) -> KvCapacity {
    KvCapacity::blocks(num_blocks, 4)
}

fn options(max_batch_tokens: usize, max_running: usize) -> SchedulerOptions {
    SchedulerOptions { drafts: false, ..crate::testing::options(max_batch_tokens, max_running) }
}

/// An engine with room for everything.
fn rig(num_late: u32) -> Rig {
    Rig::looping(capacity(400), 400, options(32, 8), LIMITS, num_late)
}

fn num_loop_steps(rig: &Rig) -> u64 {
    rig.control.lock().unwrap().num_loop_steps
}

fn num_steps(rig: &Rig) -> u64 {
    rig.control.lock().unwrap().num_steps
}

/// Steps until loops run.
fn loop_on(rig: &mut Rig) {
    let before = num_loop_steps(rig);
    for _ in 0..100 {
        if num_loop_steps(rig) > before {
            return;
        }
        rig.step().unwrap();
    }
    panic!("no loop begins");
}

#[test]
fn sequences_that_only_decode_run_in_loops_to_their_last_token() {
    for num_seqs in [1, 3] {
        let mut rig = rig(0);
        let clients: Vec<usize> = (0..num_seqs).map(|i| rig.enqueue(sequence(vec![i; 5], 100 + 7 * i))).collect();
        rig.finish();
        clients.iter().for_each(|&client| rig.assert_solo(client));
        let (looped, all) = (num_loop_steps(&rig), num_steps(&rig));
        assert!(looped > 80 && all < 100 + 7 * u64::from(num_seqs) + 8, "{looped} of {all} steps");
    }
}

#[test]
fn a_token_is_delivered_with_its_step() {
    let mut rig = rig(0);
    let client = rig.enqueue(sequence(vec![1, 2], 60));
    loop_on(&mut rig);
    let before = rig.clients[client].seen.tokens.len();
    (0..10).for_each(|_| rig.step().unwrap());
    assert_eq!(rig.clients[client].seen.tokens.len(), before + 10);
}

#[test]
fn a_stop_id_ends_a_sequence_and_its_loop() {
    for num_late in [0, 1, 3] {
        let mut rig = rig(num_late);
        let new = sequence(vec![3, 1, 4], 200);
        let (tokens, _) = solo_run(&new, &rig.capacity);
        // The first token that has not come before.
        let at = (20..200).find(|&at| !tokens[..at].contains(&tokens[at])).unwrap();
        let client = rig.run(NewSequence { stop_ids: vec![tokens[at]], ..new });
        assert_eq!(rig.clients[client].seen.tokens.len(), at);
        assert!(num_loop_steps(&rig) > 5 && num_steps(&rig) <= at as u64 + 4 + u64::from(2 * num_late), "{} steps", num_steps(&rig));
    }
}

#[test]
fn a_new_sequence_runs_in_the_next_step_after_those_that_are_late() {
    for num_late in [0, 1, 2, 20] {
        let mut rig = rig(num_late);
        let first = rig.enqueue(sequence(vec![1, 2, 3], 90));
        loop_on(&mut rig);
        let before = num_steps(&rig);
        let second = rig.enqueue(sequence(vec![4, 5], 10));
        rig.step().unwrap();
        let late = num_steps(&rig) - before;
        assert!(late <= u64::from(2 + 2 * num_late).min(32), "{late} steps before the loop has ended");
        rig.step().unwrap();
        assert_eq!(rig.control.lock().unwrap().last_rows, [1, 2]);
        rig.finish();
        rig.assert_solo(first);
        rig.assert_solo(second);
    }
}

#[test]
fn a_client_that_leaves_frees_its_blocks_at_once_and_half_a_loop_ends() {
    let mut rig = rig(1);
    let clients: Vec<usize> = (0..4).map(|i| rig.enqueue(sequence(vec![i; 6], 120))).collect();
    loop_on(&mut rig);
    for (left, client) in clients[..3].iter().enumerate() {
        rig.clients[*client].events = None;
        rig.step().unwrap();
        assert_eq!(rig.scheduler.sequences().running.len(), 3 - left);
    }
    rig.finish();
    rig.assert_solo(clients[3]);
    assert!(num_loop_steps(&rig) > 80);
}

#[test]
fn what_needs_the_host_runs_in_single_steps() {
    let with_logprobs = NewSequence { num_logprobs: Some(2), ..sequence(vec![1], 30) };
    let mut alone = rig(0);
    alone.run(with_logprobs);
    assert_eq!(num_loop_steps(&alone), 0);
    let mut drafted = Rig::looping(capacity(400), 400, SchedulerOptions { drafts: true, ..options(32, 8) }, LIMITS, 0);
    drafted.run(sequence(vec![1, 2], 30));
    assert_eq!(num_loop_steps(&drafted), 0);
    let mut recurrent = Rig::looping(KvCapacity { num_state_slots: 4, ..capacity(400) }, 400, options(32, 4), LIMITS, 0);
    recurrent.run(sequence(vec![1, 2], 30));
    assert_eq!(num_loop_steps(&recurrent), 0);
    let mut many = Rig::looping(capacity(400), 400, options(32, 16), LIMITS, 0);
    (0..9).for_each(|i| _ = many.enqueue(sequence(vec![i], 30)));
    many.finish();
    assert_eq!(num_loop_steps(&many), 0, "more sequences than a loop holds");
}

#[test]
fn loops_end_before_memory_is_given_back_and_when_it_is_short() {
    let mut rig = Rig::looping(capacity(64), 2, options(32, 8), LIMITS, 1);
    let clients: Vec<usize> = (0..4).map(|i| rig.enqueue(sequence(vec![i; 8], 40))).collect();
    loop_on(&mut rig);
    let given = rig.scheduler.give_back(20 * BLOCK_BYTES, Cost::Sequences).unwrap();
    assert!(given > 0);
    rig.scheduler.check();
    rig.control.lock().unwrap().memory = Some(30);
    rig.finish();
    clients.iter().for_each(|&client| rig.assert_solo(client));
    assert!(rig.metrics().num_preemptions_total.get() > 0);
}

#[test]
fn a_fault_in_a_loop_fails_its_sequences_and_the_next_ones_run() {
    let mut rig = rig(0);
    let client = rig.enqueue(sequence(vec![1, 2, 3], 90));
    loop_on(&mut rig);
    let at = num_steps(&rig) + 3;
    rig.control.lock().unwrap().fault = Some((at, Some(EngineError::OutOfMemory("none left".into()))));
    while rig.step().is_ok() {}
    assert!(matches!(&rig.clients[client].seen.last, Some(Event::Failed(why)) if why.contains("none left")));
    rig.check_baseline();
    rig.run(sequence(vec![1, 2, 3], 50));
}

#[test]
fn logits_that_are_not_finite_fail_one_sequence_of_a_loop() {
    let mut rig = rig(1);
    let broken = NewSequence { params: params(NAN_SEED | 1), ..sequence(vec![9; 3], 50) };
    let [bad, good] = [rig.enqueue(broken), rig.enqueue(sequence(vec![2; 3], 50))];
    rig.finish();
    rig.assert_solo(good);
    assert!(matches!(rig.clients[bad].seen.last, Some(Event::Failed(_))));
}

/// A random trace of long answers with few arrivals, in a cache that may be too small, may have windows and may grow and shrink.
fn trace(seed: u32) -> [u64; 4] {
    let mut counter = 0;
    let mut below = |n: u32| {
        counter += 1;
        philox4x32([counter, 0, 0, 0], [seed, 78])[0] % n
    };
    let mut capacity = capacity(40 + below(60) as usize);
    if below(2) == 0 {
        let window = CacheWindow::Sliding(1 + below(17) as usize);
        capacity.groups = vec![CacheGroup { window: Some(window) }, CacheGroup::default()];
        capacity.num_blocks += 40;
    }
    let num_backed = if below(2) == 0 { 2 } else { capacity.num_blocks };
    let limits = LoopLimits { most_steps: [4, 8, 64][below(3) as usize], turn: 1 << below(3), most_seqs: 8 };
    let max_running = 1 + below(8) as usize;
    let options = SchedulerOptions { prefix_cache: below(4) > 0, ..options(max_running + below(16) as usize, max_running) };
    let num_blocks = capacity.num_blocks as u32;
    let mut rig = Rig::looping(capacity, num_backed, options, limits, below(4));
    let (mut queued, mut cancels) = (0, 0);
    while queued < 40 || rig.scheduler.has_work() {
        if queued < 40 && below(if rig.scheduler.has_work() { 12 } else { 1 }) == 0 {
            let mut new = sequence((0..1 + below(20)).map(|i| (i + below(2)) % VOCAB).collect(), 1 + below(80));
            new.params = params(u64::from(below(4)));
            new.stop_ids = (0..below(3)).collect();
            new.sequence_group = (below(3) == 0).then(SequenceGroup::unique);
            let count = if new.sequence_group.is_some() { 2 } else { 1 };
            rig.enqueue_request(vec![new; count]);
            queued += count;
        }
        match below(40) {
            0 if num_backed == 2 => {
                let cost = [Cost::Nothing, Cost::Contents, Cost::Sequences][below(3) as usize];
                rig.scheduler.give_back(u64::from(below(num_blocks)) * BLOCK_BYTES, cost).unwrap();
                rig.scheduler.check();
            }
            1 => {
                let victim = below(queued.max(1) as u32) as usize;
                let there = rig.clients.get_mut(victim).filter(|client| client.seen.last.is_none());
                cancels += u64::from(there.is_some_and(|client| client.events.take().is_some()));
            }
            _ => {}
        }
        rig.step().unwrap();
    }
    rig.check_baseline();
    for index in 0..rig.clients.len() {
        if rig.clients[index].events.is_some() {
            rig.assert_solo(index);
        } else {
            let (tokens, _) = solo_run(&rig.clients[index].new, &rig.capacity);
            assert!(tokens.starts_with(&rig.clients[index].seen.tokens), "client {index}");
        }
    }
    [num_loop_steps(&rig), num_steps(&rig), rig.metrics().num_preemptions_total.get(), cancels]
}

#[test]
fn every_sequence_of_a_random_trace_with_loops_equals_its_solo_run() {
    let mut totals = [0; 4];
    for seed in 0..if cfg!(miri) { 1 } else { 300 } {
        totals.iter_mut().zip(trace(seed)).for_each(|(total, count)| *total += count);
    }
    println!("steps in loops, steps, preemptions, cancels: {totals:?}");
    let [looped, steps, preemptions, cancels] = totals;
    assert!(cfg!(miri) || looped > 10_000 && steps > looped && preemptions > 50 && cancels > 50, "{totals:?}");
}
