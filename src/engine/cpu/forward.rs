//! The forward pass: one layer loop for every architecture.

use super::feed_forward::Buffers as FfnBuffers;
use super::simd::Kernels;
use super::simd::pool::Pool;
use super::simd::rows::{Attend, KvCache, Matrix, Rows, Scratch, Sequence};
use super::weights::{Norm, Tensors, dequantize_row};
use crate::engine::Batch;
use crate::engine::rope::{Rope, ropes};
use crate::model::{ModelSpec, Weights};

/// A layer's rotation and window.
struct Place {
    rope: usize,
    window: Option<usize>,
}

/// Activations of a step, [num_tokens, …] each.
struct Buffers {
    x: Rows,           // [num_tokens, hidden] residual stream
    h: Rows,           // [num_tokens, hidden] normalised, or a branch's output
    q: Rows,           // [num_tokens, num_heads * head_dim]
    k: Rows,           // [num_tokens, num_kv_heads * head_dim]
    v: Rows,           // [num_tokens, num_kv_heads * head_dim]
    attn: Rows,        // [num_tokens, num_heads * head_dim]
    padded: [Rows; 2], // [num_tokens, num_heads * padded head_dim] q and attention's output where heads are padded
    ffn: FfnBuffers,
    turns: Vec<Rows>, // one a rope: [num_tokens, rope_dim] cosines, sines
    last: Rows,       // [rows of the head, hidden]
    logits: Rows,     // [rows of the head, vocab]
    scratch: Scratch,
}

pub struct Forward {
    kernels: &'static Kernels,
    tensors: Tensors,
    ropes: Vec<Rope>,
    places: Vec<Place>,
    cache: KvCache,
    pool: Pool,
    b: Buffers,
}

impl Forward {
    /// `context`: tokens of the longest sequence.
    pub fn new(kernels: &'static Kernels, tensors: Tensors, cache: KvCache, pool: Pool, context: usize) -> Self {
        let spec = &tensors.weights.spec;
        let (ropes, rope_of) = ropes(&tensors.weights, context);
        let window = |layer| spec.sliding_window.filter(|_| spec.is_windowed(layer));
        let places = rope_of.into_iter().enumerate().map(|(layer, rope)| Place { rope, window: window(layer) }).collect();
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
        Self { kernels, tensors, ropes, places, cache, pool, b }
    }

    pub fn spec(&self) -> &ModelSpec {
        &self.tensors.weights.spec
    }

    /// [num_sampled, vocab] of the batch that ran last.
    pub fn logits(&mut self) -> &mut Rows {
        &mut self.b.logits
    }

    /// Runs a batch whose rows have the ids `ids`; leaves the logits of the sequences that sample, in their order.
    pub fn run(&mut self, batch: &Batch, ids: &[u32]) {
        let sequences: Vec<Sequence> = (0..batch.num_seqs())
            .map(|i| {
                let (from, to) = (batch.cu_seqlens_q[i] as usize, batch.cu_seqlens_q[i + 1] as usize);
                Sequence {
                    first_row: from,
                    num_rows: to - from,
                    first_position: batch.context_lens[i] as usize - (to - from),
                    blocks: &batch.block_tables[i * batch.max_blocks..][..batch.max_blocks],
                }
            })
            .collect();
        batch.copies.iter().for_each(|&(from, to)| self.cache.copy_block(from, to));
        self.embed(batch, ids);
        for layer in 0..self.places.len() {
            self.attention(layer, batch, &sequences);
            self.feed_forward(layer);
        }
        let last: Vec<usize> =
            sequences.iter().zip(&batch.sample).filter(|(_, s)| **s).map(|(s, _)| s.first_row + s.num_rows - 1).collect();
        self.head(&last);
    }

    fn embed(&mut self, batch: &Batch, ids: &[u32]) {
        let (b, tensors) = (&mut self.b, &self.tensors);
        let spec = &tensors.weights.spec;
        for rows in [&mut b.x, &mut b.h, &mut b.q, &mut b.k, &mut b.v, &mut b.attn] {
            rows.resize(ids.len());
        }
        let scale = spec.arch.scale_embeddings.then(|| (spec.hidden_dim as f32).sqrt());
        b.x.for_each(&mut self.pool, |i, row| {
            dequantize_row(&tensors.weights, &tensors.token_embd, ids[i] as usize, row);
            if let Some(scale) = scale {
                row.iter_mut().for_each(|x| *x *= scale);
            }
        });
        if let Some(positions) = &tensors.position_embd {
            b.h.for_each(&mut self.pool, |i, row| dequantize_row(&tensors.weights, positions, batch.positions[i] as usize, row));
            b.x.for_each(&mut self.pool, |i, row| self.kernels.add_to(row, b.h.row(i)));
        }
        for (rope, turns) in self.ropes.iter().zip(&mut b.turns) {
            turns.resize(ids.len());
            turns.for_each(&mut self.pool, |i, row| rope.turn(batch.positions[i], row));
        }
    }

    /// x += attention(norm(x))
    fn attention(&mut self, index: usize, batch: &Batch, sequences: &[Sequence]) {
        let Self { kernels, tensors, ropes, places, cache, pool, b } = self;
        let (layer, place, weights) = (&tensors.layers[index], &places[index], &tensors.weights);
        let spec = &weights.spec;
        b.h.for_each(pool, |i, row| kernels.norm(row, b.x.row(i), &layer.attn_norm));
        let [q, k, v] = &layer.qkv;
        let jobs = vec![(q.matrix(weights), &mut b.q), (k.matrix(weights), &mut b.k), (v.matrix(weights), &mut b.v)];
        kernels.linear(pool, &mut b.scratch, &b.h, false, jobs);
        let turns = &b.turns[place.rope];
        let finish = |rows: &mut Rows, pool: &mut Pool, bias: &Option<Vec<f32>>, norm: &Option<Norm>, rotate: bool| {
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
                        ropes[place.rope].rotate(head, turns.row(i));
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
        let a = Attend { cache, layer: index, num_heads: spec.num_heads, scale, soft_cap, window: place.window, sequences };
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
    pub fn head(&mut self, rows: &[usize]) -> &mut Rows {
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
    pub fn finish(&mut self, rows: &[usize]) -> &Rows {
        let Self { kernels, tensors, pool, b, .. } = self;
        b.last.resize(rows.len());
        b.last.for_each(pool, |i, row| kernels.norm(row, b.x.row(rows[i]), &tensors.output_norm));
        &b.last
    }
}

/// What a layer computes with.
pub struct Run<'a> {
    pub kernels: &'static Kernels,
    pub pool: &'a mut Pool,
    pub scratch: &'a mut Scratch,
    pub weights: &'a Weights,
}

impl Run<'_> {
    pub fn linear(&mut self, x: &Rows, accumulate: bool, jobs: Vec<(Matrix, &mut Rows)>) {
        self.kernels.linear(self.pool, self.scratch, x, accumulate, jobs);
    }

    /// x += input · Wᵀ + bias, normalised first where the architecture says so.
    pub fn branch(
        &mut self,
        (matrix, input): (Matrix, &Rows),
        (x, h): (&mut Rows, &mut Rows),
        (bias, norm): (Option<&[f32]>, &Option<Norm>),
    ) {
        let out = if norm.is_some() { &mut *h } else { &mut *x };
        self.linear(input, norm.is_none(), vec![(matrix, &mut *out)]);
        let kernels = self.kernels;
        if let Some(bias) = bias {
            out.for_each(self.pool, |_, row| kernels.add_to(row, bias));
        }
        if norm.is_some() {
            self.add((x, h), norm);
        }
    }

    /// x += norm(h); `h` is normalised in place.
    pub fn add(&mut self, (x, h): (&mut Rows, &mut Rows), norm: &Option<Norm>) {
        let kernels = self.kernels;
        if let Some(norm) = norm {
            h.for_each(self.pool, |_, row| kernels.norm_in_place(row, norm));
        }
        x.for_each(self.pool, |i, row| kernels.add_to(row, h.row(i)));
    }
}

/// Copies heads from rows of `from` floats a head to rows of `to`.
fn spread(src: &[f32], from: usize, dst: &mut [f32], to: usize) {
    for (src, dst) in src.chunks_exact(from).zip(dst.chunks_exact_mut(to)) {
        let n = from.min(to);
        dst[..n].copy_from_slice(&src[..n]);
    }
}
