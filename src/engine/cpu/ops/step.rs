//! [`Kernel`]: an op that is ready to run, and [`Step`]: what it runs with.

use super::super::adapters::{AdaptedRows, Adapters};
use super::super::simd::Kernels;
use super::super::simd::attend::{KvCache, SequenceRows};
use super::super::simd::pool::ThreadPool;
use super::super::simd::rows::{Rows, Scratch};
use super::super::state::StateStore;
use super::buffers::Buffers;
use crate::Input;
use crate::check::CheckedBatch;
use crate::picture_layout::PictureLayout;
use crate::rope::Rope;
use model::Weights;

/// An op with its weights.
pub trait Kernel: Send {
    fn run(&self, step: &mut Step);
}

/// The resources that every kernel needs, and the data of a step.
pub struct Step<'a> {
    pub kernels: &'static Kernels,
    pub pool: &'a mut ThreadPool,
    pub scratch: &'a mut Scratch,
    pub weights: &'a Weights,
    pub buffers: &'a mut Buffers,
    pub batch: CheckedBatch<'a>,
    /// The batch's inputs: tokens and embeddings.
    pub inputs: &'a [Input],
    pub sequences: &'a [SequenceRows],
    /// The pictures of an encoder's step.
    pub pictures: &'a PictureLayout,
    pub ropes: &'a [Rope],
    /// [num_ropes][num_tokens, rope_dim] cosines, then sines
    pub rotations: &'a [Rows],
    pub adapters: &'a Adapters,
    pub adapted: &'a AdaptedRows,
    pub cache: &'a mut KvCache,
    pub state: &'a mut StateStore,
}
