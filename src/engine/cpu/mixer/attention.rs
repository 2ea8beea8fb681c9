//! Attends over a sequence's cached keys and values.

use super::super::activation::sigmoid;
use super::super::loader::{Loader, Mat};
use super::super::run::Run;
use super::super::simd::Kernels;
use super::super::simd::attend::{Attend, Mask};
use super::super::simd::norm::Norm;
use super::super::simd::rows::Rows;
use super::step::Step;
use crate::EngineError;
use model::spec::{Attention, AttnGate as Gate, HeadNorm, Temperature};
use model::{NormKind, TensorRole};

/// The norms of queries, keys or values.
struct HeadNorms {
    /// One norm, or one per head.
    norms: Vec<Norm>,
    /// The number of elements that a norm covers.
    dim: usize,
}

impl HeadNorms {
    fn load(loader: Loader, kind: HeadNorm, dim: usize, roles: Option<[TensorRole; 2]>, layer: usize) -> Result<Option<Self>, EngineError> {
        let Some([role, bias]) = roles.filter(|_| !matches!(kind, HeadNorm::None | HeadNorm::Weightless)) else {
            let norms = vec![loader.weightless(NormKind::Rms, dim)];
            return Ok((kind == HeadNorm::Weightless).then_some(Self { norms, dim }));
        };
        let (spec, weight) = (&loader.weights.spec, loader.vector(role, layer)?);
        let bias = loader.optional(bias, layer);
        let dim = if kind == HeadNorm::Row { weight.len() } else { dim };
        let part = |i: usize, all: &[f32]| all[i * dim..][..dim].to_vec();
        let norm = |i: usize| Norm {
            kind: spec.arch.norm,
            weight: part(i, &weight),
            bias: bias.as_deref().map(|bias| part(i, bias)),
            eps: spec.norm_eps,
        };
        Ok(Some(Self { norms: (0..weight.len() / dim).map(norm).collect(), dim }))
    }

    fn apply(&self, kernels: &Kernels, row: &mut [f32]) {
        for (i, head) in row.chunks_exact_mut(self.dim).enumerate() {
            kernels.norm_in_place(head, &self.norms[i % self.norms.len()]);
        }
    }
}

/// A projection of the input to queries, keys or values.
struct Heads {
    matrix: Mat,
    bias: Option<Vec<f32>>,
    norm: Option<HeadNorms>,
    /// Elements per head.
    dim: usize,
}

impl Heads {
    fn load(loader: Loader, roles: [TensorRole; 2], layer: usize, norm: Option<HeadNorms>, dim: usize) -> Result<Self, EngineError> {
        let [weight, bias] = roles;
        Ok(Self { matrix: loader.mat(weight, layer)?, bias: loader.optional(bias, layer), norm, dim })
    }
}

pub struct AttentionLayer {
    spec: Attention,
    layer: usize,
    /// The index of the rotation.
    rope: Option<usize>,
    norm_after_rope: bool,
    mask: Mask,
    q: Heads,
    /// None if the layer reads the keys and values of another layer.
    k: Option<Heads>,
    /// None if the values are the keys before their norm.
    v: Option<Heads>,
    v_norm: Option<HeadNorms>,
    gate: Option<Mat>,
    sinks: Option<Vec<f32>>,
    sub_norm: Option<Norm>,
}

/// The activations of a step.
#[derive(Default)]
pub struct AttentionBuffers {
    wide: Rows,        // [num_tokens, 2 * num_heads * head_dim] queries with their gates
    q: Rows,           // [num_tokens, num_heads * head_dim]
    k: Rows,           // [num_tokens, num_kv_heads * head_dim]
    v: Rows,           // [num_tokens, num_kv_heads * value_dim]
    gate: Rows,        // [num_tokens, num_heads * value_dim]
    padded: [Rows; 2], // [num_tokens, num_heads * padded dim] q and attention's output, if heads are padded
}

impl AttentionLayer {
    pub fn load(loader: Loader, layer: usize, spec: &Attention, rope: Option<usize>) -> Result<Self, EngineError> {
        use TensorRole::*;
        let arch = loader.weights.spec.arch;
        let q_norm = HeadNorms::load(loader, spec.q_norm, spec.head_dim, Some([AttnQNorm, AttnQNormBias]), layer)?;
        let k_norm = || HeadNorms::load(loader, spec.k_norm, spec.head_dim, Some([AttnKNorm, AttnKNormBias]), layer);
        let own = spec.kv_of.is_none();
        let k = own.then(|| Heads::load(loader, [AttnK, AttnKBias], layer, k_norm()?, spec.head_dim)).transpose()?;
        let has_v = own && loader.weights.get(AttnV, layer).is_some();
        let v = has_v.then(|| Heads::load(loader, [AttnV, AttnVBias], layer, None, spec.value_dim)).transpose()?;
        Ok(Self {
            spec: *spec,
            layer,
            rope,
            norm_after_rope: arch.norm_after_rope,
            mask: Mask { window: spec.window, kind: arch.window_kind, bidirectional: arch.bidirectional },
            q: Heads::load(loader, [AttnQ, AttnQBias], layer, q_norm, spec.head_dim)?,
            k,
            v,
            v_norm: HeadNorms::load(loader, spec.v_norm, spec.value_dim, None, layer)?,
            gate: if spec.gate == Gate::Own { Some(loader.mat(AttnGate, layer)?) } else { None },
            sinks: loader.optional(AttnSinks, layer),
            sub_norm: if arch.required.contains(&AttnSubNorm) { Some(loader.rms_norm(AttnSubNorm, layer)?) } else { None },
        })
    }

    pub fn run(&self, run: &mut Run, step: &mut Step, h: &Rows, (b, out): (&mut AttentionBuffers, &mut Rows)) {
        let (spec, n) = (&self.spec, h.num_rows());
        self.project(run, h, b);
        self.finish(run, step, &self.q, &mut b.q, spec.temperature);
        if let Some(keys) = &self.k {
            match &self.v {
                Some(values) => self.bias_and_clamp(run, values, &mut b.v),
                None => b.v.for_each(run.pool, |i, row| row.copy_from_slice(b.k.row(i))),
            }
            if let Some(norms) = &self.v_norm {
                let kernels = run.kernels;
                b.v.for_each(run.pool, |_, row| norms.apply(kernels, row));
            }
            self.finish(run, step, keys, &mut b.k, None);
            let places = step.batch.places(step.cache.layer(self.layer).group);
            step.cache.write(run.pool, self.layer, places, (&b.k, &b.v), [spec.head_dim, spec.value_dim]);
        }
        out.reshape(n, spec.num_heads * spec.value_dim);
        self.attend(run, step, b, out);
        if spec.gate != Gate::None {
            out.for_each(run.pool, |i, row| row.iter_mut().zip(b.gate.row(i)).for_each(|(x, gate)| *x *= sigmoid(*gate)));
        }
        if let Some(norm) = &self.sub_norm {
            let kernels = run.kernels;
            out.for_each(run.pool, |_, row| kernels.norm_in_place(row, norm));
        }
    }

    /// Computes the products: q, k, v and the gate, without anything that follows them.
    fn project(&self, run: &mut Run, h: &Rows, b: &mut AttentionBuffers) {
        let (spec, n, weights) = (&self.spec, h.num_rows(), run.weights);
        b.q.reshape(n, spec.num_heads * spec.head_dim);
        b.k.reshape(n, spec.num_kv_heads * spec.head_dim);
        b.v.reshape(n, spec.num_kv_heads * spec.value_dim);
        let in_query = spec.gate == Gate::InQuery;
        if in_query {
            b.wide.reshape(n, 2 * spec.num_heads * spec.head_dim);
        }
        let mut jobs = vec![(self.q.matrix.matrix(weights), if in_query { &mut b.wide } else { &mut b.q })];
        for (heads, rows) in [(&self.k, &mut b.k), (&self.v, &mut b.v)] {
            jobs.extend(heads.as_ref().map(|heads| (heads.matrix.matrix(weights), rows)));
        }
        if spec.gate != Gate::None {
            b.gate.reshape(n, spec.num_heads * spec.value_dim);
        }
        if let Some(gate) = &self.gate {
            jobs.push((gate.matrix(weights), &mut b.gate));
        }
        run.linear(h, false, jobs);
        if in_query {
            // each head holds its query, then its gate
            let dim = spec.head_dim;
            let part = |to: &mut [f32], from: &[f32], at: usize| {
                to.chunks_exact_mut(dim).zip(from.chunks_exact(2 * dim)).for_each(|(to, from)| to.copy_from_slice(&from[at..][..dim]));
            };
            b.q.for_each(run.pool, |i, row| part(row, b.wide.row(i), 0));
            b.gate.for_each(run.pool, |i, row| part(row, b.wide.row(i), dim));
        }
    }

    fn bias_and_clamp(&self, run: &mut Run, heads: &Heads, rows: &mut Rows) {
        if heads.bias.is_none() && self.spec.clamp.is_none() {
            return;
        }
        let kernels = run.kernels;
        rows.for_each(run.pool, |_, row| {
            if let Some(bias) = &heads.bias {
                kernels.add_to(row, bias);
            }
            if let Some(clamp) = self.spec.clamp {
                row.iter_mut().for_each(|x| *x = x.clamp(-clamp, clamp));
            }
        });
    }

    /// Applies bias, clamp, norm, rotation and temperature to queries or keys.
    fn finish(&self, run: &mut Run, step: &Step, heads: &Heads, rows: &mut Rows, temperature: Option<Temperature>) {
        self.bias_and_clamp(run, heads, rows);
        if heads.norm.is_none() && self.rope.is_none() && temperature.is_none() {
            return;
        }
        let kernels = run.kernels;
        let normalise = |row: &mut [f32]| {
            if let Some(norms) = &heads.norm {
                norms.apply(kernels, row);
            }
        };
        rows.for_each(run.pool, |i, row| {
            if !self.norm_after_rope {
                normalise(row);
            }
            if let Some(rope) = self.rope {
                row.chunks_exact_mut(heads.dim).for_each(|head| step.ropes[rope].rotate(head, step.rotations[rope].row(i)));
            }
            if self.norm_after_rope {
                normalise(row);
            }
            if let Some(temperature) = temperature {
                let factor = temperature.at(step.batch.positions[i]);
                row.iter_mut().for_each(|x| *x *= factor);
            }
        });
    }

    fn attend(&self, run: &mut Run, step: &Step, b: &mut AttentionBuffers, out: &mut Rows) {
        let (spec, layer) = (&self.spec, self.spec.kv_of.unwrap_or(self.layer));
        let (cache, kernels) = (&*step.cache, run.kernels);
        let a = Attend {
            cache,
            layer,
            num_heads: spec.num_heads,
            scale: spec.scale,
            soft_cap: spec.soft_cap,
            mask: self.mask,
            alibi: spec.alibi,
            sinks: self.sinks.as_deref(),
            sequences: step.sequences,
            tables: step.tables(layer),
        };
        let kept = *cache.layer(layer);
        if (kept.key_dim, kept.value_dim) == (spec.head_dim, spec.value_dim) {
            return kernels.attend(&b.q, out, run.pool, &a);
        }
        let [q, padded] = &mut b.padded;
        q.reshape(b.q.num_rows(), spec.num_heads * kept.key_dim);
        padded.reshape(b.q.num_rows(), spec.num_heads * kept.value_dim);
        q.for_each(run.pool, |i, row| spread(b.q.row(i), spec.head_dim, row, kept.key_dim));
        kernels.attend(q, padded, run.pool, &a);
        out.for_each(run.pool, |i, row| spread(padded.row(i), kept.value_dim, row, spec.value_dim));
    }
}

/// Copies heads of `from` floats to heads of `to` floats.
fn spread(src: &[f32], from: usize, dst: &mut [f32], to: usize) {
    for (src, dst) in src.chunks_exact(from).zip(dst.chunks_exact_mut(to)) {
        let n = from.min(to);
        dst[..n].copy_from_slice(&src[..n]);
        dst[n..].fill(0.0);
    }
}
