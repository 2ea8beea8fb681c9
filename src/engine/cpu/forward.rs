//! Runs the forward pass: one loop over the layers for every architecture.

use super::feed_forward::FfnBuffers;
use super::loader::dequantize_row;
use super::mixer::{MixerBuffers, Step};
use super::run::{Finish, Run, Stream};
use super::simd::Kernels;
use super::simd::attend::{KvCache, SequenceRows};
use super::simd::norm::Norm;
use super::simd::pool::ThreadPool;
use super::simd::rows::{Rows, Scratch};
use super::state::StateStore;
use super::weights::{Classifier, Tensors};
use super::{altup, per_layer};
use crate::check::CheckedBatch;
use crate::rope::Rope;
use crate::{Batch, Input};
use model::ModelSpec;
use model::arch::Block;

/// The activations of a step.
struct ForwardBuffers {
    x: Rows,      // [num_tokens, hidden] residual stream
    h: Rows,      // [num_tokens, hidden] the normalised stream
    ffn_h: Rows,  // [num_tokens, hidden] the feed-forward part's input, if it is not h
    branch: Rows, // [num_tokens, hidden] the output of a branch
    mixer: MixerBuffers,
    ffn: FfnBuffers,
    altup: altup::AltupBuffers,
    per_layer: per_layer::PerLayerBuffers,
    rotations: Vec<Rows>, // [num_ropes][num_tokens, rope_dim] cosines, then sines
    last: Rows,           // [rows of the head, hidden]
    logits: Rows,         // [rows of the head, vocab]
    scores: Rows,         // [rows, classes] of a classifier
    scratch: Scratch,
}

pub struct Forward {
    kernels: &'static Kernels,
    tensors: Tensors,
    ropes: Vec<Rope>,
    pub(super) cache: KvCache,
    pub(super) state: StateStore,
    pool: ThreadPool,
    b: ForwardBuffers,
}

impl Forward {
    pub fn new(
        kernels: &'static Kernels,
        tensors: Tensors,
        ropes: Vec<Rope>,
        (cache, state): (KvCache, StateStore),
        pool: ThreadPool,
    ) -> Self {
        let spec = &tensors.weights.spec;
        let hidden = || Rows::new(spec.hidden_dim);
        let b = ForwardBuffers {
            x: hidden(),
            h: hidden(),
            ffn_h: hidden(),
            branch: hidden(),
            mixer: MixerBuffers::default(),
            ffn: FfnBuffers::default(),
            altup: altup::AltupBuffers::default(),
            per_layer: per_layer::PerLayerBuffers::default(),
            rotations: ropes.iter().map(|rope| Rows::new(rope.dim())).collect(),
            last: hidden(),
            logits: Rows::new(spec.vocab_size),
            scores: Rows::default(),
            scratch: Scratch::default(),
        };
        Self { kernels, tensors, ropes, cache, state, pool, b }
    }

    pub fn spec(&self) -> &ModelSpec {
        &self.tensors.weights.spec
    }

    /// The logits that [`Forward::head`] computed last, one row per requested row [vocab].
    pub fn logits(&mut self) -> &mut Rows {
        &mut self.b.logits
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
        self.embed(&batch, inputs);
        for layer in 0..self.tensors.layers.len() {
            self.layer(layer, batch, &sequences);
            self.end_layer(layer);
        }
        if let Some(altup) = &self.tensors.altup {
            let run =
                &mut Run { kernels: self.kernels, pool: &mut self.pool, scratch: &mut self.b.scratch, weights: &self.tensors.weights };
            altup.end(run, &mut self.b.x, &mut self.b.altup);
        }
        self.head(&batch.sampled_rows[..batch.num_sampled().min(max_logits)]);
    }

    fn embed(&mut self, batch: &Batch, inputs: &[Input]) {
        let Self { kernels, tensors, pool, b, .. } = self;
        let spec = &tensors.weights.spec;
        b.x.resize(inputs.len());
        let scale = Some(spec.embedding_scale).filter(|&scale| scale != 1.0);
        b.x.for_each(pool, |i, row| {
            match inputs[i] {
                Input::Token(id) => dequantize_row(&tensors.weights, &tensors.token_embd, id as usize, row),
                Input::Embedding(from) => return row.copy_from_slice(&batch.embeddings[from as usize * row.len()..][..row.len()]),
                Input::Sampled(_) => unreachable!("resolved before the pass"),
            }
            if let Some(scale) = scale {
                row.iter_mut().for_each(|x| *x *= scale);
            }
            if let Some(types) = &tensors.token_types {
                let kind = batch.token_types.get(i).map_or(0, |&kind| kind as usize);
                kernels.add_to(row, &types[kind * spec.hidden_dim..][..spec.hidden_dim]);
            }
        });
        if let Some(positions) = &tensors.position_embd {
            b.h.resize(inputs.len());
            b.h.for_each(pool, |i, row| dequantize_row(&tensors.weights, positions, batch.positions[i] as usize, row));
            b.x.for_each(pool, |i, row| kernels.add_to(row, b.h.row(i)));
        }
        if let Some(norm) = &tensors.token_norm {
            b.x.for_each(pool, |_, row| kernels.norm_in_place(row, norm));
        }
        let run = &mut Run { kernels, pool: &mut *pool, scratch: &mut b.scratch, weights: &tensors.weights };
        if let Some(per_layer) = &tensors.per_layer {
            per_layer.begin(run, inputs, &b.x, &mut b.per_layer);
        }
        if let Some(altup) = &tensors.altup {
            altup.begin(run, &b.x, &mut b.altup);
        }
        for (rope, rotations) in self.ropes.iter().zip(&mut b.rotations) {
            rotations.resize(inputs.len());
            rotations.for_each(pool, |i, row| rope.rotation(batch.positions[i], row));
        }
    }

    /// Computes x after one layer. [`Block`] says how the layer's branches are wired.
    fn layer(&mut self, index: usize, batch: CheckedBatch, sequences: &[SequenceRows]) {
        let Self { kernels, tensors, ropes, cache, state, pool, b, .. } = self;
        let (layer, weights) = (&tensors.layers[index], &tensors.weights);
        let (block, scale) = (weights.spec.block, weights.spec.residual_scale);
        let run = &mut Run { kernels, pool, scratch: &mut b.scratch, weights };
        let step = &mut Step { batch, sequences, ropes, rotations: &b.rotations, cache, state };
        if let Some(altup) = &layer.altup {
            altup.predict(run, &mut b.x, &mut b.altup);
        }
        if let Some(ffn) = &layer.ffn {
            ffn.look_ahead(run, &b.x, &mut b.ffn);
        }
        normalise(run, &mut b.h, &b.x, &layer.attn_norm);
        if let Some(altup) = &layer.altup {
            altup.laurel(run, &b.h, &mut b.altup);
        }
        // the layer's input as the feed-forward part or its experts see it
        let early = layer.experts_norm.as_ref().or(layer.ffn_norm.as_ref().filter(|_| block == Block::Parallel));
        if let Some(norm) = early {
            run.norm(&mut b.ffn_h, &b.x, norm);
        }
        if block == Block::NormedResidual {
            b.x.for_each(run.pool, |i, row| row.iter_mut().zip(b.h.row(i)).for_each(|(x, h)| *x = h * scale));
        }
        let branch_scale = if block == Block::NormedResidual { 1.0 } else { scale };
        let post = |norm| if block == Block::PostNorm { None } else { Option::as_ref(norm) };
        let stream = &mut Stream { x: &mut b.x, branch: &mut b.branch };
        for mixer in &layer.mixers {
            mixer.run(run, step, &b.h, &mut b.mixer);
            let finish = Finish { bias: mixer.output_bias.as_deref(), norm: post(&layer.post_attn_norm), scale: branch_scale };
            run.branch((mixer.output.matrix(weights), &b.mixer.mixed), stream, finish);
        }
        if let (Block::PostNorm, Some(norm)) = (block, &layer.post_attn_norm) {
            stream.x.for_each(run.pool, |_, row| kernels.norm_in_place(row, norm));
        }
        if let Some(altup) = &layer.altup {
            altup.join(run, stream.x, &b.altup);
        }
        let Some(ffn) = &layer.ffn else { return };
        if block != Block::Parallel {
            normalise(run, &mut b.h, stream.x, &layer.ffn_norm);
        }
        if block == Block::NormedResidual {
            stream.x.for_each(run.pool, |i, row| row.iter_mut().zip(b.h.row(i)).for_each(|(x, h)| *x = h * scale));
        }
        let own_input = block == Block::Parallel && layer.ffn_norm.is_some();
        let h = if own_input { &b.ffn_h } else { &b.h };
        let finish = Finish { bias: None, norm: post(&layer.post_ffn_norm), scale: branch_scale };
        ffn.run(run, (h, &b.ffn_h), stream, finish, &mut b.ffn);
        if let (Block::PostNorm, Some(norm)) = (block, &layer.post_ffn_norm) {
            stream.x.for_each(run.pool, |_, row| kernels.norm_in_place(row, norm));
        }
    }

    /// Ends a layer after its branches: corrects the streams, adds the layer's own input and applies the layer's factor.
    fn end_layer(&mut self, index: usize) {
        let Self { kernels, tensors, pool, b, .. } = self;
        let layer = &tensors.layers[index];
        let run = &mut Run { kernels, pool, scratch: &mut b.scratch, weights: &tensors.weights };
        if let Some(altup) = &layer.altup {
            altup.correct(run, &mut b.x, &mut b.altup);
        }
        if let Some(per_layer) = &layer.per_layer {
            per_layer.run(run, &b.x, &mut b.branch, &mut b.per_layer);
            match &layer.altup {
                Some(altup) => altup.add(run, &b.branch, &mut b.altup),
                None => b.x.for_each(run.pool, |i, row| kernels.add_to(row, b.branch.row(i))),
            }
        }
        if let Some(scale) = layer.output_scale {
            b.x.for_each(run.pool, |_, row| row.iter_mut().for_each(|x| *x *= scale));
        }
    }

    /// Computes the logits of rows of the latest batch.
    pub fn head(&mut self, rows: &[u32]) -> &mut Rows {
        self.finish(rows);
        let Self { tensors, kernels, pool, b, .. } = self;
        let spec = &tensors.weights.spec;
        b.logits.resize(rows.len());
        kernels.linear(pool, &mut b.scratch, &b.last, false, vec![(tensors.output.matrix(&tensors.weights), &mut b.logits)]);
        if let Some(bias) = &tensors.output_bias {
            b.logits.for_each(pool, |_, row| kernels.add_to(row, bias));
        }
        if spec.logit_scale != 1.0 {
            b.logits.for_each(pool, |_, row| row.iter_mut().for_each(|x| *x *= spec.logit_scale));
        }
        if let Some(cap) = spec.final_soft_cap {
            b.logits.for_each(pool, |_, row| kernels.cap(row, cap));
        }
        &mut b.logits
    }

    /// Computes the classifier's scores of rows of the latest batch [rows, classes]. Returns the rows themselves if the model has no
    /// classifier.
    pub fn classify(&mut self, rows: &[u32]) -> &Rows {
        self.finish(rows);
        let Self { kernels, tensors, pool, b, .. } = self;
        let Some(Classifier { dense, output, output_bias }) = &tensors.classifier else { return &b.last };
        let weights = &tensors.weights;
        let add = |bias: &Option<Vec<f32>>, row: &mut [f32]| bias.iter().for_each(|bias| kernels.add_to(row, bias));
        let mut input = &b.last;
        if let Some((matrix, bias)) = dense {
            b.branch.resize(rows.len());
            kernels.linear(pool, &mut b.scratch, input, false, vec![(matrix.matrix(weights), &mut b.branch)]);
            b.branch.for_each(pool, |_, row| {
                add(bias, row);
                row.iter_mut().for_each(|x| *x = x.tanh());
            });
            input = &b.branch;
        }
        b.scores.reshape(rows.len(), weights.spec.num_classes);
        kernels.linear(pool, &mut b.scratch, input, false, vec![(output.matrix(weights), &mut b.scores)]);
        b.scores.for_each(pool, |_, row| add(output_bias, row));
        &b.scores
    }

    /// Normalises rows of the latest batch with the final norm.
    pub fn finish(&mut self, rows: &[u32]) -> &Rows {
        let Self { kernels, tensors, pool, b, .. } = self;
        b.last.resize(rows.len());
        b.last.for_each(pool, |i, row| {
            let x = b.x.row(rows[i] as usize);
            match &tensors.output_norm {
                Some(norm) => kernels.norm(row, x, norm),
                None => row.copy_from_slice(x),
            }
        });
        &b.last
    }
}

/// h = norm(x), or h = x without a norm.
fn normalise(run: &mut Run, h: &mut Rows, x: &Rows, norm: &Option<Norm>) {
    match norm {
        Some(norm) => run.norm(h, x, norm),
        None => {
            h.resize(x.num_rows());
            h.for_each(run.pool, |i, row| row.copy_from_slice(x.row(i)));
        }
    }
}
