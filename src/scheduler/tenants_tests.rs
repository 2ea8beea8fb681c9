//! The shares that tenants get of an engine and its queue, whatever the number of their requests.

use proptest::prelude::*;

use crate::fake::VOCAB;
use crate::queue_permits::{QueuePermit, QueuePermits};
use crate::shared::QueueSize;
use crate::testing::{Rig, options, params, sequence, shared};
use crate::{Client, NewSequence, SchedulerOptions};
use logits::rng::philox4x32;

/// The most sequences that run at once.
const RUNNING: usize = 8;
/// Rows per step.
const ROWS: usize = 32;
/// The most tokens of a sequence, prompt and answer together.
const LONGEST: usize = 60;

fn tenant(tenant: u64, priority: u32) -> Client {
    Client { tenant: Some(tenant), priority }
}

fn one(seed: usize, prompt: usize, max_tokens: u32) -> NewSequence {
    let prompt = (0..prompt).map(|at| ((seed * 7 + at * 3) % VOCAB as usize) as u32).collect();
    NewSequence { params: params(seed as u64), ..sequence(prompt, max_tokens) }
}

/// Without a prefix cache, because a tenant whose prompts are cached already would run fewer rows.
fn rig(max_in_flight: usize) -> Rig {
    Rig::new(600, max_in_flight, SchedulerOptions { max_waiting: 100_000, prefix_cache: false, ..options(ROWS, RUNNING) })
}

/// Enqueues `count` requests of one sequence each.
fn flood(rig: &mut Rig, client: Client, count: usize) -> Vec<usize> {
    (0..count).flat_map(|i| rig.enqueue_of(client, vec![one(i, 20, 20)])).collect()
}

fn num_done(rig: &Rig, clients: &[usize]) -> usize {
    clients.iter().filter(|&&client| rig.clients[client].seen.last.is_some()).count()
}

fn rows(rig: &Rig) -> usize {
    rig.control.lock().unwrap().num_rows
}

fn has_begun(rig: &Rig, client: usize) -> bool {
    !rig.clients[client].seen.tokens.is_empty() || rig.clients[client].seen.last.is_some()
}

#[test]
#[cfg_attr(miri, ignore = "runs hundreds of sequences on one thread, which takes Miri hours")]
fn a_newcomer_does_not_wait_for_a_tenant_with_hundreds_of_requests() {
    for max_in_flight in [1, 2] {
        let mut rig = rig(max_in_flight);
        let many = flood(&mut rig, tenant(1, 10), 500);
        (0..10).for_each(|_| rig.step().unwrap());
        for i in 0..3 {
            let before = rows(&rig);
            let short = rig.enqueue_of(tenant(2, 10), vec![one(i, 4, 4)])[0];
            while !has_begun(&rig, short) {
                rig.step().unwrap();
            }
            let waited = rows(&rig) - before;
            assert!(waited <= 3 * ROWS, "{waited} rows for a request of 4 tokens beside a tenant with 500 requests");
        }
        rig.finish();
        many.into_iter().for_each(|client| rig.assert_solo(client));
    }
}

#[test]
#[cfg_attr(miri, ignore = "runs hundreds of sequences on one thread, which takes Miri hours")]
fn tenants_get_the_same_whatever_the_number_of_their_requests() {
    for max_in_flight in [1, 2] {
        let mut rig = rig(max_in_flight);
        let requests = [flood(&mut rig, tenant(1, 10), 400), flood(&mut rig, tenant(2, 10), 100), flood(&mut rig, tenant(3, 10), 80)];
        while num_done(&rig, &requests[2]) < 80 {
            rig.step().unwrap();
            let counts = [0, 1, 2].map(|i| num_done(&rig, &requests[i]));
            let (most, least) = (counts.iter().max().unwrap(), counts.iter().min().unwrap());
            assert!(most - least <= RUNNING, "{counts:?} requests of the tenants are done");
        }
        rig.finish();
    }
}

#[test]
#[cfg_attr(miri, ignore = "runs hundreds of sequences on one thread, which takes Miri hours")]
fn a_priority_is_a_share() {
    for max_in_flight in [1, 2] {
        let mut rig = rig(max_in_flight);
        let (high, low) = (flood(&mut rig, tenant(1, 30), 300), flood(&mut rig, tenant(2, 10), 300));
        while num_done(&rig, &high) < 240 {
            rig.step().unwrap();
        }
        let low = num_done(&rig, &low);
        assert!((70..=90).contains(&low), "{low} requests of a third of the priority are done beside 240");
        rig.finish();
    }
}

#[test]
#[cfg_attr(miri, ignore = "runs hundreds of sequences on one thread, which takes Miri hours")]
fn a_tenant_saves_up_no_claim_and_pays_for_nothing_that_nobody_wanted() {
    for max_in_flight in [1, 2] {
        let mut rig = rig(max_in_flight);
        // A tenant runs one stream while another waits all the time. If it then wants much more, it gets half and no more.
        let quiet = rig.enqueue_of(tenant(1, 10), vec![one(0, 4, 900)])[0];
        let busy = flood(&mut rig, tenant(2, 10), 1000);
        while num_done(&rig, &busy) < 300 {
            rig.step().unwrap();
        }
        assert!(!rig.clients[quiet].seen.tokens.is_empty());
        let (before, late) = (num_done(&rig, &busy), flood(&mut rig, tenant(1, 10), 200));
        while num_done(&rig, &late) < 100 {
            rig.step().unwrap();
        }
        let meanwhile = num_done(&rig, &busy) - before;
        assert!((80..=120).contains(&meanwhile), "{meanwhile} of the busy tenant beside 100");
        rig.finish();
        // One tenant has run much while it was alone. Then two begin at the same time and get equal shares.
        let alone = flood(&mut rig, tenant(3, 10), 200);
        while num_done(&rig, &alone) < 195 {
            rig.step().unwrap();
        }
        let (third, fourth) = (flood(&mut rig, tenant(3, 10), 100), flood(&mut rig, tenant(4, 10), 100));
        while num_done(&rig, &fourth) < 60 {
            rig.step().unwrap();
        }
        let third = num_done(&rig, &third);
        assert!((45..=75).contains(&third), "{third} of the tenant that was there before beside 60");
        rig.finish();
    }
}

#[test]
fn a_request_that_needs_most_of_the_memory_is_not_passed_by_its_tenants_others_for_ever() {
    for max_in_flight in [1, 2] {
        // Ten blocks hold 40 tokens. The large one needs nine of them.
        let mut rig = Rig::new(10, max_in_flight, options(ROWS, RUNNING));
        let mut small = 0;
        let mut next = |rig: &mut Rig| {
            small += 1;
            rig.enqueue_of(tenant(1, 10), vec![one(small, 5, 3)])
        };
        (0..3).for_each(|_| drop(next(&mut rig)));
        rig.step().unwrap();
        let large = rig.enqueue_of(tenant(1, 10), vec![one(7, 33, 2)])[0];
        let mut steps = 0;
        while !has_begun(&rig, large) {
            next(&mut rig);
            rig.step().unwrap();
            steps += 1;
            assert!(steps < 100, "the large request starves");
        }
        rig.finish();
        (0..rig.clients.len()).for_each(|client| rig.assert_solo(client));
    }
}

struct Random(u64, u32);

impl Random {
    fn below(&mut self, n: u32) -> u32 {
        self.1 += 1;
        philox4x32([self.1, 0, 0, 0], [self.0 as u32, 17])[0] % n
    }
}

/// A tenant's first request arrived when `before` rows had run.
struct Arrival {
    client: usize,
    before: usize,
}

/// A tenant that has nothing waits for its first token at most as long as all running places and one sequence of each other tenant take:
/// (RUNNING + others) · LONGEST [tokens]. The bound does not depend on the number of the others' requests. Invariants are checked after
/// every step.
#[test]
#[cfg_attr(miri, ignore = "runs hundreds of sequences on one thread, which takes Miri hours")]
fn no_tenant_waits_longer_than_a_bound_in_tokens() {
    const TENANTS: u64 = 6;
    for seed in 0..24 {
        let mut random = Random(seed, 0);
        let num_blocks = (RUNNING * LONGEST / 4 + RUNNING) / (1 + seed as usize / 2 % 2);
        let mut rig = Rig::new(
            num_blocks,
            1 + (seed % 2) as usize,
            SchedulerOptions { prefix_cache: seed % 3 > 0, max_waiting: 100_000, ..options(ROWS, RUNNING) },
        );
        let (mut waiting, mut active): (Vec<Arrival>, Vec<(u64, usize)>) = Default::default();
        for step in 0..1200 {
            if step < 800 && random.below(6) == 0 {
                let who = u64::from(random.below(TENANTS as u32));
                let size = |random: &mut Random| (1 + random.below(LONGEST as u32 / 2) as usize, 1 + random.below(LONGEST as u32 / 2));
                // Most tenants send little, a few send many requests or one with many sequences.
                let (num_requests, num_sequences) = match random.below(14) {
                    0 => (40, 1),
                    1 => (1, 40),
                    _ => (1, 1),
                };
                let is_new = active.iter().all(|(tenant, _)| *tenant != who);
                for request in 0..num_requests {
                    let (prompt, max_tokens) = size(&mut random);
                    let new = (0..num_sequences).map(|i| one(step + i, prompt, max_tokens)).collect();
                    let before = rows(&rig);
                    let clients = rig.enqueue_of(tenant(who, 10), new);
                    if is_new && request == 0 {
                        waiting.push(Arrival { client: clients[0], before });
                    }
                    active.extend(clients.into_iter().map(|client| (who, client)));
                }
            }
            rig.step().unwrap();
            let now = rows(&rig);
            waiting.retain(|Arrival { client, before }| {
                let (waited, bound) = (now - before, (RUNNING + TENANTS as usize - 1) * LONGEST);
                assert!(waited <= bound, "{waited} rows, at most {bound} in trace {seed}");
                !has_begun(&rig, *client)
            });
            active.retain(|(_, client)| rig.clients[*client].seen.last.is_none());
            if step % 50 == 7 && !active.is_empty() {
                let (_, client) = active[random.below(active.len() as u32) as usize];
                if !waiting.iter().any(|arrival| arrival.client == client) {
                    rig.clients[client].events = None;
                    active.retain(|(_, other)| *other != client);
                }
            }
        }
        rig.finish();
        let whole: Vec<usize> = (0..rig.clients.len()).filter(|&client| rig.clients[client].events.is_some()).collect();
        whole.into_iter().for_each(|client| rig.assert_solo(client));
    }
}

proptest! {
    /// However tenants take and give back places, a tenant without any finds a place as long as one is free, no tenant holds more than
    /// eight ninths, and the totals are right.
    #[test]
    fn a_tenant_without_places_finds_one(
        max in 1usize..80,
        moves in prop::collection::vec((0u64..5, 1usize..20, any::<bool>()), 1..300),
    ) {
        let shared = shared(max);
        let mut held: Vec<(u64, QueuePermit)> = Vec::new();
        for (who, count, takes) in moves {
            if takes {
                if let Ok(mut permits) = QueuePermits::take(&shared, tenant(who, 10), vec![1; count]) {
                    held.extend(std::iter::from_fn(|| permits.next()).map(|permit| (who, permit)));
                }
            } else if let Some(at) = held.iter().position(|(other, _)| *other == who) {
                held.swap_remove(at);
            }
            if shared.full(None).is_none() {
                prop_assert_eq!(shared.full(Some(99)), None, "a newcomer finds the free place");
            }
        }
        held.clear();
        let all = QueueSize { places: max, tokens: 0 };
        prop_assert_eq!(shared.take(None, all), Ok(()), "all places are free again");
        shared.give_back(None, all);
        while let Ok(mut permits) = QueuePermits::take(&shared, tenant(1, 10), [1]) {
            held.push((1, permits.next().unwrap()));
        }
        prop_assert!(held.len() <= max * 8 / 9 + 1 && held.len() >= max * 8 / 9, "one tenant got {} of {max}", held.len());
    }
}
