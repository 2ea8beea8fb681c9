//! Receives and converts the results of a step. Buffers are reused from step to step.

use super::sys;
use crate::{Batch, EngineError, Sampled, StepOutput, VectorRequest};
use logits::Logprobs;

const N: usize = sys::PEN_MAX_LOGPROBS;

/// The results that a batch asked for.
pub struct ResultLayout {
    num_sampled: usize,
    logits: bool,
    num_logprobs: Vec<Option<u8>>,       // [num_sampled], or empty if no row asks
    scored: Vec<u8>,                     // [num_scored] likeliest ids
    vectors: Vec<Option<VectorRequest>>, // [num_seqs], or empty if no sequence asks
    num_rows: usize,                     // of the residual stream; 0 if the program has a head
}

impl ResultLayout {
    /// The results of a batch. `has_head`: the engine's layers are the last ones.
    pub fn by(batch: &Batch, has_head: bool) -> Self {
        let any = batch.num_logprobs.iter().any(Option::is_some);
        let num_logprobs = if any { batch.num_logprobs.clone() } else { Vec::new() };
        let scored = batch.scored.iter().map(|scored| scored.num_logprobs).collect();
        let vectors = if batch.vectors.iter().any(Option::is_some) { batch.vectors.clone() } else { Vec::new() };
        let num_rows = if has_head { 0 } else { batch.num_tokens() };
        Self { num_sampled: batch.num_sampled(), logits: batch.want_logits, num_logprobs, scored, vectors, num_rows }
    }

    pub fn num_sampled(&self) -> usize {
        self.num_sampled
    }
}

#[derive(Default)]
pub struct Results {
    pub sampled: Vec<i32>,     // [num_sampled]
    pub logits: Vec<f32>,      // [num_sampled, vocab] if wanted, else empty
    pub logprobs: Vec<f32>,    // [num_sampled, 1 + N] if a row asks, else empty
    pub logprob_ids: Vec<i32>, // [num_sampled, N], parallel to logprobs
    pub scored: Vec<f32>,      // [num_scored, 1 + N]
    pub scored_ids: Vec<i32>,  // [num_scored, N]
    pub pooled: Vec<f32>,      // [num_seqs, hidden] if a sequence asks, else empty
    pub stream: Vec<f32>,      // [num_tokens, hidden] if the program has no head, else empty
}

/// The value of `sampled` before the C side writes it.
const UNWRITTEN: i32 = i32::MIN;

/// The outcome of a row's sampling, from the C side's code.
fn sampled(code: i32, vocab: usize) -> Result<Sampled, EngineError> {
    match code {
        sys::PEN_SAMPLED_NOT_FINITE => Ok(Sampled::NotFinite),
        sys::PEN_SAMPLED_SKIPPED => Ok(Sampled::Skipped),
        id if (0..vocab as i64).contains(&i64::from(id)) => Ok(Sampled::Token(id as u32)),
        _ => Err(EngineError::Device(format!("the device sampled id {code} from a vocabulary of {vocab}"))),
    }
}

/// A row of log-probabilities with its `n` likeliest ids. None if the row has no distribution.
fn logprobs(values: &[f32], ids: &[i32], n: usize, vocab: usize) -> Result<Option<Logprobs>, EngineError> {
    if values[0].is_nan() {
        return Ok(None);
    }
    let n = n.min(vocab);
    if let Some(id) = ids[..n].iter().find(|id| !(0..vocab as i64).contains(&i64::from(**id))) {
        return Err(EngineError::Device(format!("id {id} is among the likeliest of a vocabulary of {vocab}")));
    }
    let top = ids.iter().zip(&values[1..]).take(n).map(|(&id, &logprob)| (id as u32, logprob)).collect();
    Ok(Some(Logprobs { chosen: values[0], top }))
}

impl Results {
    pub fn num_scored(&self) -> usize {
        self.scored_ids.len() / N
    }

    /// Resizes the buffers for a step's results.
    pub fn resize(&mut self, asked: &ResultLayout, vocab: usize, hidden: usize) {
        let rows = |wanted: bool| if wanted { asked.num_sampled } else { 0 };
        let logprob_rows = rows(!asked.num_logprobs.is_empty());
        self.sampled.clear();
        self.sampled.resize(asked.num_sampled, UNWRITTEN);
        self.logits.resize(rows(asked.logits) * vocab, 0.0);
        self.logprobs.resize(logprob_rows * (1 + N), 0.0);
        self.logprob_ids.resize(logprob_rows * N, 0);
        self.scored.resize(asked.scored.len() * (1 + N), 0.0);
        self.scored_ids.resize(asked.scored.len() * N, 0);
        self.pooled.resize(asked.vectors.len() * hidden, 0.0);
        self.stream.resize(asked.num_rows * hidden, 0.0);
    }

    /// Converts the results. Rows that did not ask or got no token still hold values of an earlier step, and are left out.
    pub fn read(&self, asked: &ResultLayout, vocab: usize, out: &mut StepOutput) -> Result<(), EngineError> {
        out.sampled.clear();
        out.logits.clear();
        out.logprobs.clear();
        for &code in &self.sampled {
            out.sampled.push(sampled(code, vocab)?);
        }
        out.logits.extend(self.logits.chunks_exact(vocab).map(<[f32]>::to_vec));
        let rows = self.logprobs.chunks_exact(1 + N).zip(self.logprob_ids.chunks_exact(N));
        for ((n, sampled), (values, ids)) in asked.num_logprobs.iter().zip(&out.sampled).zip(rows) {
            out.logprobs.push(match (n, sampled) {
                (Some(n), Sampled::Token(_)) => logprobs(values, ids, usize::from(*n), vocab)?,
                _ => None,
            });
        }
        out.stream.clone_from(&self.stream);
        self.read_prompt(asked, vocab, out)
    }

    fn read_prompt(&self, asked: &ResultLayout, vocab: usize, out: &mut StepOutput) -> Result<(), EngineError> {
        out.scored.clear();
        let rows = self.scored.chunks_exact(1 + N).zip(self.scored_ids.chunks_exact(N));
        for (&n, (values, ids)) in asked.scored.iter().zip(rows) {
            out.scored.push(logprobs(values, ids, usize::from(n), vocab)?);
        }
        let hidden = self.pooled.len() / asked.vectors.len().max(1);
        let vector = |(vector, row): (&Option<VectorRequest>, &[f32])| match vector {
            Some(VectorRequest { complete: true, .. }) => row.to_vec(),
            _ => Vec::new(),
        };
        out.vectors.clear();
        out.vectors.extend(asked.vectors.iter().zip(self.pooled.chunks_exact(hidden.max(1))).map(vector));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Pooling, Scored};

    #[test]
    fn a_code_is_an_id_or_the_reason_for_none() {
        assert_eq!(sampled(0, 10).unwrap(), Sampled::Token(0));
        assert_eq!(sampled(9, 10).unwrap(), Sampled::Token(9));
        assert_eq!(sampled(-2, 10).unwrap(), Sampled::NotFinite);
        assert_eq!(sampled(-3, 10).unwrap(), Sampled::Skipped);
        for code in [10, -1, -4, i32::MIN] {
            assert!(matches!(sampled(code, 10), Err(EngineError::Device(_))));
        }
    }

    #[test]
    fn log_probabilities_are_read_for_rows_that_asked() {
        let ask = |num_logprobs: Vec<Option<u8>>| {
            let sampled_rows = (0..num_logprobs.len() as u32).collect();
            ResultLayout::by(&Batch { sampled_rows, num_logprobs, ..Batch::default() }, true)
        };
        let (mut results, mut out, vocab) = (Results::default(), StepOutput::default(), 3);
        let asked = ask(vec![Some(2), None, Some(0), Some(20), Some(5), Some(1)]);
        results.resize(&asked, vocab, 2);
        assert_eq!((results.logprobs.len(), results.logprob_ids.len(), results.logits.len()), (6 * 21, 6 * 20, 0));
        results.sampled = vec![1, 2, 0, 0, -2, 1];
        for (row, (values, ids)) in results.logprobs.chunks_mut(21).zip(results.logprob_ids.chunks_mut(20)).enumerate() {
            values[..4].copy_from_slice(&[-2.0 - row as f32, -0.5, -1.0, -7.0]);
            values[4..].fill(f32::NEG_INFINITY);
            ids[..3].copy_from_slice(&[2, 0, 1]);
            ids[3..].fill(-1);
        }
        results.logprobs[5 * 21] = f32::NAN;
        results.read(&asked, vocab, &mut out).unwrap();
        let row = |chosen, top: &[(u32, f32)]| Some(Logprobs { chosen, top: top.to_vec() });
        let all = [(2, -0.5), (0, -1.0), (1, -7.0)];
        assert_eq!(out.logprobs, [row(-2.0, &all[..2]), None, row(-4.0, &[]), row(-5.0, &all), None, None]);
        results.logprob_ids[0] = 3;
        assert!(matches!(results.read(&asked, vocab, &mut out), Err(EngineError::Device(_))));
        let none = ask(vec![None, None]);
        results.resize(&none, vocab, 2);
        assert!(results.read(&none, vocab, &mut out).is_err(), "the device must give every sampled row an id");
        results.sampled = vec![0, 1];
        results.read(&none, vocab, &mut out).unwrap();
        assert_eq!((results.logprobs.len(), out.sampled.len(), out.logprobs.len()), (0, 2, 0));
    }

    #[test]
    fn scores_and_vectors_are_read_for_sequences_that_asked() {
        let mean = |complete| Some(VectorRequest { pooling: Pooling::Mean, complete });
        let scored = [(3, 1), (4, 0)].map(|(row, num_logprobs)| Scored { row, id: 0, num_logprobs }).to_vec();
        let vectors = vec![mean(false), None, mean(true)];
        let asked = ResultLayout::by(&Batch { context_lens: vec![1; 3], vectors, scored, ..Batch::default() }, true);
        let (mut results, mut out) = (Results::default(), StepOutput::default());
        results.resize(&asked, 5, 2);
        assert_eq!((results.num_scored(), results.scored.len(), results.pooled.len()), (2, 42, 6));
        results.scored[..2].copy_from_slice(&[-1.0, -0.5]);
        results.scored_ids[0] = 4;
        results.scored[21] = f32::NAN;
        results.pooled.copy_from_slice(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        results.read(&asked, 5, &mut out).unwrap();
        assert_eq!(out.scored, [Some(Logprobs { chosen: -1.0, top: vec![(4, -0.5)] }), None]);
        assert_eq!(out.vectors, [vec![], vec![], vec![5.0, 6.0]]);
    }
}
