//! Sequences with a grammar, among sequences without one.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::PATIENCE;
use crate::fake::{FakeEngine, VOCAB, entries, masked_token, next_token, solo_run};
use crate::items::{Items, Layout};
use crate::testing::{Rig, options, params, run, sequence};
use crate::{DraftOptions, Event, EventStream, FinishReason, Handle, KnownAnswer, NewSequence, SchedulerOptions, SequenceGroup};
use engine::KvCapacity;
use logits::{Allowed, Constraint, Grammar, mask_words};
use metrics::ModelMetrics;

fn capacity() -> KvCapacity {
    KvCapacity::blocks(64, 4)
}

/// Test double: allows the ids that equal the position modulo 5. The text is complete after `len` ids.
#[derive(Debug, Clone)]
struct Counting {
    len: usize,
    /// Test double: the grammar reaches a dead end at this position, or panics there if true.
    dead: Option<(usize, bool)>,
    /// Time per mask.
    takes: Duration,
    /// Masks are computed only while the test does not hold this lock.
    gate: Arc<Mutex<()>>,
}

impl Counting {
    fn new(len: usize) -> Self {
        Self { len, dead: None, takes: Duration::ZERO, gate: Arc::default() }
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
        assert_eq!(id as usize % 5, self.1 % 5, "the id was not allowed");
        self.1 += 1;
        Ok(())
    }

    fn allowed(&mut self) -> Result<Allowed, String> {
        drop(self.0.gate.lock());
        std::thread::sleep(self.0.takes);
        match self.0.dead {
            Some((at, false)) if at == self.1 => Err("a dead end".into()),
            Some((at, true)) if at == self.1 => panic!("a bug in a grammar"),
            _ if self.1 == self.0.len => Ok(Allowed::End),
            _ => Ok(Allowed::Mask(mask(self.1))),
        }
    }

    fn fork(&self) -> Option<Box<dyn Constraint>> {
        Some(Box::new(Self(self.0.clone(), self.1)))
    }
}

/// The tokens of a sequence with the grammar that runs alone.
fn solo_masked(new: &NewSequence, len: usize, capacity: &KvCapacity) -> Vec<u32> {
    let next = |context: &[u32], params| next_token(context, params, capacity);
    let mut context = entries(&new.prompt);
    for position in 0..len {
        context.push(masked_token(next(&context, &new.params), &mask(position)));
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
    let options = SchedulerOptions {
        max_batch_tokens: 24,
        max_running: 4,
        max_waiting: 100,
        max_waiting_tokens: 0,
        prefix_cache: true,
        drafts: true,
    };
    Handle::spawn(Box::new(engine), options, ModelMetrics::for_model("masks"))
}

fn following(seed: u64, max_tokens: u32, grammar: Counting) -> NewSequence {
    NewSequence { params: params(seed), grammar: Some(Arc::new(grammar)), ..sequence(vec![seed as u32 % 3; 9], max_tokens) }
}

#[test]
fn grammars_are_followed_in_a_crowd_and_through_preemption() {
    // The smaller caches cause preemptions.
    let kinds = [(1, 64, 0), (2, 64, 0), (1, 16, 0), (1, 16, 4), (2, 16, 0), (2, 16, 4)];
    for (max_in_flight, num_blocks, num_state_slots) in kinds.into_iter().skip(if cfg!(miri) { 4 } else { 0 }) {
        let capacity = KvCapacity { num_state_slots, ..KvCapacity::blocks(num_blocks, 4) };
        let handle = spawn(capacity.clone(), max_in_flight);
        let streams: Vec<_> = (0..if cfg!(miri) { 6 } else { 24u64 })
            .map(|i| {
                let len = 3 + i as usize;
                let known = |new: &NewSequence, tokens: Vec<u32>| KnownAnswer {
                    tokens: tokens.into(),
                    accept: [0.9, 1.0, 0.6][new.params.seed as usize % 3],
                };
                let new = match i % 3 {
                    0 => NewSequence { params: params(i), ..sequence(vec![1; 9], 20) },
                    // One in four has masks that are too slow for a step to wait for.
                    _ if i % 4 == 1 => following(i, 1000, Counting { takes: 2 * PATIENCE, ..Counting::new(len) }),
                    _ => following(i, 1000, Counting::new(len)),
                };
                let tokens = match &new.grammar {
                    None => solo_run(&new, &capacity).0,
                    // The drafts go on after the end of the text.
                    Some(_) => solo_masked(&new, len + 4, &capacity),
                };
                let drafts = DraftOptions { known: Some(known(&new, tokens)), ..DraftOptions::default() };
                let new = NewSequence { drafts, ..new };
                (handle.enqueue(new.clone()).unwrap(), new, len)
            })
            .collect();
        for (mut stream, new, len) in streams {
            let (tokens, last) = read_all(&mut stream);
            match &new.grammar {
                None => assert_eq!(tokens, solo_run(&new, &capacity).0),
                Some(_) => {
                    assert_eq!(tokens, solo_masked(&new, len, &capacity));
                    assert!(matches!(last, Event::Finished { reason: FinishReason::Stop, .. }), "{last:?}");
                }
            }
        }
        assert!(handle.is_alive());
    }
    let metrics = ModelMetrics::for_model("masks");
    let counters = [&metrics.spec_decode_num_draft_tokens_total, &metrics.spec_decode_num_accepted_tokens_total];
    let [drafted, accepted] = counters.map(|counter| counter.get());
    assert!(accepted > 100 && drafted > accepted, "{accepted} of {drafted} drafts were right");
}

/// The last row of a run whose rows see each other cannot run again without the others, so the run waits for a slow mask.
#[test]
fn a_whole_run_at_the_end_of_a_prompt_waits_for_its_mask() {
    for (max_in_flight, num_state_slots) in [(1, 0), (2, 0), (1, 4), (2, 4)] {
        let capacity = KvCapacity { num_state_slots, ..KvCapacity::blocks(64, 4) };
        let handle = spawn(capacity.clone(), max_in_flight);
        let new = |seed: u64| {
            let prompt = Items::with_runs(vec![1; 5], [(run(seed as u8, 6, Layout::Line, true), vec![])]);
            NewSequence { prompt, ..following(seed, 1000, Counting { takes: 2 * PATIENCE, ..Counting::new(4) }) }
        };
        let streams: Vec<_> = (0..6).map(|seed| (handle.enqueue(new(seed)).unwrap(), new(seed))).collect();
        for (mut stream, new) in streams {
            assert_eq!(read_all(&mut stream).0, solo_masked(&new, 4, &capacity));
        }
    }
}

#[test]
fn the_token_limit_cuts_a_text_that_follows_a_grammar() {
    let handle = spawn(capacity(), 2);
    let new = following(5, 6, Counting::new(50));
    let (tokens, last) = read_all(&mut handle.enqueue(new.clone()).unwrap());
    assert_eq!(tokens, solo_masked(&new, 6, &capacity()));
    assert!(matches!(last, Event::Finished { reason: FinishReason::Length, .. }), "{last:?}");
}

#[test]
fn a_dead_end_or_a_panic_of_a_grammar_ends_only_its_sequence() {
    for max_in_flight in [1, 2] {
        for panics in [false, true] {
            let handle = spawn(capacity(), max_in_flight);
            let other = following(4, 1000, Counting::new(30));
            let mut stream = handle.enqueue(other.clone()).unwrap();
            for dead in [0, 4] {
                let new = following(7, 1000, Counting { dead: Some((dead, panics)), ..Counting::new(50) });
                let (tokens, last) = read_all(&mut handle.enqueue(new.clone()).unwrap());
                assert_eq!(tokens, solo_masked(&new, dead, &capacity()));
                // A panic is our bug, a dead end is the grammar's fault.
                assert!(if panics { matches!(last, Event::Failed(_)) } else { matches!(last, Event::Unfollowable(_)) }, "{last:?}");
            }
            assert_eq!(read_all(&mut stream).0, solo_masked(&other, 30, &capacity()));
            assert!(handle.is_alive());
        }
    }
}

#[test]
fn slow_masks_delay_only_their_own_sequence() {
    for max_in_flight in [1, 2] {
        let mut rig = Rig::new(64, max_in_flight, options(8, 4));
        let gate = Arc::new(Mutex::new(()));
        let closed = gate.lock().unwrap();
        let slow = rig.enqueue(following(3, 1000, Counting { gate: gate.clone(), ..Counting::new(4) }));
        let others = [1, 2].map(|seed| rig.enqueue(NewSequence { params: params(seed), ..sequence(vec![1; 5], 30) }));
        while others.iter().any(|&other| rig.clients[other].seen.last.is_none()) {
            rig.step().unwrap();
        }
        // A step waits for a mask only if it carries a row that needs one.
        let num_rows = rig.control.lock().unwrap().num_rows;
        assert_eq!(num_rows, 9 + 2 * (5 + 29), "the slow sequence runs its prompt, and no row until its mask arrives");
        assert_eq!(rig.clients[slow].seen.tokens.len(), 0);
        drop(closed);
        rig.finish();
        others.into_iter().for_each(|other| rig.assert_solo(other));
        assert_eq!(rig.clients[slow].seen.tokens, solo_masked(&rig.clients[slow].new, 4, &rig.capacity));
    }
}

#[test]
fn members_of_a_group_follow_their_grammars_with_and_without_recurrent_state() {
    for (max_in_flight, num_state_slots) in [(1, 0), (1, 4), (2, 0), (2, 4)].into_iter().skip(if cfg!(miri) { 2 } else { 0 }) {
        let capacity = KvCapacity { num_state_slots, ..KvCapacity::blocks(12, 4) };
        let (handle, sequence_group) = (spawn(capacity.clone(), max_in_flight), Some(SequenceGroup::unique()));
        let member = |seed, len| NewSequence { sequence_group, prompt: vec![2; 9].into(), ..following(seed, 1000, Counting::new(len)) };
        let members: Vec<_> = (0..6u64).map(|seed| (member(seed, 20 + seed as usize), 20 + seed as usize)).collect();
        let streams: Vec<_> = members.iter().map(|(new, _)| handle.enqueue(new.clone()).unwrap()).collect();
        for (mut stream, (new, len)) in streams.into_iter().zip(&members) {
            assert_eq!(read_all(&mut stream).0, solo_masked(new, *len, &capacity));
        }
    }
}
