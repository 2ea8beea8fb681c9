//! Computes the outputs of a step: sampled tokens, the scores of a prompt's tokens, and vectors.

use super::engine::CpuEngine;
use crate::{Batch, Input, Masks, Pooling, Sampled, Scored, StepOutput, VectorRequest};
use logits::Logprobs;

/// Rows that are scored at once. The logits of a whole prompt would take more memory than a small model.
const SCORED_AT_ONCE: usize = 32;

/// The row that a sequence sampled last in this step.
#[derive(Clone, Copy)]
struct Previous {
    seq: usize,
    row: usize,
    sampled: Sampled,
}

impl Previous {
    /// Whether the sequence continued with the token that was sampled here.
    fn is_followed(&self, inputs: &[Input]) -> bool {
        matches!((self.sampled, inputs.get(self.row + 1)), (Sampled::Token(id), Some(&Input::Token(next))) if id == next)
    }
}

impl CpuEngine {
    /// Samples the rows of a step in order. The forward pass left the logits of the first `max_slots` rows. The logits of further rows are
    /// computed here, `max_slots` at a time.
    pub(super) fn sample_rows(&mut self, batch: &Batch, inputs: &[Input], masks: &Masks, out: &mut StepOutput) {
        let at_once = self.limits.max_slots.max(1);
        let mut previous: Option<Previous> = None;
        for (k, seq) in batch.sampled_seqs().enumerate() {
            if k > 0 && k.is_multiple_of(at_once) {
                let rows = &batch.sampled_rows[k..batch.num_sampled().min(k + at_once)];
                self.forward.head(rows);
            }
            let skip = previous.is_some_and(|previous| previous.seq == seq && !previous.is_followed(inputs));
            let sampled = self.sample_row(batch, (k, seq), masks, skip, out);
            previous = Some(Previous { seq, row: batch.sampled_rows[k] as usize, sampled });
        }
    }

    /// Samples row `k`, which belongs to sequence `seq`.
    fn sample_row(&mut self, batch: &Batch, (k, seq): (usize, usize), masks: &Masks, skip: bool, out: &mut StepOutput) -> Sampled {
        let logits = self.forward.logits().row_mut(k % self.limits.max_slots.max(1));
        if batch.want_logits {
            out.logits.push(logits.to_vec());
        }
        let mut logprobs = None;
        let sampled = match &mut self.slots[batch.sequence_slots[seq] as usize] {
            Some(slot) if !skip => {
                // Sampling overwrites the row.
                let raw = batch.num_logprobs(k).map(|n| (n, logits.to_vec()));
                slot.last = slot.sampler.sample(logits, masks.row(k, self.limits.vocab_size));
                if let (Some((n, raw)), Some(id)) = (raw, slot.last) {
                    logprobs = Logprobs::new(&raw, id, n);
                }
                slot.last.map_or(Sampled::NotFinite, Sampled::Token)
            }
            _ => Sampled::Skipped,
        };
        if !batch.num_logprobs.is_empty() {
            out.logprobs.push(logprobs);
        }
        out.sampled.push(sampled);
        sampled
    }

    /// Computes the scores. Overwrites the logits of the step, so sampling must be done.
    pub(super) fn score(&mut self, batch: &Batch, out: &mut StepOutput) {
        for scored in batch.scored.chunks(SCORED_AT_ONCE) {
            let rows: Vec<u32> = scored.iter().map(|scored| scored.row).collect();
            let logits = self.forward.head(&rows);
            let logprobs = |(i, s): (usize, &Scored)| Logprobs::new(logits.row(i), s.id, usize::from(s.num_logprobs));
            out.scored.extend(scored.iter().enumerate().map(logprobs));
        }
    }

    /// Adds the step's rows to the vectors of their sequences. Outputs the vectors that are complete.
    pub(super) fn pool(&mut self, batch: &Batch, out: &mut StepOutput) {
        out.vectors = vec![Vec::new(); batch.vectors.len()];
        for (i, vector) in batch.vectors.iter().enumerate() {
            let Some(VectorRequest { pooling, complete }) = *vector else { continue };
            let Some(slot) = &mut self.slots[batch.sequence_slots[i] as usize] else { continue };
            let (first, end) = (batch.cu_seqlens_q[i], batch.cu_seqlens_q[i + 1]);
            let starts = batch.begins(i);
            let of_first = pooling == Pooling::First || pooling == Pooling::Rank && self.limits.bidirectional;
            let rows: Vec<u32> = match pooling {
                Pooling::Mean => (first..end).collect(),
                _ if of_first && starts => vec![first],
                _ if !of_first && complete => vec![end - 1],
                _ => Vec::new(),
            };
            let finished = if pooling == Pooling::Rank { self.forward.classify(&rows) } else { self.forward.finish(&rows) };
            let sum = &mut slot.sum;
            if starts || !of_first && pooling != Pooling::Mean {
                sum.clear();
            }
            for row in 0..rows.len() {
                let row = finished.row(row);
                sum.resize(row.len(), 0.0);
                sum.iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x));
            }
            if complete {
                let count = if pooling == Pooling::Mean { f64::from(batch.context_lens[i]) } else { 1.0 };
                out.vectors[i] = sum.iter().map(|sum| (sum / count) as f32).collect();
            }
        }
    }
}
