//! What a step gives beside sampled tokens: scores of a prompt's tokens, and vectors.

use super::CpuEngine;
use crate::engine::{Batch, EngineError, Pool, Pooling, StepOutput};
use crate::logits::Logprobs;

/// Rows whose logits are there at once: those of a whole prompt would take more memory than a small model.
const SCORED_AT_ONCE: usize = 32;

impl CpuEngine {
    /// Overwrites the logits of the step, which must have been sampled from.
    pub(super) fn score(&mut self, batch: &Batch, out: &mut StepOutput) {
        for scored in batch.scored.chunks(SCORED_AT_ONCE) {
            let rows: Vec<usize> = scored.iter().map(|scored| scored.row as usize).collect();
            let logits = self.forward.head(&rows);
            let logprobs = |(i, s): (usize, &crate::engine::Scored)| Logprobs::new(logits.row(i), s.id, usize::from(s.num_logprobs));
            out.scored.extend(scored.iter().enumerate().map(logprobs));
        }
    }

    pub(super) fn pool(&mut self, batch: &Batch, out: &mut StepOutput) -> Result<(), EngineError> {
        out.pooled = vec![Vec::new(); batch.pools.len()];
        for (i, pool) in batch.pools.iter().enumerate() {
            let Some(Pool { kind, complete }) = *pool else { continue };
            let (first, end) = (batch.cu_seqlens_q[i] as usize, batch.cu_seqlens_q[i + 1] as usize);
            let starts = batch.positions[first] == 0;
            let rows: Vec<usize> = match kind {
                Pooling::First if starts => vec![first],
                Pooling::Last if complete => vec![end - 1],
                Pooling::Mean => (first..end).collect(),
                Pooling::First | Pooling::Last => Vec::new(),
            };
            let finished = self.forward.finish(&rows);
            let slot = self.slots[batch.slots[i] as usize].as_mut();
            let sum = &mut slot.ok_or_else(|| EngineError::InvalidBatch("a slot was not initialised".into()))?.pooled;
            if starts || kind == Pooling::Last {
                sum.clear();
            }
            for row in 0..rows.len() {
                let row = finished.row(row);
                sum.resize(row.len(), 0.0);
                sum.iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x));
            }
            if complete {
                let count = if kind == Pooling::Mean { f64::from(batch.context_lens[i]) } else { 1.0 };
                out.pooled[i] = sum.iter().map(|sum| (sum / count) as f32).collect();
            }
        }
        Ok(())
    }
}
