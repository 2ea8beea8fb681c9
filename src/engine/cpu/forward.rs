//! Runs the forward pass: the kernels of a program, one after another.

use super::matrix::Mat;
use super::ops::{self, Buffers, Kernel, Step, Tensors};
use super::simd::Kernels;
use super::simd::attend::{KvCache, SequenceRows};
use super::simd::norm::Norm;
use super::simd::pool::ThreadPool;
use super::simd::rows::{Rows, Scratch};
use super::state::StateStore;
use crate::check::CheckedBatch;
use crate::program::{self, BufferId, Program};
use crate::rope::Rope;
use crate::{EngineError, Input};
use model::{ModelSpec, Weights};

/// What follows the last layer.
struct Head {
    norm: Option<Norm>,
    output: Dense,
    classifier: Option<Classifier>,
}

/// A matrix with its bias.
struct Dense {
    matrix: Mat,
    bias: Option<Vec<f32>>,
}

/// The classifier that scores a row: output(tanh(dense(x))), or output(x) without a dense layer.
struct Classifier {
    dense: Option<Dense>,
    output: Dense,
}

pub struct Forward {
    kernels: &'static Kernels,
    weights: Weights,
    ropes: Vec<Rope>,
    ops: Vec<Box<dyn Kernel>>,
    head: Head,
    stream: BufferId,
    pub(super) cache: KvCache,
    pub(super) state: StateStore,
    pool: ThreadPool,
    scratch: Scratch,
    buffers: Buffers,
    rotations: Vec<Rows>, // [num_ropes][num_tokens, rope_dim] cosines, then sines
    last: Rows,           // [rows of the head, hidden]
    dense: Rows,          // [rows, hidden] of a classifier
    logits: Rows,         // [rows of the head, vocab]
    scores: Rows,         // [rows, classes] of a classifier
}

impl Head {
    fn load(head: &program::Head, tensors: &Tensors) -> Result<Self, EngineError> {
        let dense =
            |(matrix, bias)| -> Result<Dense, EngineError> { Ok(Dense { matrix: tensors.matrix(matrix)?, bias: tensors.optional(bias) }) };
        let classifier = head.classifier.map(|classifier| -> Result<_, EngineError> {
            Ok(Classifier { dense: classifier.dense.map(dense).transpose()?, output: dense(classifier.output)? })
        });
        let norm = head.norm.map(|norm| tensors.norm(&norm, tensors.weights.spec.hidden_dim));
        Ok(Self { norm, output: dense((head.matrix, head.bias))?, classifier: classifier.transpose()? })
    }
}

impl Dense {
    /// out = x · Wᵀ + bias
    fn run(&self, (kernels, weights): (&Kernels, &Weights), pool: &mut ThreadPool, scratch: &mut Scratch, x: &Rows, out: &mut Rows) {
        kernels.linear(pool, scratch, x, false, vec![(self.matrix.matrix(weights), &mut *out)]);
        if let Some(bias) = &self.bias {
            out.for_each(pool, |_, row| kernels.add_to(row, bias));
        }
    }
}

impl Forward {
    /// Makes the kernels of a model. `ropes` holds the rotations, and the index of each layer's.
    ///
    /// # Errors
    /// [`EngineError::Tensor`] for a missing tensor or shapes that do not fit. [`EngineError::Unsupported`] for a tensor type that the
    /// kernels do not know.
    pub fn new(
        kernels: &'static Kernels,
        weights: Weights,
        (ropes, rope_of): (Vec<Rope>, Vec<Option<usize>>),
        (cache, state): (KvCache, StateStore),
        pool: ThreadPool,
    ) -> Result<Self, EngineError> {
        let program = Program::new(&weights, &rope_of)?;
        let tensors = Tensors { program: &program, kernels, weights: &weights };
        let head = program.head.ok_or_else(|| EngineError::Unsupported("a program without a head".into()))?;
        let (ops, head) = (ops::lower(&tensors)?, Head::load(&head, &tensors)?);
        let hidden = weights.spec.hidden_dim;
        Ok(Self {
            ops,
            head,
            stream: program.stream,
            buffers: Buffers::new(&program),
            rotations: ropes.iter().map(|rope| Rows::new(rope.dim())).collect(),
            last: Rows::new(hidden),
            dense: Rows::new(hidden),
            logits: Rows::new(weights.spec.vocab_size),
            scores: Rows::default(),
            scratch: Scratch::default(),
            kernels,
            weights,
            ropes,
            cache,
            state,
            pool,
        })
    }

    pub fn spec(&self) -> &ModelSpec {
        &self.weights.spec
    }

    /// The logits that [`Forward::head`] computed last, one row per requested row [vocab].
    pub fn logits(&mut self) -> &mut Rows {
        &mut self.logits
    }

    /// Runs a batch. `inputs` are its resolved inputs: tokens and embeddings. Leaves the logits of the first `max_logits` sampled rows.
    pub fn run(&mut self, batch: CheckedBatch, inputs: &[Input], max_logits: usize) {
        let sequences: Vec<SequenceRows> = (0..batch.num_seqs())
            .map(|i| {
                let rows = batch.rows(i);
                SequenceRows { first_row: rows.start, num_rows: rows.len(), first_position: batch.context_lens[i] as usize - rows.len() }
            })
            .collect();
        batch.copies.iter().for_each(|&(from, to)| self.cache.copy_block(from, to));
        self.state.begin_step(&batch);
        self.buffers.begin(inputs.len());
        for (rope, rotations) in self.ropes.iter().zip(&mut self.rotations) {
            rotations.resize(inputs.len());
            rotations.for_each(&mut self.pool, |i, row| rope.rotation(batch.positions[i], row));
        }
        let step = &mut Step {
            kernels: self.kernels,
            pool: &mut self.pool,
            scratch: &mut self.scratch,
            weights: &self.weights,
            buffers: &mut self.buffers,
            batch,
            inputs,
            sequences: &sequences,
            ropes: &self.ropes,
            rotations: &self.rotations,
            cache: &mut self.cache,
            state: &mut self.state,
        };
        self.ops.iter().for_each(|op| op.run(step));
        self.head(&batch.sampled_rows[..batch.num_sampled().min(max_logits)]);
    }

    /// Computes the logits of rows of the latest batch.
    pub fn head(&mut self, rows: &[u32]) -> &mut Rows {
        self.finish(rows);
        let Self { head, weights, kernels, pool, scratch, last, logits, .. } = self;
        let spec = &weights.spec;
        logits.resize(rows.len());
        head.output.run((kernels, weights), pool, scratch, last, logits);
        if spec.logit_scale != 1.0 {
            logits.for_each(pool, |_, row| row.iter_mut().for_each(|x| *x *= spec.logit_scale));
        }
        if let Some(cap) = spec.final_soft_cap {
            logits.for_each(pool, |_, row| kernels.cap(row, cap));
        }
        logits
    }

    /// Computes the classifier's scores of rows of the latest batch [rows, classes]. Returns the rows themselves if the model has no
    /// classifier.
    pub fn classify(&mut self, rows: &[u32]) -> &Rows {
        self.finish(rows);
        let Self { kernels, weights, head, pool, scratch, last, dense, scores, .. } = self;
        let Some(classifier) = &head.classifier else { return last };
        let mut input = &*last;
        if let Some(layer) = &classifier.dense {
            dense.resize(rows.len());
            layer.run((kernels, weights), pool, scratch, input, dense);
            dense.for_each(pool, |_, row| row.iter_mut().for_each(|x| *x = x.tanh()));
            input = dense;
        }
        scores.reshape(rows.len(), weights.spec.num_classes);
        classifier.output.run((kernels, weights), pool, scratch, input, scores);
        scores
    }

    /// Normalises rows of the latest batch with the final norm.
    pub fn finish(&mut self, rows: &[u32]) -> &Rows {
        let Self { kernels, head, pool, buffers, stream, last, .. } = self;
        last.resize(rows.len());
        let x = buffers.rows(*stream);
        last.for_each(pool, |i, row| {
            let x = x.row(rows[i] as usize);
            match &head.norm {
                Some(norm) => kernels.norm(row, x, norm),
                None => row.copy_from_slice(x),
            }
        });
        last
    }
}
