//! A draft model beside the test engine.

use std::sync::{Arc, Mutex};

use super::*;
use crate::cache_size::Cost;
use crate::fake::{Control, FakeEngine};
use crate::guesser::Engines;
use crate::new_sequence::NewSequence;
use crate::testing::{Rig, options, sequence};
use crate::{DraftOptions, SchedulerOptions};
use engine::KvCapacity;

/// A scheduler with a draft model, and what the draft model's engine did. `num_blocks`: those of the draft model.
fn rig(num_blocks: usize, edit: impl Fn(DraftEngine) -> DraftEngine) -> (Rig, Arc<Mutex<Control>>) {
    let options = SchedulerOptions { max_batch_tokens: 512, ..options(16, 4) };
    let (engine, control) = FakeEngine::new(KvCapacity::blocks(400, 4), 4, 1);
    let (draft, of_draft) = FakeEngine::new(KvCapacity::blocks(num_blocks, 4), 4, 1);
    let draft = Some(edit(draft.backed(2).into_draft(0.05)));
    (Rig::of_both(Engines { engine: Box::new(engine), draft }, control, options), of_draft)
}

fn counts(rig: &Rig) -> [u64; 2] {
    let metrics = rig.metrics();
    [metrics.spec_decode_num_draft_tokens_total.get(), metrics.spec_decode_num_accepted_tokens_total.get()]
}

/// A prompt of tokens that do not repeat soon.
fn prompt(len: u32) -> Vec<u32> {
    (0..len).map(|i| (i * i + i / 7) % 50).collect()
}

#[test]
fn a_draft_model_guesses_and_reads_each_token_once() {
    let (mut rig, draft) = rig(400, |draft| draft);
    rig.run(sequence(prompt(300), 200));
    let [drafted, right] = counts(&rig);
    assert!(right > 50 && drafted > right, "{right} of {drafted}");
    let control = draft.lock().unwrap();
    assert!(control.max_rows <= MAX_ROWS, "a long prompt is read in parts of {} rows", control.max_rows);
    // 500 tokens, and the wrong guesses
    assert!(control.num_rows < 500 + drafted as usize, "{} rows", control.num_rows);
    assert!(rig.control.lock().unwrap().num_steps < 170, "steps for 200 tokens");
}

#[test]
fn a_prefix_is_not_read_again_under_the_same_salt() {
    let (mut rig, draft) = rig(400, |draft| draft);
    let mut read = |new: NewSequence| {
        let before = draft.lock().unwrap().num_rows;
        rig.run(new);
        draft.lock().unwrap().num_rows - before
    };
    let first = read(sequence(prompt(200), 8));
    assert!(first >= 200, "{first}");
    let again = read(sequence(prompt(200), 8));
    assert!(again < 40, "{again}");
    let other = read(NewSequence { cache_salt: 3, ..sequence(prompt(200), 8) });
    assert!(other >= 200, "{other}");
}

#[test]
fn a_draft_model_that_fails_costs_no_request() {
    let errors: [fn() -> Option<EngineError>; 3] =
        [|| Some(EngineError::Device("gone".into())), || Some(EngineError::OutOfMemory("no room".into())), || None];
    for error in errors {
        for in_collect in [false, true] {
            let (mut rig, draft) = rig(400, |draft| draft);
            {
                let mut control = draft.lock().unwrap();
                (control.fault, control.fault_in_collect) = (Some((7, error())), in_collect);
            }
            let clients: Vec<usize> = (0..3).map(|i| rig.enqueue(sequence(prompt(20 + i), 60))).collect();
            rig.finish();
            clients.into_iter().for_each(|client| rig.assert_solo(client));
            assert_eq!(draft.lock().unwrap().num_steps, 7, "it is not asked again");
        }
    }
}

#[test]
fn what_the_draft_model_cannot_read_is_not_drafted_by_it() {
    let steps = |num_blocks, edit: fn(DraftEngine) -> DraftEngine, new: NewSequence| {
        let (mut rig, draft) = rig(num_blocks, edit);
        rig.run(new);
        draft.lock().unwrap().num_steps
    };
    let new = || sequence(prompt(60), 60);
    assert!(steps(400, |draft| draft, new()) > 10);
    assert_eq!(steps(10, |draft| draft, new()), 0, "no memory");
    assert_eq!(steps(400, |draft| DraftEngine { context: 50, ..draft }, new()), 0, "a longer context than it has");
    assert_eq!(steps(400, |draft| DraftEngine { num_ids: 30, ..draft }, new()), 0, "an id that it lacks");
    let none = DraftOptions { most: Some(0), ..DraftOptions::default() };
    assert_eq!(steps(400, |draft| draft, NewSequence { drafts: none, ..new() }), 0, "a request that wants no drafts");
}

#[test]
fn several_sequences_are_guessed_in_one_pass_and_a_crowd_in_none() {
    let (mut rig, draft) = rig(400, |draft| draft);
    let clients: Vec<usize> = (0..4).map(|i| rig.enqueue(sequence(prompt(20 + i), 60))).collect();
    rig.finish();
    clients.into_iter().for_each(|client| rig.assert_solo(client));
    let rows = |control: &Control| (control.num_steps as usize, control.num_rows);
    let (num_steps, num_rows) = rows(&draft.lock().unwrap());
    assert!(num_rows > 2 * num_steps, "{num_rows} rows in {num_steps} passes");
    // Passes that take as long as a step never pay for themselves.
    let (mut rig, draft) = self::rig(400, |draft| DraftEngine { pass: 30.0, ..draft });
    rig.run(sequence(prompt(20), 60));
    assert_eq!(draft.lock().unwrap().num_steps, 0);
}

#[test]
fn the_memory_of_a_draft_model_is_given_back() {
    let (mut rig, draft) = rig(400, |draft| draft);
    rig.run(sequence(prompt(100), 20));
    rig.scheduler.give_back(u64::MAX, Cost::Contents).unwrap();
    let before = draft.lock().unwrap().num_rows;
    rig.run(sequence(prompt(100), 20));
    assert!(draft.lock().unwrap().num_rows - before >= 100, "its cache was empty");
}
