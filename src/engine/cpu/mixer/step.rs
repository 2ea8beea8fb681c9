//! What a step brings to the mixers.

use super::super::simd::rows::{KvCache, Rows, SequenceRows};
use super::super::state::StateStore;
use crate::Batch;
use crate::rope::Rope;

/// What a step brings to the mixers.
pub struct Step<'a> {
    pub batch: &'a Batch,
    pub sequences: &'a [SequenceRows<'a>],
    pub ropes: &'a [Rope],
    /// [num_ropes][num_tokens, rope_dim] cosines, then sines
    pub turns: &'a [Rows],
    pub cache: &'a mut KvCache,
    pub state: &'a mut StateStore,
}
