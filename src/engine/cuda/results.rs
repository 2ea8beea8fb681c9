//! What comes back from a step. Buffers are kept from step to step.

use super::sys;
use crate::engine::{Batch, EngineError, Pool, Sampled, StepOutput};
use crate::logits::Logprobs;

const N: usize = sys::PEN_MAX_LOGPROBS;

/// What a batch asked for.
pub struct Asked {
    num_seqs: usize,
    logits: bool,
    num_logprobs: Vec<Option<u8>>, // [num_seqs] or empty: no sequence asks
    scored: Vec<u8>,               // [num_scored] likeliest ids
    pools: Vec<Option<Pool>>,      // [num_seqs] or empty: no sequence asks
}

impl Asked {
    pub fn by(batch: &Batch) -> Self {
        let any = batch.num_logprobs.iter().any(Option::is_some);
        let num_logprobs = if any { batch.num_logprobs.clone() } else { Vec::new() };
        let scored = batch.scored.iter().map(|scored| scored.num_logprobs).collect();
        let pools = if batch.pools.iter().any(Option::is_some) { batch.pools.clone() } else { Vec::new() };
        Self { num_seqs: batch.num_seqs(), logits: batch.want_logits, num_logprobs, scored, pools }
    }

    pub fn num_seqs(&self) -> usize {
        self.num_seqs
    }
}

#[derive(Default)]
pub struct Results {
    pub sampled: Vec<i32>,     // [num_seqs]
    pub logits: Vec<f32>,      // [num_seqs, vocab] where wanted, else empty
    pub logprobs: Vec<f32>,    // [num_seqs, 1 + N] where a sequence asked, else empty
    pub logprob_ids: Vec<i32>, // [num_seqs, N], as logprobs
    pub scored: Vec<f32>,      // [num_scored, 1 + N]
    pub scored_ids: Vec<i32>,  // [num_scored, N]
    pub pooled: Vec<f32>,      // [num_seqs, hidden] where a sequence asked, else empty
}

/// What a sequence got, from its number.
fn sampled(code: i32, vocab: usize) -> Result<Sampled, EngineError> {
    match code {
        sys::PEN_SAMPLED_NONE => Ok(Sampled::None),
        sys::PEN_SAMPLED_NOT_FINITE => Ok(Sampled::NotFinite),
        id if (0..vocab as i64).contains(&i64::from(id)) => Ok(Sampled::Token(id as u32)),
        _ => Err(EngineError::Device(format!("it sampled {code} from a vocabulary of {vocab}"))),
    }
}

/// A row of log-probabilities, of which the `n` likeliest were asked for. None: the row was no distribution.
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

    /// Makes room for a step's results.
    pub fn resize(&mut self, asked: &Asked, vocab: usize, hidden: usize) {
        let rows = |wanted: bool| if wanted { asked.num_seqs } else { 0 };
        let logprob_rows = rows(!asked.num_logprobs.is_empty());
        self.sampled.clear();
        self.sampled.resize(asked.num_seqs, sys::PEN_SAMPLED_NONE);
        self.logits.resize(rows(asked.logits) * vocab, 0.0);
        self.logprobs.resize(logprob_rows * (1 + N), 0.0);
        self.logprob_ids.resize(logprob_rows * N, 0);
        self.scored.resize(asked.scored.len() * (1 + N), 0.0);
        self.scored_ids.resize(asked.scored.len() * N, 0);
        self.pooled.resize(asked.pools.len() * hidden, 0.0);
    }

    /// Hands them on. Rows that did not ask or got no token hold what an earlier step left.
    pub fn read(&self, asked: &Asked, vocab: usize, out: &mut StepOutput) -> Result<(), EngineError> {
        out.sampled.clear();
        for &code in &self.sampled {
            out.sampled.push(sampled(code, vocab)?);
        }
        let rows = self.logits.chunks_exact(vocab).zip(&out.sampled);
        out.logits.clear();
        out.logits.extend(rows.map(|(row, sampled)| if *sampled == Sampled::None { Vec::new() } else { row.to_vec() }));
        out.logprobs.clear();
        let rows = self.logprobs.chunks_exact(1 + N).zip(self.logprob_ids.chunks_exact(N));
        for ((asked, (values, ids)), sampled) in asked.num_logprobs.iter().zip(rows).zip(&out.sampled) {
            out.logprobs.push(match (asked, sampled) {
                (Some(n), Sampled::Token(_)) => logprobs(values, ids, usize::from(*n), vocab)?,
                _ => None,
            });
        }
        self.read_prompt(asked, vocab, out)
    }

    fn read_prompt(&self, asked: &Asked, vocab: usize, out: &mut StepOutput) -> Result<(), EngineError> {
        out.scored.clear();
        let rows = self.scored.chunks_exact(1 + N).zip(self.scored_ids.chunks_exact(N));
        for (&n, (values, ids)) in asked.scored.iter().zip(rows) {
            out.scored.push(logprobs(values, ids, usize::from(n), vocab)?);
        }
        let hidden = self.pooled.len() / asked.pools.len().max(1);
        let vector = |(pool, row): (&Option<Pool>, &[f32])| pool.filter(|pool| pool.complete).map_or_else(Vec::new, |_| row.to_vec());
        out.pooled.clear();
        out.pooled.extend(asked.pools.iter().zip(self.pooled.chunks_exact(hidden.max(1))).map(vector));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Pooling, Scored};

    #[test]
    fn a_code_is_an_id_or_says_why_not() {
        assert_eq!(sampled(0, 10).unwrap(), Sampled::Token(0));
        assert_eq!(sampled(9, 10).unwrap(), Sampled::Token(9));
        assert_eq!(sampled(-1, 10).unwrap(), Sampled::None);
        assert_eq!(sampled(-2, 10).unwrap(), Sampled::NotFinite);
        for code in [10, -3, i32::MIN] {
            assert!(matches!(sampled(code, 10), Err(EngineError::Device(_))));
        }
    }

    #[test]
    fn log_probabilities_are_read_where_they_were_asked_for() {
        let ask = |num_logprobs: Vec<Option<u8>>| {
            Asked::by(&Batch { context_lens: vec![1; num_logprobs.len()], num_logprobs, ..Batch::default() })
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
        let nobody = ask(vec![None, None]);
        results.resize(&nobody, vocab, 2);
        results.read(&nobody, vocab, &mut out).unwrap();
        assert_eq!((results.logprobs.len(), out.sampled.len(), out.logprobs.len()), (0, 2, 0));
    }

    #[test]
    fn scores_and_vectors_are_read_where_they_were_asked_for() {
        let pool = |complete| Some(Pool { kind: Pooling::Mean, complete });
        let scored = [(3, 1), (4, 0)].map(|(row, num_logprobs)| Scored { row, id: 0, num_logprobs }).to_vec();
        let asked = Asked::by(&Batch { context_lens: vec![1; 3], pools: vec![pool(false), None, pool(true)], scored, ..Batch::default() });
        let (mut results, mut out) = (Results::default(), StepOutput::default());
        results.resize(&asked, 5, 2);
        assert_eq!((results.num_scored(), results.scored.len(), results.pooled.len()), (2, 42, 6));
        results.scored[..2].copy_from_slice(&[-1.0, -0.5]);
        results.scored_ids[0] = 4;
        results.scored[21] = f32::NAN;
        results.pooled.copy_from_slice(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        results.read(&asked, 5, &mut out).unwrap();
        assert_eq!(out.scored, [Some(Logprobs { chosen: -1.0, top: vec![(4, -0.5)] }), None]);
        assert_eq!(out.pooled, [vec![], vec![], vec![5.0, 6.0]]);
    }
}
