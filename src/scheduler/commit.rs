//! Delivers the results of a step to its sequences.

use std::time::Instant;

use crate::event::{Event, FinishReason};
use crate::mailbox::WakeBatch;
use crate::plan::Scheduled;
use crate::sequences::Sequences;
use engine::{EngineError, Sampled, StepOutput};
use logits::Logprobs;

/// A sequence that goes on after a step, with its new tokens.
#[derive(Debug)]
pub struct Advanced {
    pub id: u64,
    pub tokens: Vec<u32>,
}

/// The results of a step for one sequence.
struct StepResults<'a> {
    /// One result per sampled row: that of the last row, then those of the drafts.
    sampled: &'a [Sampled],
    /// Empty if no row asked.
    logprobs: &'a mut [Option<Logprobs>],
    /// Scores of prompt tokens. None if a row's logits were not finite.
    scores: &'a mut [Option<Logprobs>],
    /// Empty unless the prompt's vector is complete.
    vector: &'a mut Vec<f32>,
}

/// Checks that a step returned one result per sampled and per scored row.
///
/// # Errors
/// [`EngineError::InvalidBatch`] with the actual and the expected number.
pub fn check(scheduled: &[Scheduled], output: &StepOutput) -> Result<(), EngineError> {
    let num_sampled = scheduled.iter().map(Scheduled::num_sampled).sum();
    let num_scored: usize = scheduled.iter().map(|part| part.num_scored).sum();
    for (what, got, expected) in [("sampled", output.sampled.len(), num_sampled), ("scored", output.scored.len(), num_scored)] {
        if got != expected {
            return Err(EngineError::InvalidBatch(format!("the step returned {got} results, expected {expected} ({what} rows)")));
        }
    }
    Ok(())
}

/// Sends tokens, scores and vectors to the clients, adds full blocks to the prefix cache, and ends the sequences that are done. The output
/// must have passed [`check`]. Adds the sequences that go on to `advanced`, with their new tokens.
pub fn commit(sequences: &mut Sequences, advanced: &mut Vec<Advanced>, scheduled: &[Scheduled], output: &mut StepOutput) {
    let now = Instant::now();
    let _batch = WakeBatch::open();
    let (mut sampled, mut logprobs) = (&output.sampled[..], &mut output.logprobs[..]);
    let (mut scores, mut no_vector) = (&mut output.scored[..], Vec::new());
    for (i, part) in scheduled.iter().enumerate() {
        let (own_scores, later_scores) = std::mem::take(&mut scores).split_at_mut(part.num_scored);
        scores = later_scores;
        let (own_sampled, later_sampled) = sampled.split_at(part.num_sampled());
        let num_logprobs = part.num_sampled().min(logprobs.len());
        let (own_logprobs, later_logprobs) = std::mem::take(&mut logprobs).split_at_mut(num_logprobs);
        (sampled, logprobs) = (later_sampled, later_logprobs);
        let results = StepResults {
            sampled: own_sampled,
            logprobs: own_logprobs,
            scores: own_scores,
            vector: output.vectors.get_mut(i).unwrap_or(&mut no_vector),
        };
        commit_one(sequences, advanced, part, results, now);
    }
    output.scored.clear();
}

fn commit_one(sequences: &mut Sequences, advanced: &mut Vec<Advanced>, part: &Scheduled, mut results: StepResults<'_>, now: Instant) {
    // The sequence may have ended or been cancelled after this step was submitted. Its results are dropped.
    let Some(sequence) = sequences.running.get_mut(part.id) else { return };
    let StepResults { scores, vector, .. } = &mut results;
    if scores.iter().any(Option::is_none) || vector.iter().any(|x| !x.is_finite()) {
        return fail(sequences, part, NOT_FINITE);
    }
    if !scores.is_empty() {
        sequence.count_scored(scores.len());
        sequence.send(Event::Scored(scores.iter_mut().filter_map(Option::take).collect()));
    }
    if !vector.is_empty() {
        sequence.send(Event::Pooled(std::mem::take(*vector)));
    }
    if results.sampled.first() == Some(&Sampled::NotFinite) {
        return fail(sequences, part, NOT_FINITE);
    }
    let num_final = part.end - usize::from(part.withheld);
    sequence.commit_cache(num_final, &mut sequences.blocks);
    sequence.timeline.progress().set_computed(part.end);
    if !part.sampled || part.withheld {
        if !sequence.generates() && part.end == sequence.prompt().len() {
            sequences.finish(part.id, FinishReason::Length, now);
        }
        return;
    }
    commit_tokens(sequences, advanced, part, results, now);
}

/// Why a sequence ends with a token.
enum End {
    Finished(FinishReason),
    Failed(&'static str),
}

/// Delivers the sampled tokens: that of the last row, and one per accepted draft.
fn commit_tokens(sequences: &mut Sequences, advanced: &mut Vec<Advanced>, part: &Scheduled, results: StepResults<'_>, now: Instant) {
    let Sequences { running, blocks, metrics, .. } = sequences;
    let Some(sequence) = running.get_mut(part.id) else { return };
    let capacity = blocks.max_tokens();
    // Count drafts and tokens before the client can see the tokens.
    let is_accepted = |pair: &&[Sampled]| pair[1] != Sampled::Skipped && !sequence.is_stopped_by(pair[0]);
    let num_accepted = results.sampled.windows(2).take_while(is_accepted).count();
    if part.num_drafts > 0 {
        sequence.count_drafts((part.num_drafts, num_accepted), metrics);
    }
    if results.sampled.get(num_accepted + 1).is_some_and(|&sampled| sampled != Sampled::Skipped) {
        // Drafts behind a stop id were right, but do not count.
        sequence.cache.state_is_ahead();
    }
    let (mut tokens, mut end) = (Vec::with_capacity(1 + num_accepted), None);
    let mut logprobs = results.logprobs.iter_mut();
    for (row, &sampled) in results.sampled[..=num_accepted].iter().enumerate() {
        if row == part.num_masked {
            // The slot has sampled a token without its mask, so the row runs again.
            sequence.revert(0, false, true);
            break;
        }
        if row > 0 {
            // The draft in this row was right.
            sequence.advance(1, true);
            sequence.commit_cache(part.end + row, blocks);
        }
        let Sampled::Token(token) = sampled else {
            end = Some(End::Failed(if row > 0 { NOT_FINITE } else { "the engine returned no token" }));
            break;
        };
        if !sequence.collect(token) {
            end = Some(End::Finished(FinishReason::Stop));
            break;
        }
        if !sequence.timeline.deliver(now, metrics) {
            sequence.end_prefill(now, metrics);
        }
        sequence.send(Event::Token { id: token, logprobs: logprobs.next().and_then(Option::take).map(Box::new) });
        tokens.push(token);
        if sequence.is_exhausted(capacity) {
            end = Some(End::Finished(FinishReason::Length));
            break;
        }
    }
    match end {
        Some(End::Finished(reason)) => sequences.finish(part.id, reason, now),
        Some(End::Failed(message)) => fail(sequences, part, message),
        None => {
            sequence.guess(tokens.len(), capacity);
            advanced.push(Advanced { id: part.id, tokens });
        }
    }
}

const NOT_FINITE: &str = "the logits are not finite";

fn fail(sequences: &mut Sequences, part: &Scheduled, message: &str) {
    sequences.fail(part.id, Event::Failed(message.to_owned()));
}
