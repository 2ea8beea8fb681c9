//! Writes multi-head latent attention (DeepSeek-V2) in its absorbed form: all heads attend over the latent vectors themselves. Each head's
//! query is projected into the latent space, and the head's result there is projected to a value. So the cache holds one short row per
//! token.

use super::attention::plain;
use super::*;
use crate::program::scope::Span;
use model::spec::Latent;

impl Walk<'_> {
    pub fn latent(&mut self, i: usize, l: &Latent, h: BufferId) -> Result<Mixed, EngineError> {
        use TensorRole::*;
        let own = self.own_heads(l.num_heads)?;
        let (heads, rank, head_dim, key_dim) = (own.len, l.kv_rank, l.nope_dim + l.rope_dim, l.kv_rank + l.rope_dim);
        let rope = self.links.ropes[i];
        let (q, kv) = self.latent_products(i, l, own, h)?;
        let query = self.buffer("latent queries", heads * key_dim);
        if l.nope_dim > 0 {
            let rows = self.rows_buffer("unrotated queries", l.nope_dim, heads);
            self.map(copy(part(q, 0, head_dim), part(rows, 0, l.nope_dim), heads, l.nope_dim));
            let absorbed = self.rows_buffer("absorbed queries", rank, heads);
            let stack = self.absorbing(i, l, own)?;
            self.op(Op::EachHead(EachHead { stack, input: rows, out: absorbed, heads }));
            let absorbed = Heads { temperature: l.temperature, ..plain(part(absorbed, 0, rank), heads, rank) };
            self.op(Op::Heads(FinishHeads { heads: absorbed, to: part(query, 0, key_dim) }));
        }
        let rotated = Heads {
            rope: rope.map(|rope| (rope, 0)),
            temperature: l.temperature,
            ..plain(part(q, l.nope_dim, head_dim), heads, l.rope_dim)
        };
        self.op(Op::Heads(FinishHeads { heads: rotated, to: part(query, rank, key_dim) }));
        let norm = self.rms_norm(AttnKvANorm, i)?;
        let keys = Heads { norm: Some((norm, Covers::First(rank))), rope: rope.map(|rope| (rope, rank)), ..plain(whole(kv), 1, key_dim) };
        let latent = self.rows_buffer("attention over latent vectors", rank, heads);
        self.op(Op::Attention(Box::new(Attention {
            queries: plain(part(query, 0, key_dim), heads, key_dim),
            keys: Some(keys),
            values: None,
            cache: self.cache_of(i),
            value_dim: rank,
            scale: l.scale,
            soft_cap: None,
            window: None,
            window_kind: self.spec().arch.window_kind,
            bidirectional: self.spec().arch.bidirectional,
            run_sight: model::spec::RunSight::Causal,
            alibi: None,
            sinks: None,
            out: part(latent, 0, rank),
        })));
        let values = self.rows_buffer("values of heads", l.value_dim, heads);
        let stack = self.expanding(i, l, own)?;
        self.op(Op::EachHead(EachHead { stack, input: latent, out: values, heads }));
        let out = self.buffer("attention of latent heads", heads * l.value_dim);
        self.map(copy(part(values, 0, l.value_dim), part(out, 0, l.value_dim), heads, l.value_dim));
        Ok(Mixed { rows: out, output: AttnOutput, bias: self.vector(AttnOutputBias, i) })
    }

    /// The queries of all heads, and the row of the latent vector and the shared key.
    fn latent_products(&mut self, i: usize, l: &Latent, own: Span, h: BufferId) -> Result<(BufferId, BufferId), EngineError> {
        use TensorRole::*;
        let kv_matrix = self.matrix(AttnKvA, i)?;
        let kv = self.product_buffer(kv_matrix, "latent keys");
        let rows = own.times(l.nope_dim + l.rope_dim);
        if l.q_rank == 0 {
            let matrix = self.rows(AttnQ, i, rows)?;
            let q = self.product_buffer(matrix, "unfinished queries");
            self.products(h, [(matrix, q), (kv_matrix, kv)], false);
            return Ok((q, kv));
        }
        let (down, up) = (self.matrix(AttnQA, i)?, self.rows(AttnQB, i, rows)?);
        let low = self.product_buffer(down, "queries of low rank");
        self.products(h, [(down, low), (kv_matrix, kv)], false);
        let norm = self.rms_norm(AttnQANorm, i)?;
        let normed = self.buffer("normalised queries of low rank", l.q_rank);
        self.norm_to(low, normed, norm);
        Ok((self.product(normed, up, "unfinished queries"), kv))
    }

    /// The matrices that map each own head's queries to the latent space.
    fn absorbing(&mut self, i: usize, l: &Latent, own: Span) -> Result<TensorId, EngineError> {
        if l.split {
            return self.stack(TensorRole::AttnKB, i, own, own.len);
        }
        self.latent_part(Source::LatentKeys(i), i, [l.kv_rank, l.nope_dim], own)
    }

    /// The matrices that map the latent space to each head's values.
    fn expanding(&mut self, i: usize, l: &Latent, own: Span) -> Result<TensorId, EngineError> {
        if l.split {
            return self.stack(TensorRole::AttnVB, i, own, own.len);
        }
        self.latent_part(Source::LatentValues(i), i, [l.value_dim, l.kv_rank], own)
    }
}
