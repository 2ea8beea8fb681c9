//! The forward pass: one layer loop for every architecture.

use super::feed_forward::Buffers as FfnBuffers;
use super::run::Run;
use super::simd::Kernels;
use super::simd::norm::Norm;
use super::simd::pool::ThreadPool;
use super::simd::rows::{Attend, KvCache, Rows, Scratch, SequenceRows};
use super::state::StateStore;
use super::weights::{Tensors, dequantize_row};
use crate::rope::{Rope, ropes};
use crate::{Batch, Input};
use model::ModelSpec;

/// What tells one layer's attention from another's.
struct LayerAttention {
    /// Index of the rotation.
    rope: usize,
    window: Option<usize>,
}

/// Activations of a step.
struct Buffers {
    x: Rows,           // [num_tokens, hidden] residual stream
    h: Rows,           // [num_tokens, hidden] the normalised stream, or a branch's output
    q: Rows,           // [num_tokens, num_heads * head_dim]
    k: Rows,           // [num_tokens, num_kv_heads * head_dim]
    v: Rows,           // [num_tokens, num_kv_heads * head_dim]
    attn: Rows,        // [num_tokens, num_heads * head_dim]
    padded: [Rows; 2], // [num_tokens, num_heads * padded head_dim] q and attention's output, if heads are padded
    ffn: FfnBuffers,
    turns: Vec<Rows>, // [num_ropes][num_tokens, rope_dim] cosines, then sines
    last: Rows,       // [rows of the head, hidden]
    logits: Rows,     // [rows of the head, vocab]
    scratch: Scratch,
}

pub struct Forward {
    kernels: &'static Kernels,
    tensors: Tensors,
    ropes: Vec<Rope>,
    attentions: Vec<LayerAttention>,
    cache: KvCache,
    pub(super) state: StateStore,
    pool: ThreadPool,
    b: Buffers,
}

impl Forward {
    /// `context`: tokens of the longest sequence.
    pub fn new(
        kernels: &'static Kernels,
        tensors: Tensors,
        (cache, state): (KvCache, StateStore),
        pool: ThreadPool,
        context: usize,
    ) -> Self {
        let spec = &tensors.weights.spec;
        let (ropes, rope_of) = ropes(&tensors.weights, context);
        let window = |layer| spec.sliding_window.filter(|_| spec.is_windowed(layer));
        let attentions = rope_of.into_iter().enumerate().map(|(layer, rope)| LayerAttention { rope, window: window(layer) }).collect();
        let (heads, kv) = (spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim);
        let padded = || Rows::new(spec.num_heads * cache.dim);
        let b = Buffers {
            x: Rows::new(spec.hidden_dim),
            h: Rows::new(spec.hidden_dim),
            q: Rows::new(heads),
            k: Rows::new(kv),
            v: Rows::new(kv),
            attn: Rows::new(heads),
            padded: [padded(), padded()],
            ffn: FfnBuffers::new(spec),
            turns: ropes.iter().map(|_| Rows::new(spec.rope_dim)).collect(),
            last: Rows::new(spec.hidden_dim),
            logits: Rows::new(spec.vocab_size),
            scratch: Scratch::default(),
        };
        Self { kernels, tensors, ropes, attentions, cache, state, pool, b }
    }

    pub fn spec(&self) -> &ModelSpec {
        &self.tensors.weights.spec
    }

    /// The logits that [`Forward::head`] computed last: one row per row asked for, [vocab].
    pub fn logits(&mut self) -> &mut Rows {
        &mut self.b.logits
    }

    /// Runs a batch whose inputs are resolved to `inputs`, tokens and embeddings; leaves the logits of the first `max_logits` sampled rows.
    pub fn run(&mut self, batch: &Batch, inputs: &[Input], max_logits: usize) {
        let sequences: Vec<SequenceRows> = (0..batch.num_seqs())
            .map(|i| {
                let rows = batch.rows(i);
                SequenceRows {
                    first_row: rows.start,
                    num_rows: rows.len(),
                    first_position: batch.context_lens[i] as usize - rows.len(),
                    blocks: &batch.block_tables[i * batch.max_blocks..][..batch.max_blocks],
                }
            })
            .collect();
        batch.copies.iter().for_each(|&(from, to)| self.cache.copy_block(from, to));
        self.state.begin_step(batch);
        self.embed(batch, inputs);
        for layer in 0..self.attentions.len() {
            self.attention(layer, batch, &sequences);
            self.feed_forward(layer);
        }
        self.head(&batch.sampled_rows[..batch.num_sampled().min(max_logits)]);
    }

    fn embed(&mut self, batch: &Batch, inputs: &[Input]) {
        let (b, tensors) = (&mut self.b, &self.tensors);
        let spec = &tensors.weights.spec;
        for rows in [&mut b.x, &mut b.h, &mut b.q, &mut b.k, &mut b.v, &mut b.attn] {
            rows.resize(inputs.len());
        }
        let scale = spec.arch.scale_embeddings.then(|| (spec.hidden_dim as f32).sqrt());
        b.x.for_each(&mut self.pool, |i, row| {
            match inputs[i] {
                Input::Token(id) => dequantize_row(&tensors.weights, &tensors.token_embd, id as usize, row),
                Input::Embedding(from) => return row.copy_from_slice(&batch.embeddings[from as usize * row.len()..][..row.len()]),
                Input::Sampled(_) => unreachable!("resolved before the pass"),
            }
            if let Some(scale) = scale {
                row.iter_mut().for_each(|x| *x *= scale);
            }
        });
        if let Some(positions) = &tensors.position_embd {
            b.h.for_each(&mut self.pool, |i, row| dequantize_row(&tensors.weights, positions, batch.positions[i] as usize, row));
            b.x.for_each(&mut self.pool, |i, row| self.kernels.add_to(row, b.h.row(i)));
        }
        for (rope, turns) in self.ropes.iter().zip(&mut b.turns) {
            turns.resize(inputs.len());
            turns.for_each(&mut self.pool, |i, row| rope.turn(batch.positions[i], row));
        }
    }

    /// x += attention(norm(x))
    fn attention(&mut self, index: usize, batch: &Batch, sequences: &[SequenceRows]) {
        let Self { kernels, tensors, ropes, attentions, cache, pool, b, .. } = self;
        let (layer, attention, weights) = (&tensors.layers[index], &attentions[index], &tensors.weights);
        let spec = &weights.spec;
        b.h.for_each(pool, |i, row| kernels.norm(row, b.x.row(i), &layer.attn_norm));
        let [q, k, v] = &layer.qkv;
        let jobs = vec![(q.matrix(weights), &mut b.q), (k.matrix(weights), &mut b.k), (v.matrix(weights), &mut b.v)];
        kernels.linear(pool, &mut b.scratch, &b.h, false, jobs);
        let turns = &b.turns[attention.rope];
        let finish = |rows: &mut Rows, pool: &mut ThreadPool, bias: &Option<Vec<f32>>, norm: &Option<Norm>, rotate: bool| {
            if bias.is_none() && norm.is_none() && !rotate {
                return;
            }
            rows.for_each(pool, |i, row| {
                if let Some(bias) = bias {
                    kernels.add_to(row, bias);
                }
                for head in row.chunks_exact_mut(spec.head_dim) {
                    if let Some(norm) = norm {
                        kernels.norm_in_place(head, norm);
                    }
                    if rotate {
                        ropes[attention.rope].rotate(head, turns.row(i));
                    }
                }
            });
        };
        let rotate = spec.rope_dim > 0;
        finish(&mut b.q, pool, &layer.qkv_bias[0], &layer.q_norm, rotate);
        finish(&mut b.k, pool, &layer.qkv_bias[1], &layer.k_norm, rotate);
        finish(&mut b.v, pool, &layer.qkv_bias[2], &None, false);
        cache.write(pool, index, &batch.slot_mapping, &b.k, &b.v, spec.head_dim);
        let (scale, soft_cap) = (spec.attn_scale, spec.attn_soft_cap);
        let a = Attend { cache, layer: index, num_heads: spec.num_heads, scale, soft_cap, window: attention.window, sequences };
        if cache.dim == spec.head_dim {
            kernels.attend(&b.q, &mut b.attn, pool, &a);
        } else {
            let [q, out] = &mut b.padded;
            q.resize(b.q.num_rows());
            out.resize(b.q.num_rows());
            q.for_each(pool, |i, row| spread(b.q.row(i), spec.head_dim, row, cache.dim));
            kernels.attend(q, out, pool, &a);
            b.attn.for_each(pool, |i, row| spread(out.row(i), cache.dim, row, spec.head_dim));
        }
        let o = layer.attn_output.matrix(weights);
        let after = (layer.attn_output_bias.as_deref(), &layer.post_attn_norm);
        Run { kernels, pool, scratch: &mut b.scratch, weights }.branch((o, &b.attn), (&mut b.x, &mut b.h), after);
    }

    /// x += feed_forward(norm(x))
    fn feed_forward(&mut self, index: usize) {
        let Self { kernels, tensors, pool, b, .. } = self;
        let (layer, weights) = (&tensors.layers[index], &tensors.weights);
        b.h.for_each(pool, |i, row| kernels.norm(row, b.x.row(i), &layer.ffn_norm));
        let mut run = Run { kernels, pool, scratch: &mut b.scratch, weights };
        b.ffn.run(&mut run, &layer.ffn, (&mut b.x, &mut b.h), &layer.post_ffn_norm);
    }

    /// The logits of rows of the latest batch.
    pub fn head(&mut self, rows: &[u32]) -> &mut Rows {
        self.finish(rows);
        let Self { tensors, kernels, pool, b, .. } = self;
        b.logits.resize(rows.len());
        kernels.linear(pool, &mut b.scratch, &b.last, false, vec![(tensors.output.matrix(&tensors.weights), &mut b.logits)]);
        if let Some(cap) = tensors.weights.spec.final_soft_cap {
            b.logits.for_each(pool, |_, row| kernels.cap(row, cap));
        }
        &mut b.logits
    }

    /// Rows of the latest batch after the final norm.
    pub fn finish(&mut self, rows: &[u32]) -> &Rows {
        let Self { kernels, tensors, pool, b, .. } = self;
        b.last.resize(rows.len());
        b.last.for_each(pool, |i, row| kernels.norm(row, b.x.row(rows[i] as usize), &tensors.output_norm));
        &b.last
    }
}

/// Copies heads of `from` floats each to heads of `to` floats each.
fn spread(src: &[f32], from: usize, dst: &mut [f32], to: usize) {
    for (src, dst) in src.chunks_exact(from).zip(dst.chunks_exact_mut(to)) {
        let n = from.min(to);
        dst[..n].copy_from_slice(&src[..n]);
    }
}
