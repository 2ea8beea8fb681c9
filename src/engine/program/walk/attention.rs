//! Writes attention over keys and values of heads.

use super::*;
use crate::program::scope::Span;
use crate::program::tensor::missing;
use model::spec::{Attention as Spec, AttnGate as Gate, HeadNorm};

/// The roles of a projection and of its bias, and of the norm of its heads and of that norm's bias.
struct Roles {
    bias: TensorRole,
    norm: Option<[TensorRole; 2]>,
}

/// The rows of an attention before anything is done to their heads.
struct Projected {
    q: BufferId,
    /// None if the cache is another layer's.
    k: Option<BufferId>,
    /// None if the keys are also the values.
    v: Option<BufferId>,
    gate: Option<Part>,
}

impl Walk<'_> {
    pub fn attention(&mut self, i: usize, a: &Spec, h: BufferId) -> Result<Mixed, EngineError> {
        use TensorRole::*;
        let arch = self.spec().arch;
        let (heads, kv_heads) = (self.own_heads(a.num_heads)?, self.own_kv_heads(a.num_kv_heads)?);
        if a.alibi.is_some() {
            self.must_be_whole("attention", "ALiBi's slopes of all heads")?;
        }
        let Projected { q, k, v, gate } = self.project(i, a, [heads, kv_heads], h)?;
        let out = self.buffer("attention", heads.len * a.value_dim);
        let from = part(q, 0, a.head_dim * a.gate.query_rows());
        let roles = Roles { bias: AttnQBias, norm: Some([AttnQNorm, AttnQNormBias]) };
        let queries = self.heads(i, a, (from, heads, a.head_dim), a.q_norm, &roles)?;
        let queries = Heads { temperature: a.temperature, ..queries };
        let (mut keys, mut values) = (None, None);
        if let Some(k) = k {
            let at = (part(k, 0, a.head_dim), kv_heads, a.head_dim);
            keys = Some(self.heads(i, a, at, a.k_norm, &Roles { bias: AttnKBias, norm: Some([AttnKNorm, AttnKNormBias]) })?);
            // without a projection of their own, the values are the keys before anything is done to them
            let from = part(v.unwrap_or(k), 0, a.value_dim);
            let finished = self.heads(i, a, (from, kv_heads, a.value_dim), a.v_norm, &Roles { bias: AttnVBias, norm: None })?;
            let as_they_are = v.is_none();
            let (bias, clamp) = (finished.bias.filter(|_| !as_they_are), finished.clamp.filter(|_| !as_they_are));
            values = Some(Heads { bias, clamp, rope: None, ..finished });
        }
        let out_part = part(out, 0, a.value_dim);
        if let (Some(within), Some(keys), Some(values)) = (self.within(i), keys, values) {
            self.op(Op::Among(Box::new(Among { queries, keys, values, scale: a.scale, within, out: out_part })));
            return Ok(Mixed { rows: out, output: AttnOutput, bias: self.vector(AttnOutputBias, i) });
        }
        let sinks = self.vector_part(AttnSinks, i, heads);
        self.op(Op::Attention(Box::new(Attention {
            queries,
            keys,
            values,
            cache: self.cache_of(self.links.caches[i].unwrap_or(i)),
            value_dim: a.value_dim,
            scale: a.scale,
            soft_cap: a.soft_cap,
            window: a.window,
            window_kind: arch.window_kind,
            bidirectional: arch.bidirectional,
            alibi: a.alibi,
            sinks,
            run_sight: a.picture_rows,
            out: out_part,
        })));
        if let Some(gate) = gate {
            let rows = part(out, 0, a.value_dim);
            self.map(Map { by: Some((gate, Function::Sigmoid)), ..copy(rows, rows, heads.len, a.value_dim) });
        }
        if arch.required.contains(&AttnSubNorm) {
            self.must_be_whole("norm", "a norm of all heads")?;
            let norm = self.rms_norm(AttnSubNorm, i)?;
            self.norm_in_place(out, norm);
        }
        Ok(Mixed { rows: out, output: AttnOutput, bias: self.vector(AttnOutputBias, i) })
    }

    /// The products of queries, keys, values and gate.
    fn project(&mut self, i: usize, a: &Spec, [heads, kv_heads]: [Span; 2], h: BufferId) -> Result<Projected, EngineError> {
        use TensorRole::*;
        let own = self.links.caches[i] == Some(i);
        let has_values = own && self.has(AttnV, i);
        let q_matrix = self.rows(AttnQ, i, heads.times(a.head_dim * a.gate.query_rows()))?;
        let q = self.product_buffer(q_matrix, "q");
        let mut products = vec![(q_matrix, q)];
        let keys_and_values = [(AttnK, "k", a.head_dim), (AttnV, "v", a.value_dim)];
        for (role, name, dim) in keys_and_values.into_iter().take(usize::from(own) + usize::from(has_values)) {
            let matrix = self.rows(role, i, kv_heads.times(dim))?;
            products.push((matrix, self.product_buffer(matrix, name)));
        }
        let (k, v) = (products.get(1).map(|(_, k)| *k), products.get(2).map(|(_, v)| *v));
        let gate = match a.gate {
            Gate::None => None,
            // each head holds its query, then its gate
            Gate::InQuery => Some(part(q, a.head_dim, 2 * a.head_dim)),
            Gate::Own => {
                let matrix = self.rows(AttnGate, i, heads.times(a.value_dim))?;
                let gate = self.product_buffer(matrix, "attention's gate");
                products.push((matrix, gate));
                Some(part(gate, 0, a.value_dim))
            }
        };
        self.products(h, products, false);
        Ok(Projected { q, k, v, gate })
    }

    /// The cache of a layer, which has one.
    pub fn cache_of(&self, layer: usize) -> usize {
        self.caches.get(layer).copied().flatten().unwrap_or(usize::MAX)
    }

    /// Heads with the layer's bias, clamp, norm and rotation.
    fn heads(
        &mut self,
        i: usize,
        a: &Spec,
        (from, own, dim): (Part, Span, usize),
        norm: HeadNorm,
        roles: &Roles,
    ) -> Result<Heads, EngineError> {
        let arch = self.spec().arch;
        let norm = match (norm, roles.norm) {
            (HeadNorm::None, _) | (HeadNorm::Head | HeadNorm::OwnHead | HeadNorm::Row, None) => None,
            (HeadNorm::Weightless, _) => Some((self.rms(None), Covers::Head)),
            (kind, Some([weight, bias])) => {
                let all = match kind {
                    HeadNorm::OwnHead => own.times(dim),
                    _ => Span::all(1),
                };
                if kind == HeadNorm::Row {
                    self.must_be_whole("attention", "a norm of all heads")?;
                }
                let weight = Some(self.vector_part(weight, i, all).ok_or_else(|| missing(&weight.name(i)))?);
                let params = NormParams { kind: arch.norm, weight, bias: self.vector_part(bias, i, all), eps: self.spec().norm_eps };
                let covers = match kind {
                    HeadNorm::Row => Covers::Row,
                    HeadNorm::OwnHead => Covers::OwnHead,
                    _ => Covers::Head,
                };
                Some((params, covers))
            }
        };
        let bias = self.vector_part(roles.bias, i, own.times(dim));
        let rope = self.links.ropes[i].map(|rope| (rope, 0));
        Ok(Heads { norm, bias, clamp: a.clamp, rope, norm_after_rope: arch.norm_after_rope, ..plain(from, own.len, dim) })
    }
}

/// Heads to which nothing is done.
pub fn plain(from: Part, count: usize, dim: usize) -> Heads {
    Heads { from, count, dim, bias: None, clamp: None, norm: None, norm_after_rope: false, rope: None, temperature: None }
}
