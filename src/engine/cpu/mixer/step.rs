//! [`Step`]: the data of a step that all mixers read.

use super::super::simd::attend::{KvCache, SequenceRows};
use super::super::simd::rows::Rows;
use super::super::state::StateStore;
use crate::check::CheckedBatch;
use crate::rope::Rope;

/// The data of a step that all mixers read.
pub struct Step<'a> {
    pub batch: CheckedBatch<'a>,
    pub sequences: &'a [SequenceRows],
    pub ropes: &'a [Rope],
    /// [num_ropes][num_tokens, rope_dim] cosines, then sines
    pub rotations: &'a [Rows],
    pub cache: &'a mut KvCache,
    pub state: &'a mut StateStore,
}

impl Step<'_> {
    /// The sequences' block tables in the cache group of a layer.
    pub fn tables(&self, layer: usize) -> &[u32] {
        let (group, len) = (self.cache.layer(layer).group, self.batch.num_seqs() * self.batch.max_blocks);
        &self.batch.block_tables[group * len..][..len]
    }
}
