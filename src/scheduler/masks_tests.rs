//! Sequences that follow a grammar, among those that do not.

use std::time::{Duration, Instant};

use super::fake::{FakeEngine, VOCAB, masked_token, next_token, solo_run};
use super::masks::PATIENCE;
use super::tests::{params, sequence};
use super::*;
use crate::engine::KvCapacity;
use crate::logits::{Allowed, Constraint, mask_words};

const CAPACITY: KvCapacity = KvCapacity { num_blocks: 64, block_size: 4 };

/// Ids that are the position modulo 5; the text is complete after `len` of them.
#[derive(Debug, Clone)]
struct Counting {
    len: usize,
    /// At this position it comes to a dead end; or panics, which must cost no more.
    dead: Option<(usize, bool)>,
    /// Each mask takes this long.
    takes: Duration,
}

impl Counting {
    fn new(len: usize) -> Self {
        Self { len, dead: None, takes: Duration::ZERO }
    }
}

struct At(Counting, usize);

impl Grammar for Counting {
    fn start(&self) -> Box<dyn Constraint> {
        Box::new(At(self.clone(), 0))
    }
}

fn mask(position: usize) -> Vec<u32> {
    let mut words = vec![0; mask_words(VOCAB as usize)];
    (0..VOCAB).filter(|id| *id as usize % 5 == position % 5).for_each(|id| words[id as usize / 32] |= 1 << (id % 32));
    words
}

impl Constraint for At {
    fn accept(&mut self, id: u32) -> Result<(), String> {
        assert_eq!(id as usize % 5, self.1 % 5, "an id that was not allowed");
        self.1 += 1;
        Ok(())
    }

    fn allowed(&mut self) -> Result<Allowed, String> {
        std::thread::sleep(self.0.takes);
        match self.0.dead {
            Some((at, false)) if at == self.1 => Err("a dead end".into()),
            Some((at, true)) if at == self.1 => panic!("a bug in a grammar"),
            _ if self.1 == self.0.len => Ok(Allowed::End),
            _ => Ok(Allowed::Mask(mask(self.1))),
        }
    }
}

/// What a sequence gives that follows `grammar` alone.
fn solo_masked(new: &NewSequence, len: usize) -> Vec<u32> {
    let mut context = new.prompt.clone();
    for position in 0..len {
        context.push(masked_token(next_token(&context, &new.params), &mask(position)));
    }
    context.split_off(new.prompt.len())
}

fn read_all(stream: &mut EventStream) -> (Vec<u32>, Event) {
    let mut tokens = vec![];
    loop {
        match stream.blocking_next() {
            Some(Event::Token { id, .. }) => tokens.push(id),
            last => return (tokens, last.expect("a last event")),
        }
    }
}

fn spawn(capacity: KvCapacity, max_in_flight: usize) -> Handle {
    let (engine, _) = FakeEngine::new(capacity, 4, max_in_flight);
    let options = SchedulerOptions { max_batch_tokens: 8, max_running: 4, max_waiting: 100, prefix_cache: true };
    Handle::spawn(Box::new(engine), options, ModelMetrics::for_model("masks"))
}

fn following(seed: u64, max_tokens: u32, grammar: Counting) -> NewSequence {
    NewSequence { params: params(seed), grammar: Some(Arc::new(grammar)), ..sequence(vec![seed as u32 % 3; 9], max_tokens) }
}

#[test]
fn grammars_are_followed_in_a_crowd_and_through_preemption() {
    // The smaller pool makes sequences give way to each other.
    for (max_in_flight, num_blocks) in [(1, 64), (2, 64), (1, 16), (2, 16)] {
        let handle = spawn(KvCapacity { num_blocks, ..CAPACITY }, max_in_flight);
        let streams: Vec<_> = (0..24u64)
            .map(|i| {
                let len = 3 + i as usize;
                let new = match i % 3 {
                    0 => NewSequence { params: params(i), ..sequence(vec![1; 9], 20) },
                    // One in four has masks that no step waits for.
                    _ if i % 4 == 1 => following(i, 1000, Counting { takes: 2 * PATIENCE, ..Counting::new(len) }),
                    _ => following(i, 1000, Counting::new(len)),
                };
                (handle.enqueue(new.clone()).unwrap(), new, len)
            })
            .collect();
        for (mut stream, new, len) in streams {
            let (tokens, last) = read_all(&mut stream);
            match &new.grammar {
                None => assert_eq!(tokens, solo_run(&new, 256).0),
                Some(_) => {
                    assert_eq!(tokens, solo_masked(&new, len));
                    assert!(matches!(last, Event::Finished { reason: FinishReason::Stop, .. }), "{last:?}");
                }
            }
        }
        assert!(handle.is_alive());
    }
}

#[test]
fn a_limit_cuts_what_follows_a_grammar() {
    let handle = spawn(CAPACITY, 2);
    let new = following(5, 6, Counting::new(50));
    let (tokens, last) = read_all(&mut handle.enqueue(new.clone()).unwrap());
    assert_eq!(tokens, solo_masked(&new, 6));
    assert!(matches!(last, Event::Finished { reason: FinishReason::Length, .. }), "{last:?}");
}

#[test]
fn a_dead_end_costs_its_sequence_alone() {
    for max_in_flight in [1, 2] {
        for panics in [false, true] {
            let handle = spawn(CAPACITY, max_in_flight);
            let other = following(4, 1000, Counting::new(30));
            let mut stream = handle.enqueue(other.clone()).unwrap();
            for dead in [0, 4] {
                let new = following(7, 1000, Counting { dead: Some((dead, panics)), ..Counting::new(50) });
                let (tokens, last) = read_all(&mut handle.enqueue(new.clone()).unwrap());
                assert_eq!(tokens, solo_masked(&new, dead));
                // A bug is ours, the rest is the grammar's.
                assert!(if panics { matches!(last, Event::Failed(_)) } else { matches!(last, Event::Unfollowable(_)) }, "{last:?}");
            }
            assert_eq!(read_all(&mut stream).0, solo_masked(&other, 30));
            assert!(handle.is_alive());
        }
    }
}

#[test]
fn slow_masks_hold_up_their_own_sequence_only() {
    for max_in_flight in [1, 2] {
        let handle = spawn(CAPACITY, max_in_flight);
        let slow = following(3, 1000, Counting { takes: 25 * PATIENCE, ..Counting::new(4) });
        let mut slow_stream = handle.enqueue(slow.clone()).unwrap();
        let start = Instant::now();
        for i in 0..4 {
            let other = following(i, 1000, Counting::new(30));
            assert_eq!(read_all(&mut handle.enqueue(other.clone()).unwrap()).0, solo_masked(&other, 30));
        }
        // Their 120 tokens, before the slow one has its fourth.
        assert!(start.elapsed() < 4 * 25 * PATIENCE, "{:?}", start.elapsed());
        assert_eq!(read_all(&mut slow_stream).0, solo_masked(&slow, 4));
        assert!(start.elapsed() >= 4 * 25 * PATIENCE);
    }
}
