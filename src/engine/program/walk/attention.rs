//! Writes attention over keys and values of heads.

use super::*;
use model::spec::{Attention as Spec, AttnGate as Gate, HeadNorm};

/// The roles of a projection and of its bias, and of the norm of its heads and of that norm's bias.
struct Roles {
    bias: TensorRole,
    norm: Option<[TensorRole; 2]>,
}

impl Walk<'_> {
    pub fn attention(&mut self, i: usize, a: &Spec, h: BufferId) -> Result<Mixed, EngineError> {
        use TensorRole::*;
        let arch = self.spec().arch;
        let own = a.kv_of.is_none();
        let has_values = own && self.has(AttnV, i);
        let q_matrix = self.matrix(AttnQ, i)?;
        let q = self.product_buffer(q_matrix, "q");
        let mut products = vec![(q_matrix, q)];
        for (role, name) in [(AttnK, "k"), (AttnV, "v")].into_iter().take(usize::from(own) + usize::from(has_values)) {
            let matrix = self.matrix(role, i)?;
            products.push((matrix, self.product_buffer(matrix, name)));
        }
        let (k, v) = (products.get(1).map(|(_, k)| *k), products.get(2).map(|(_, v)| *v));
        let gate = match a.gate {
            Gate::None => None,
            // each head holds its query, then its gate
            Gate::InQuery => Some(part(q, a.head_dim, 2 * a.head_dim)),
            Gate::Own => {
                let matrix = self.matrix(AttnGate, i)?;
                let gate = self.product_buffer(matrix, "attention's gate");
                products.push((matrix, gate));
                Some(part(gate, 0, a.value_dim))
            }
        };
        self.products(h, products, false);
        let out = self.buffer("attention", a.num_heads * a.value_dim);
        let from = part(q, 0, a.head_dim * a.gate.query_rows());
        let roles = Roles { bias: AttnQBias, norm: Some([AttnQNorm, AttnQNormBias]) };
        let queries = self.heads(i, a, (from, a.num_heads, a.head_dim), a.q_norm, &roles)?;
        let queries = Heads { temperature: a.temperature, ..queries };
        let (mut keys, mut values) = (None, None);
        if let Some(k) = k {
            let at = (part(k, 0, a.head_dim), a.num_kv_heads, a.head_dim);
            keys = Some(self.heads(i, a, at, a.k_norm, &Roles { bias: AttnKBias, norm: Some([AttnKNorm, AttnKNormBias]) })?);
            // without a projection of their own, the values are the keys before anything is done to them
            let from = part(v.unwrap_or(k), 0, a.value_dim);
            let finished = self.heads(i, a, (from, a.num_kv_heads, a.value_dim), a.v_norm, &Roles { bias: AttnVBias, norm: None })?;
            let as_they_are = v.is_none();
            let (bias, clamp) = (finished.bias.filter(|_| !as_they_are), finished.clamp.filter(|_| !as_they_are));
            values = Some(Heads { bias, clamp, rope: None, ..finished });
        }
        let sinks = self.vector(AttnSinks, i);
        self.op(Op::Attention(Box::new(Attention {
            queries,
            keys,
            values,
            cache: self.cache_of(a.kv_of.unwrap_or(i)),
            value_dim: a.value_dim,
            scale: a.scale,
            soft_cap: a.soft_cap,
            window: a.window,
            window_kind: arch.window_kind,
            bidirectional: arch.bidirectional,
            alibi: a.alibi,
            sinks,
            out: part(out, 0, a.value_dim),
        })));
        if let Some(gate) = gate {
            let rows = part(out, 0, a.value_dim);
            self.map(Map { by: Some((gate, Function::Sigmoid)), ..copy(rows, rows, a.num_heads, a.value_dim) });
        }
        if arch.required.contains(&AttnSubNorm) {
            let norm = self.rms_norm(AttnSubNorm, i)?;
            self.norm_in_place(out, norm);
        }
        Ok(Mixed { rows: out, output: AttnOutput, bias: self.vector(AttnOutputBias, i) })
    }

    /// The cache of a layer. The model's description says that the layer has one.
    pub fn cache_of(&self, layer: usize) -> usize {
        self.caches.get(layer).copied().flatten().unwrap_or(usize::MAX)
    }

    /// Heads with the layer's bias, clamp, norm and rotation.
    fn heads(
        &mut self,
        i: usize,
        a: &Spec,
        (from, count, dim): (Part, usize, usize),
        norm: HeadNorm,
        roles: &Roles,
    ) -> Result<Heads, EngineError> {
        let arch = self.spec().arch;
        let norm = match (norm, roles.norm) {
            (HeadNorm::None, _) | (HeadNorm::Head | HeadNorm::OwnHead | HeadNorm::Row, None) => None,
            (HeadNorm::Weightless, _) => Some((self.rms(None), Covers::Head)),
            (kind, Some([weight, bias])) => {
                let weight = Some(self.required_vector(weight, i)?);
                let params = NormParams { kind: arch.norm, weight, bias: self.vector(bias, i), eps: self.spec().norm_eps };
                let covers = match kind {
                    HeadNorm::Row => Covers::Row,
                    HeadNorm::OwnHead => Covers::OwnHead,
                    _ => Covers::Head,
                };
                Some((params, covers))
            }
        };
        let bias = self.vector(roles.bias, i);
        let rope = self.ropes[i].map(|rope| (rope, 0));
        Ok(Heads { norm, bias, clamp: a.clamp, rope, norm_after_rope: arch.norm_after_rope, ..plain(from, count, dim) })
    }
}

/// Heads to which nothing is done.
pub fn plain(from: Part, count: usize, dim: usize) -> Heads {
    Heads { from, count, dim, bias: None, clamp: None, norm: None, norm_after_rope: false, rope: None, temperature: None }
}
