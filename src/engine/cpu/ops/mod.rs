//! Lowers a program to the CPU's kernels: each op becomes a [`Kernel`] that holds its weights in the forms that it needs.

mod attention;
mod elementwise;
mod embed;
mod experts;
mod heads;
mod linear;
mod norm;
mod recurrence;
mod streams;
mod tensors;

use super::simd::Kernels;
use super::simd::attend::{KvCache, SequenceRows};
use super::simd::pool::ThreadPool;
use super::simd::rows::{Rows, Scratch};
use super::state::StateStore;
use crate::check::CheckedBatch;
use crate::program::{BufferId, Op, Part, Program};
use crate::rope::Rope;
use crate::{EngineError, Input};
use attention::AttentionBuffers;
use experts::ExpertsBuffers;
use model::Weights;
pub use tensors::Tensors;

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
    pub ropes: &'a [Rope],
    /// [num_ropes][num_tokens, rope_dim] cosines, then sines
    pub rotations: &'a [Rows],
    pub cache: &'a mut KvCache,
    pub state: &'a mut StateStore,
}

/// The buffers of a program, and what ops need while they run.
pub struct Buffers {
    rows: Vec<Rows>,
    /// The rows of each buffer per row of the step. Those of one head lie together.
    per_row: Vec<usize>,
    num_rows: usize,
    attention: AttentionBuffers,
    experts: ExpertsBuffers,
}

impl Buffers {
    pub fn new(program: &Program) -> Self {
        Self {
            rows: program.buffers.iter().map(|buffer| Rows::new(buffer.width)).collect(),
            per_row: program.buffers.iter().map(|buffer| buffer.per_row).collect(),
            num_rows: 0,
            attention: AttentionBuffers::default(),
            experts: ExpertsBuffers::default(),
        }
    }

    /// Begins a step of `num_rows` rows.
    pub fn begin(&mut self, num_rows: usize) {
        self.num_rows = num_rows;
    }

    pub fn rows(&self, id: BufferId) -> &Rows {
        &self.rows[id.0]
    }

    /// Takes a buffer, with room for the step's rows. [`Buffers::put`] returns it.
    fn take(&mut self, id: BufferId) -> Rows {
        let mut rows = std::mem::take(&mut self.rows[id.0]);
        rows.resize(self.num_rows * self.per_row[id.0]);
        rows
    }

    fn put(&mut self, id: BufferId, rows: Rows) {
        self.rows[id.0] = rows;
    }

    fn swap(&mut self, a: BufferId, b: BufferId) {
        self.rows.swap(a.0, b.0);
    }

    /// The elements of a head in row `i` of the step.
    fn head(&self, part: Part, (i, head): (usize, usize), dim: usize) -> &[f32] {
        let rows = &self.rows[part.buffer.0];
        match self.per_row[part.buffer.0] {
            1 => &rows.row(i)[part.first + head * part.stride..][..dim],
            _ => &rows.row(head * self.num_rows + i)[part.first..][..dim],
        }
    }

    /// Calls `f(row of the step, head, its elements)` for the heads of a buffer that was taken, on the pool's threads.
    fn for_heads(
        &self,
        pool: &mut ThreadPool,
        (rows, part): (&mut Rows, Part),
        [heads, dim]: [usize; 2],
        f: impl Fn(usize, usize, &mut [f32]) + Sync,
    ) {
        let n = self.num_rows;
        match self.per_row[part.buffer.0] {
            1 => rows.for_each(pool, |i, row| {
                for head in 0..heads {
                    f(i, head, &mut row[part.first + head * part.stride..][..dim]);
                }
            }),
            _ => rows.for_each(pool, |at, row| f(at % n, at / n, &mut row[part.first..][..dim])),
        }
    }
}

/// Makes the kernels of a program.
///
/// # Errors
/// [`EngineError::Unsupported`] for a tensor type that the CPU's kernels do not know.
pub fn lower(tensors: &Tensors) -> Result<Vec<Box<dyn Kernel>>, EngineError> {
    tensors.program.ops.iter().map(|step| kernel(&step.op, tensors)).collect()
}

fn kernel(op: &Op, tensors: &Tensors) -> Result<Box<dyn Kernel>, EngineError> {
    Ok(match op {
        Op::Embed(op) => Box::new(embed::EmbedKernel::new(op, tensors)?),
        Op::Norm(op) => Box::new(norm::NormKernel::new(op, tensors)),
        Op::ToLength(op) => Box::new(norm::ToLengthKernel(*op)),
        Op::Linear(op) => Box::new(linear::LinearKernel::new(op, tensors)?),
        Op::EachHead(op) => Box::new(linear::EachHeadKernel::new(op, tensors)?),
        Op::Activate(op) => Box::new(elementwise::ActivateKernel::new(op, tensors)),
        Op::Map(op) => Box::new(elementwise::MapKernel::new(op, tensors)),
        Op::Heads(op) => Box::new(heads::HeadsKernel::new(op, tensors)),
        Op::Attention(op) => Box::new(attention::AttentionKernel::new(op, tensors)),
        Op::Convolve(op) => Box::new(recurrence::ConvolveKernel::new(op, tensors)),
        Op::Scan(op) => Box::new(recurrence::ScanKernel::new(op, tensors)),
        Op::Delta(op) => Box::new(recurrence::DeltaKernel::new(op, tensors)),
        Op::Experts(op) => Box::new(experts::ExpertsKernel::new(op, tensors)?),
        Op::Predict(op) => Box::new(streams::PredictKernel::new(op, tensors)),
        Op::Correct(op) => Box::new(streams::CorrectKernel::new(op, tensors)),
        Op::Match(op) => Box::new(streams::MatchKernel(*op)),
    })
}
