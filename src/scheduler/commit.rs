//! Delivers the results of a step to its sequences.

use std::time::Instant;

use crate::event::{Event, FinishReason};
use crate::mailbox::WakeBatch;
use crate::mask_threads::MaskThreads;
use crate::plan::Scheduled;
use crate::sequences::Sequences;
use engine::{EngineError, Sampled, StepOutput};
use logits::Logprobs;

/// The results of a step for one sequence.
struct StepResults<'a> {
    sampled: Option<Sampled>,
    logprobs: Option<&'a mut Option<Logprobs>>,
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
    let num_sampled = scheduled.iter().filter(|part| part.sampled).count();
    let num_scored: usize = scheduled.iter().map(|part| part.num_scored).sum();
    for (what, got, expected) in [("sampled", output.sampled.len(), num_sampled), ("scored", output.scored.len(), num_scored)] {
        if got != expected {
            return Err(EngineError::InvalidBatch(format!("the step returned {got} results, expected {expected} ({what} rows)")));
        }
    }
    Ok(())
}

/// Sends tokens, scores and vectors to the clients, adds full blocks to the prefix cache, and ends the sequences that are done. The output
/// must have passed [`check`].
pub fn commit(sequences: &mut Sequences, threads: &mut MaskThreads, scheduled: &[Scheduled], output: &mut StepOutput) {
    let now = Instant::now();
    let _batch = WakeBatch::open();
    let (mut num_sampled, mut scores, mut no_vector) = (0, &mut output.scored[..], Vec::new());
    for (i, part) in scheduled.iter().enumerate() {
        let (own_scores, later_scores) = std::mem::take(&mut scores).split_at_mut(part.num_scored);
        scores = later_scores;
        let results = StepResults {
            sampled: part.sampled.then(|| output.sampled[num_sampled]),
            logprobs: if part.sampled { output.logprobs.get_mut(num_sampled) } else { None },
            scores: own_scores,
            vector: output.vectors.get_mut(i).unwrap_or(&mut no_vector),
        };
        num_sampled += usize::from(part.sampled);
        commit_one(sequences, threads, part, results, now);
    }
    output.scored.clear();
}

fn commit_one(sequences: &mut Sequences, threads: &mut MaskThreads, part: &Scheduled, results: StepResults<'_>, now: Instant) {
    let capacity = sequences.blocks.max_tokens();
    // The sequence may have ended or been cancelled after this step was submitted. Its results are dropped.
    let Some(sequence) = sequences.running.get_mut(part.id) else { return };
    let StepResults { sampled, logprobs, scores, vector } = results;
    if scores.iter().any(Option::is_none) || vector.iter().any(|x| !x.is_finite()) {
        return fail(sequences, part, NOT_FINITE);
    }
    if !scores.is_empty() {
        sequence.count_scored(scores.len());
        sequence.send(Event::Scored(scores.iter_mut().filter_map(Option::take).collect()));
    }
    if !vector.is_empty() {
        sequence.send(Event::Pooled(std::mem::take(vector)));
    }
    if sampled == Some(Sampled::NotFinite) {
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
    let Some(Sampled::Token(token)) = sampled else { return fail(sequences, part, "the engine returned no token") };
    if !sequence.collect(token) {
        return sequences.finish(part.id, FinishReason::Stop, now);
    }
    if !sequence.timeline.deliver(now, &sequences.metrics) {
        sequence.end_prefill(now, &sequences.metrics);
    }
    // Count the token before the client can see it.
    sequence.send(Event::Token { id: token, logprobs: logprobs.and_then(Option::take).map(Box::new) });
    if sequence.is_exhausted(capacity) {
        return sequences.finish(part.id, FinishReason::Length, now);
    }
    if let Some(grammar) = &mut sequence.grammar {
        grammar.accept(token, threads);
    }
}

const NOT_FINITE: &str = "the logits are not finite";

fn fail(sequences: &mut Sequences, part: &Scheduled, message: &str) {
    sequences.fail(part.id, Event::Failed(message.to_owned()));
}
