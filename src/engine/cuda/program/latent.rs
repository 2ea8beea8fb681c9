//! Builds multi-head latent attention in its absorbed form, as in `cpu/mixer/latent.rs`.

use super::super::sys;
use super::builder::{Builder, Input, Norm, copy, part};
use super::layer::Mixed;
use super::parts::NONE;
use crate::EngineError;
use crate::latent::halves;
use model::spec::Latent;
use model::{TensorRole, Weight, Weights};

/// The length of a float16 row is a multiple of this.
const ROW_UNIT: usize = 64;

impl Builder<'_> {
    pub fn latent(&mut self, i: usize, l: &Latent, input: Input) -> Result<Mixed, EngineError> {
        use TensorRole::*;
        let h = self.ready(input);
        let (heads, rank, head_dim) = (l.num_heads, l.kv_rank, l.nope_dim + l.rope_dim);
        let (cache, rope) = (self.caches[i], self.ropes[i].map_or(NONE, |rope| rope as u32));
        let key_dim = self.program.caches[cache as usize].key_dim as usize;
        let q = self.latent_queries(i, l, h)?;
        let kv_matrix = self.matrix(AttnKvA, i)?;
        let kv = self.product(h, kv_matrix, "latent keys");
        let mut keys = self.plain_heads(part(kv, 0, 0), 1, rank + l.rope_dim);
        keys.norm = sys::PEN_RMS_NORM;
        (keys.norm_dim, keys.weight) = (rank as u32, self.required_vector(AttnKvANorm, i)?);
        (keys.rope, keys.rope_first, keys.cache) = (rope, rank as u32, cache);
        self.op(keys);

        // queries: the latent part through each head's matrix, and the rotated part
        let query = self.halves(&format!("latent queries of {key_dim} elements"), heads * key_dim);
        let (temperature, offset) = (l.temperature.map_or([0.0, 1.0], |t| [t.scale, t.floor]), l.temperature.map_or(0.0, |t| t.offset));
        let warm = |op: sys::pen_heads| sys::pen_heads {
            temperature_scale: temperature[0],
            temperature_floor: temperature[1],
            temperature_offset: offset,
            ..op
        };
        if l.nope_dim > 0 {
            let rows = self.head_rows("unrotated queries", part(q, 0, head_dim), heads, l.nope_dim);
            let absorbed = self.buffer("absorbed queries", sys::PEN_F32, rank, heads);
            let stack = self.absorbing(i, l)?;
            self.op(sys::pen_each_head { stack, r#in: rows, out: absorbed, heads: heads as u32 });
            let from = self.plain_heads(part(absorbed, 0, rank), heads, rank);
            self.op(warm(sys::pen_heads { out: part(query, 0, key_dim), ..from }));
        }
        let rotated = self.plain_heads(part(q, l.nope_dim, head_dim), heads, l.rope_dim);
        self.op(warm(sys::pen_heads { rope, out: part(query, rank, key_dim), ..rotated }));

        // Each head is a row of its own, unless such rows would need padding between them.
        let apart = rank % ROW_UNIT == 0;
        let name = "attention over latent vectors";
        let latent = if apart { self.buffer(name, sys::PEN_F16, rank, heads) } else { self.halves(name, heads * rank) };
        let op = self.plain_attention(cache, latent, [heads, rank], l.scale);
        self.op(sys::pen_attention { q: query, general: 1, ..op });
        let rows = if apart { latent } else { self.head_rows("gathered latent vectors", part(latent, 0, rank), heads, rank) };
        let values = self.buffer("values of heads", sys::PEN_F32, l.value_dim, heads);
        let stack = self.expanding(i, l)?;
        self.op(sys::pen_each_head { stack, r#in: rows, out: values, heads: heads as u32 });
        let out = self.rounded("attention of latent heads", part(values, 0, 0), heads * l.value_dim);
        Ok(Mixed { rows: out, output: AttnOutput, bias: self.vector(AttnOutputBias, i) })
    }

    fn latent_queries(&mut self, i: usize, l: &Latent, h: u32) -> Result<u32, EngineError> {
        use TensorRole::*;
        if l.q_rank == 0 {
            let matrix = self.matrix(AttnQ, i)?;
            return Ok(self.product(h, matrix, "unfinished queries"));
        }
        let (down, up) = (self.matrix(AttnQA, i)?, self.matrix(AttnQB, i)?);
        let low = self.product(h, down, "queries of low rank");
        let norm: Norm = self.rms_norm(AttnQANorm, i)?;
        let rows = self.halves("queries of low rank", l.q_rank);
        self.group_norm([part(low, 0, 0), part(rows, 0, 0)], 1, l.q_rank, norm);
        Ok(self.product(rows, up, "unfinished queries"))
    }

    /// Copies heads to rows of their own, rounded to float16: the input of the heads' matrices.
    fn head_rows(&mut self, name: &str, from: sys::pen_part, heads: usize, dim: usize) -> u32 {
        let rows = self.buffer(name, sys::PEN_F16, dim, heads);
        self.op(copy(from, part(rows, 0, dim.next_multiple_of(ROW_UNIT)), heads, dim));
        rows
    }

    /// The matrices that map each head's queries to the latent space.
    fn absorbing(&mut self, i: usize, l: &Latent) -> Result<u32, EngineError> {
        let heads = l.num_heads;
        if l.split {
            return self.stack(TensorRole::AttnKB, i, heads, heads);
        }
        let keys = halves(l, &self.weight(TensorRole::AttnKvB, i)?)[0];
        let shape = [l.kv_rank, l.nope_dim, heads];
        Ok(self.made_matrices((TensorRole::AttnKB, i), shape, move |weights| transposed(weights, &keys)))
    }

    /// The matrices that map the latent space to each head's values.
    fn expanding(&mut self, i: usize, l: &Latent) -> Result<u32, EngineError> {
        let heads = l.num_heads;
        if l.split {
            return self.stack(TensorRole::AttnVB, i, heads, heads);
        }
        let values = halves(l, &self.weight(TensorRole::AttnKvB, i)?)[1];
        Ok(self.file_matrices((TensorRole::AttnVB, i), values, heads))
    }
}

/// The transposes of a stack's matrices, as float16.
fn transposed(weights: &Weights, stack: &Weight) -> Vec<u8> {
    let mut out = Vec::new();
    for part in weights.parts(stack) {
        let mut floats = vec![0f32; part.rows * part.cols];
        (part.quant.dequantize)(weights.data(&part), &mut floats);
        for col in 0..part.cols {
            out.extend((0..part.rows).flat_map(|row| half::f16::from_f32(floats[row * part.cols + col]).to_le_bytes()));
        }
    }
    out
}
