//! How long a request waits for others, counted in rows that the engine computes.

use crate::fake::VOCAB;
use crate::testing::{Rig, Seen, options, params, sequence};
use crate::{Event, NewSequence, SchedulerOptions, SequenceGroup};
use logits::rng::philox4x32;

/// The most sequences that run at once.
const RUNNING: usize = 8;
/// Rows per step.
const ROWS: usize = 32;
/// The most tokens of a sequence, prompt and answer together.
const LONGEST: usize = 60;

fn rows(rig: &Rig) -> usize {
    rig.control.lock().unwrap().num_rows
}

fn many(count: u32, prompt: usize, max_tokens: u32) -> Vec<NewSequence> {
    let prompt = |i: u32| (0..prompt as u32).map(|at| (i * 7 + at * 3) % VOCAB).collect();
    (0..count).map(|i| NewSequence { params: params(u64::from(i)), ..sequence(prompt(i), max_tokens) }).collect()
}

fn has_begun(seen: &Seen) -> bool {
    !seen.tokens.is_empty() || seen.last.is_some()
}

/// Steps until a client's first token, and the rows that ran meanwhile.
fn until_first_token(rig: &mut Rig, client: usize) -> usize {
    let before = rows(rig);
    while !has_begun(&rig.clients[client].seen) {
        rig.step().unwrap();
    }
    rows(rig) - before
}

#[test]
#[cfg_attr(miri, ignore = "runs hundreds of sequences on one thread, which takes Miri hours")]
fn a_short_request_does_not_wait_for_a_request_with_hundreds_of_prompts() {
    for max_in_flight in [1, 2] {
        for count in [50, 500] {
            let mut rig = Rig::new(600, max_in_flight, options(ROWS, RUNNING));
            let large = rig.enqueue_request(many(count, 40, 20));
            (0..10).for_each(|_| rig.step().unwrap());
            for _ in 0..3 {
                let short = rig.enqueue(sequence(vec![1, 2, 3, 4], 4));
                let waited = until_first_token(&mut rig, short);
                assert!(waited <= 3 * ROWS, "{waited} rows for a request of 4 tokens beside {count} prompts");
            }
            rig.finish();
            large.into_iter().for_each(|client| rig.assert_solo(client));
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "computes prompts of 1,200 tokens on one thread, which takes Miri hours")]
fn a_short_prompt_does_not_wait_for_a_long_one_and_a_long_one_is_delayed_by_its_own_length_at_most() {
    for max_in_flight in [1, 2] {
        let mut rig = Rig::new(600, max_in_flight, options(ROWS, RUNNING));
        let long = rig.enqueue(sequence((0..1200).map(|i| i % VOCAB).collect(), 1));
        rig.step().unwrap();
        // As long as the first one: it waits until that one is done, and short ones pass it, too.
        let second = rig.enqueue(sequence((0..1200).map(|i| (i * 7) % VOCAB).collect(), 1));
        let before = rows(&rig);
        while !has_begun(&rig.clients[long].seen) {
            assert_eq!(rig.scheduler.sequences().num_waiting().min(1), 1, "the second long prompt waits");
            // Short prompts keep coming.
            let short = rig.enqueue(sequence(vec![5; 13], 1));
            let waited = until_first_token(&mut rig, short);
            assert!(waited <= 3 * ROWS, "{waited} rows for a prompt of 13 tokens");
        }
        let took = rows(&rig) - before;
        assert!(took <= 2 * 1200 + 4 * ROWS, "{took} rows for a prompt of 1200 tokens");
        let waited = until_first_token(&mut rig, second);
        assert!(waited <= 1200 + 4 * ROWS, "{waited} rows for the second prompt");
        rig.finish();
    }
}

#[test]
#[cfg_attr(miri, ignore = "runs hundreds of sequences on one thread, which takes Miri hours")]
fn requests_of_the_same_age_get_the_same_whatever_their_number_of_prompts() {
    for max_in_flight in [1, 2] {
        let mut rig = Rig::new(600, max_in_flight, options(ROWS, RUNNING));
        let requests =
            [rig.enqueue_request(many(400, 20, 20)), rig.enqueue_request(many(100, 20, 20)), rig.enqueue_request(many(80, 20, 20))];
        let done = |rig: &Rig, request: &[usize]| request.iter().filter(|&&client| rig.clients[client].seen.last.is_some()).count();
        let mut compared = 0;
        while done(&rig, &requests[2]) < 80 {
            rig.step().unwrap();
            let counts = [0, 1, 2].map(|i| done(&rig, &requests[i]));
            let (most, least) = (counts.iter().max().unwrap(), counts.iter().min().unwrap());
            assert!(most - least <= RUNNING, "{counts:?} sequences of the requests are done");
            compared += most;
        }
        assert!(compared > 0);
        rig.finish();
    }
}

struct Random(u64, u32);

impl Random {
    fn below(&mut self, n: u32) -> u32 {
        self.1 += 1;
        philox4x32([self.1, 0, 0, 0], [self.0 as u32, 91])[0] % n
    }
}

/// A request that arrived when `before` rows had run and `num_others` requests were active.
struct Arrival {
    client: usize,
    before: usize,
    num_others: usize,
}

/// A request waits for its first token at most as long as it takes to run all running places once and then one sequence of each other
/// request: (RUNNING + others) · LONGEST [tokens]. The bound does not depend on the number of prompts per request.
#[test]
#[cfg_attr(miri, ignore = "runs hundreds of sequences on one thread, which takes Miri hours")]
fn no_request_waits_longer_than_a_bound_in_tokens() {
    let mut worst: f64 = 0.0;
    for seed in 0..40 {
        let mut random = Random(seed, 0);
        let max_in_flight = 1 + (seed % 2) as usize;
        // Memory for all running sequences, or for half of them.
        let num_blocks = (RUNNING * LONGEST / 4 + RUNNING) / (1 + seed as usize / 2 % 2);
        let mut rig = Rig::new(
            num_blocks,
            max_in_flight,
            SchedulerOptions { prefix_cache: seed % 3 > 0, max_waiting: 100_000, ..options(ROWS, RUNNING) },
        );
        let (mut waiting, mut active): (Vec<Arrival>, Vec<Vec<usize>>) = Default::default();
        for step in 0..1500 {
            if step < 1000 && random.below(8) == 0 {
                let prompt = 1 + random.below(LONGEST as u32 / 2);
                let max_tokens = 1 + random.below(LONGEST as u32 / 2);
                // Most requests are small. A few have far more prompts than can run at once.
                let count = if random.below(12) == 0 { 60 } else { 1 + random.below(2) };
                let mut new = many(count, prompt as usize, max_tokens);
                if random.below(3) == 0 {
                    let (sequence_group, prompt) = (Some(SequenceGroup::unique()), new[0].prompt.clone());
                    new.iter_mut().for_each(|new| (new.sequence_group, new.prompt) = (sequence_group, prompt.clone()));
                }
                let (before, num_others) = (rows(&rig), active.len());
                let clients = rig.enqueue_request(new);
                waiting.push(Arrival { client: clients[0], before, num_others });
                active.push(clients);
            }
            rig.step().unwrap();
            let now = rows(&rig);
            waiting.retain(|arrival| {
                let bound = (RUNNING + arrival.num_others) * LONGEST;
                let waited = now - arrival.before;
                worst = worst.max(waited as f64 / bound as f64);
                assert!(waited <= bound, "{waited} rows beside {} requests, at most {bound} in trace {seed}", arrival.num_others);
                !has_begun(&rig.clients[arrival.client].seen)
            });
            active.retain(|clients| clients.iter().any(|&client| rig.clients[client].seen.last.is_none()));
        }
        rig.finish();
        (0..rig.clients.len()).for_each(|client| rig.assert_solo(client));
    }
    println!("the longest wait was {worst:.2} of its bound");
}

#[test]
#[cfg_attr(miri, ignore = "runs hundreds of sequences on one thread, which takes Miri hours")]
fn a_request_may_have_more_sequences_than_the_queue_has_places() {
    let mut rig = Rig::new(600, 1, SchedulerOptions { max_waiting: 16, ..options(ROWS, RUNNING) });
    let clients = rig.enqueue_request(many(200, 4, 3));
    // Others still find a place.
    let others: Vec<usize> = (0..14).map(|i| rig.enqueue(sequence(vec![i; 3], 2))).collect();
    rig.finish();
    clients.into_iter().chain(others).for_each(|client| rig.assert_solo(client));
}

#[test]
fn a_request_that_alone_needs_most_of_the_memory_runs_after_its_own_sequences() {
    // Ten blocks hold 40 tokens. The second sequence needs nine of them.
    for max_in_flight in [1, 2] {
        let mut rig = Rig::new(10, max_in_flight, options(ROWS, RUNNING));
        let clients = rig.enqueue_request(vec![sequence(vec![1; 5], 12), sequence(vec![2; 35], 2), sequence(vec![3; 5], 2)]);
        rig.step().unwrap();
        let other = rig.enqueue(sequence(vec![4; 5], 2));
        rig.finish();
        clients.into_iter().chain([other]).for_each(|client| rig.assert_solo(client));
        assert!(matches!(rig.clients[other].seen.last, Some(Event::Finished { .. })));
    }
}
