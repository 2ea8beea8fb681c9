//! Runs multi-head latent attention (DeepSeek-V2) in its absorbed form: all heads attend over the latent vectors themselves. Each head's
//! query is projected into the latent space, and the head's result there is projected to a value. So the cache holds one short row per
//! token.

use super::super::loader::{Loader, Mat};
use super::super::run::Run;
use super::super::simd::attend::{Attend, Mask};
use super::super::simd::norm::Norm;
use super::super::simd::rows::{Job, Rows};
use super::Step;
use crate::EngineError;
use crate::latent::halves;
use model::TensorRole;
use model::spec::Latent;

pub struct LatentLayer {
    spec: Latent,
    layer: usize,
    /// The index of the rotation.
    rope: Option<usize>,
    mask: Mask,
    /// The first half of a low-rank query projection, and its norm.
    low: Option<(Mat, Norm)>,
    q: Mat,
    /// The projection to the latent vector and the shared rotated key.
    kv: Mat,
    kv_norm: Norm,
    /// [heads] from a head's query to the latent space. None if all elements of a head are rotated.
    absorb: Option<Mat>,
    /// [heads] from the latent space to a head's value
    values: Mat,
}

/// The activations of a step. Rows of heads hold all tokens of head 0 first.
#[derive(Default)]
pub struct LatentBuffers {
    low: Rows,      // [num_tokens, q_rank]
    q: Rows,        // [num_tokens, heads · (nope + rope)]
    kv: Rows,       // [num_tokens, kv_rank + rope] keys of the cache, whose first kv_rank elements are its values
    nope: Rows,     // [heads · num_tokens, nope]
    absorbed: Rows, // [heads · num_tokens, kv_rank]
    query: Rows,    // [num_tokens, heads · (kv_rank + rope, padded)]
    mixed: Rows,    // [num_tokens, heads · (kv_rank, padded)]
    latent: Rows,   // [heads · num_tokens, kv_rank]
    value: Rows,    // [heads · num_tokens, value]
}

impl LatentLayer {
    pub fn load(loader: Loader, layer: usize, spec: &Latent, rope: Option<usize>) -> Result<Self, EngineError> {
        use TensorRole::*;
        let (kernels, weights, arch) = (loader.kernels, loader.weights, loader.weights.spec.arch);
        let low = || -> Result<_, EngineError> { Ok((loader.mat(AttnQA, layer)?, loader.rms_norm(AttnQANorm, layer)?)) };
        let (absorb, values) = if spec.split {
            let absorb = (spec.nope_dim > 0).then(|| loader.mat(AttnKB, layer)).transpose()?;
            (absorb, loader.mat(AttnVB, layer)?)
        } else {
            let [keys, values] = halves(spec, loader.weight(AttnKvB, layer)?);
            let absorb = (spec.nope_dim > 0).then(|| Mat::transposed(kernels, weights, &keys)).transpose()?;
            (absorb, Mat::new(kernels, weights, &values)?)
        };
        Ok(Self {
            spec: *spec,
            layer,
            rope,
            mask: Mask { window: None, kind: arch.window_kind, bidirectional: arch.bidirectional },
            low: (spec.q_rank > 0).then(low).transpose()?,
            q: loader.mat(if spec.q_rank > 0 { AttnQB } else { AttnQ }, layer)?,
            kv: loader.mat(AttnKvA, layer)?,
            kv_norm: loader.rms_norm(AttnKvANorm, layer)?,
            absorb,
            values,
        })
    }

    pub fn run(&self, run: &mut Run, step: &mut Step, h: &Rows, (b, out): (&mut LatentBuffers, &mut Rows)) {
        let (n, heads, value_dim) = (h.num_rows(), self.spec.num_heads, self.spec.value_dim);
        self.project(run, step, h, b);
        let keys = [b.kv.width(), self.spec.kv_rank];
        let group = step.cache.layer(self.layer).group;
        step.cache.write(run.pool, self.layer, step.batch.places(group), (&b.kv, &b.kv), keys);
        self.attend(run, step, b);
        b.value.reshape(heads * n, value_dim);
        self.each_head(run, &self.values, &b.latent, &mut b.value);
        out.reshape(n, heads * value_dim);
        out.for_each(run.pool, |i, row| {
            row.chunks_exact_mut(value_dim).enumerate().for_each(|(head, value)| value.copy_from_slice(b.value.row(head * n + i)));
        });
    }

    /// Computes b.q, b.kv and b.absorbed: the queries, the rows of the cache, and the queries in the latent space.
    fn project(&self, run: &mut Run, step: &Step, h: &Rows, b: &mut LatentBuffers) {
        let (spec, n, weights, kernels) = (&self.spec, h.num_rows(), run.weights, run.kernels);
        let head_dim = spec.nope_dim + spec.rope_dim;
        b.q.reshape(n, spec.num_heads * head_dim);
        b.kv.reshape(n, spec.kv_rank + spec.rope_dim);
        match &self.low {
            Some((matrix, norm)) => {
                b.low.reshape(n, spec.q_rank);
                run.linear(h, false, vec![(matrix.matrix(weights), &mut b.low), (self.kv.matrix(weights), &mut b.kv)]);
                b.low.for_each(run.pool, |_, row| kernels.norm_in_place(row, norm));
                run.linear(&b.low, false, vec![(self.q.matrix(weights), &mut b.q)]);
            }
            None => run.linear(h, false, vec![(self.q.matrix(weights), &mut b.q), (self.kv.matrix(weights), &mut b.kv)]),
        }
        b.kv.for_each(run.pool, |i, row| {
            let (latent, key) = row.split_at_mut(spec.kv_rank);
            kernels.norm_in_place(latent, &self.kv_norm);
            self.rotate(step, i, key);
        });
        let Some(absorb) = &self.absorb else { return };
        b.nope.reshape(spec.num_heads * n, spec.nope_dim);
        b.nope.for_each(run.pool, |i, row| row.copy_from_slice(&b.q.row(i % n)[i / n * head_dim..][..spec.nope_dim]));
        b.absorbed.reshape(spec.num_heads * n, spec.kv_rank);
        self.each_head(run, absorb, &b.nope, &mut b.absorbed);
    }

    fn rotate(&self, step: &Step, row: usize, elements: &mut [f32]) {
        if let Some(rope) = self.rope {
            step.ropes[rope].rotate(elements, step.rotations[rope].row(row));
        }
    }

    /// Computes b.latent: each head's attention over the cached latent vectors.
    fn attend(&self, run: &mut Run, step: &Step, b: &mut LatentBuffers) {
        let (spec, n, kept) = (&self.spec, b.q.num_rows(), *step.cache.layer(self.layer));
        b.query.reshape(n, spec.num_heads * kept.key_dim);
        b.query.for_each(run.pool, |i, row| {
            let factor = spec.temperature.map(|temperature| temperature.at(step.batch.positions[i]));
            let heads = b.q.row(i).chunks_exact(spec.nope_dim + spec.rope_dim);
            for (head, (to, from)) in row.chunks_exact_mut(kept.key_dim).zip(heads).enumerate() {
                let (latent, rest) = to.split_at_mut(spec.kv_rank);
                match &self.absorb {
                    Some(_) => latent.copy_from_slice(b.absorbed.row(head * n + i)),
                    None => latent.fill(0.0),
                }
                let (rotated, padding) = rest.split_at_mut(spec.rope_dim);
                rotated.copy_from_slice(&from[spec.nope_dim..]);
                self.rotate(step, i, rotated);
                padding.fill(0.0);
                if let Some(factor) = factor {
                    to.iter_mut().for_each(|x| *x *= factor);
                }
            }
        });
        b.mixed.reshape(n, spec.num_heads * kept.value_dim);
        let a = Attend {
            cache: step.cache,
            layer: self.layer,
            num_heads: spec.num_heads,
            scale: spec.scale,
            soft_cap: None,
            mask: self.mask,
            alibi: None,
            sinks: None,
            sequences: step.sequences,
            tables: step.tables(self.layer),
        };
        run.kernels.attend(&b.query, &mut b.mixed, run.pool, &a);
        b.latent.reshape(spec.num_heads * n, spec.kv_rank);
        b.latent.for_each(run.pool, |i, row| row.copy_from_slice(&b.mixed.row(i % n)[i / n * kept.value_dim..][..spec.kv_rank]));
    }

    /// out = x · Wᵀ, where each head's rows use that head's matrix.
    fn each_head(&self, run: &mut Run, stack: &Mat, x: &Rows, out: &mut Rows) {
        let (heads, n) = (self.spec.num_heads, x.num_rows() / self.spec.num_heads);
        let job = |head: usize| Job { matrix: stack.expert(run.weights, head, heads), rows: head * n..(head + 1) * n, out: 0 };
        let jobs: Vec<Job> = (0..heads).map(job).collect();
        run.kernels.products(run.pool, run.scratch, x, false, &jobs, &mut [out]);
    }
}
