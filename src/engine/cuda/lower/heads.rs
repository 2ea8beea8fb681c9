//! Attention. Fast kernels finish their heads themselves; the heads of all other kernels are finished op by op.

use super::super::sys;
use super::lowering::Lowering;
use super::parts::{NO_PART, NONE, copy};
use super::rounding::is_plain;
use crate::EngineError;
use crate::program::{Attention, Covers, FinishHeads, Heads, Linear};
use model::arch::WindowKind;
use model::spec::RunSight;
use model::{NormKind, RopePairing};

/// The longest head that the fast kernels take.
const MAX_HEAD_DIM: usize = 256;

/// Whether the fast kernels support sinks and chunked windows for heads of this length: `attention_extras` in `cuda/attention`.
fn has_extras(head_dim: usize) -> bool {
    head_dim <= 64 || (97..=128).contains(&head_dim)
}

/// The destination of finished heads.
pub enum HeadTarget {
    Rows(sys::pen_part),
    Keys(u32),
    Values(u32),
}

impl Lowering<'_> {
    pub fn attention(&mut self, op: &Attention) -> Result<(), EngineError> {
        let kept = self.out.caches[self.cache(op.cache)];
        let is_fast = self.is_fast(op);
        let (heads, stride) = (op.queries.count, kept.key_dim as usize);
        let rows_apart = self.from.buffer(op.out.buffer).per_row > 1;
        // a head is a row of its own, unless such rows would need padding between them
        let gathered = rows_apart && !op.value_dim.is_multiple_of(64);
        let out = if gathered { self.shared_halves("ungathered heads", heads * op.value_dim) } else { self.buffer(op.out.buffer) };
        let mut attend = self.attend(op, out);
        match self.fresh(op) {
            Some(qkv) if is_fast => {
                attend.qkv = qkv;
                attend.q = self.shared_halves("queries", heads * op.queries.dim);
                self.fresh_heads(op, &mut attend);
                self.op(attend);
            }
            _ => {
                let is_general = |heads: usize| !is_fast || !(heads * stride).is_multiple_of(64);
                if is_general(heads) != is_general(heads * self.from.scope.shard.count) {
                    return Err(self.cannot(&format!("{heads} heads of {stride} elements take another kernel than all heads")));
                }
                attend.general = u32::from(is_general(heads));
                attend.q = self.general_heads(op, stride)?;
                self.op(attend);
            }
        }
        if gathered {
            let from = sys::pen_part { buffer: out, first: 0, stride: op.value_dim as u32 };
            let to = self.part(op.out);
            self.op(copy(from, to, heads, op.value_dim));
        }
        Ok(())
    }

    /// The attention op with the parameters of a layer.
    fn attend(&mut self, op: &Attention, out: u32) -> sys::pen_attention {
        let window = op.window.unwrap_or(0) as u32;
        let window_kind = match op.window_kind {
            WindowKind::Sliding => sys::PEN_SLIDING,
            WindowKind::Chunked => sys::PEN_CHUNKED,
            WindowKind::Symmetric => sys::PEN_SYMMETRIC,
        };
        sys::pen_attention {
            qkv: NONE,
            q: NONE,
            out,
            cache: self.cache(op.cache) as u32,
            heads: op.queries.count as u32,
            value_dim: op.value_dim as u32,
            q_bias: NONE,
            k_bias: NONE,
            v_bias: NONE,
            q_norm: NONE,
            k_norm: NONE,
            rope: NONE,
            rope_halves: u32::from(self.from.pairing == RopePairing::Halves),
            general: 0,
            window,
            window_kind,
            bidirectional: u32::from(op.bidirectional),
            run_sight: match op.run_sight {
                RunSight::Causal => sys::PEN_SIGHT_CAUSAL,
                RunSight::Whole => sys::PEN_SIGHT_WHOLE,
                RunSight::Later => sys::PEN_SIGHT_LATER,
            },
            sinks: self.vector_or_none(op.sinks),
            eps: self.weights.spec.norm_eps,
            scale: op.scale,
            soft_cap: op.soft_cap.unwrap_or(0.0),
            alibi: op.alibi.unwrap_or(0.0),
        }
    }

    /// Whether the fast kernels compute this attention.
    fn is_fast(&self, op: &Attention) -> bool {
        let (kept, dim) = (self.out.caches[self.cache(op.cache)], op.queries.dim);
        let windowed = op.window.is_some();
        let extras = op.sinks.is_some() || (windowed && op.window_kind == WindowKind::Chunked);
        let known = !(windowed && op.window_kind == WindowKind::Symmetric) && (!extras || has_extras(dim));
        let same = dim == op.value_dim && [kept.key_dim, kept.value_dim] == [dim as u32; 2];
        known && same && !op.bidirectional && op.alibi.is_none() && dim <= MAX_HEAD_DIM && dim.is_multiple_of(8)
    }

    /// Whether the fast kernels also finish the heads of these products.
    pub fn finishes_heads(&self, op: &Attention, products: &Linear) -> bool {
        let (Some(keys), Some(values)) = (op.keys, op.values) else { return false };
        let plain = |heads: &Heads| {
            let norm = heads.norm.is_none_or(|(params, covers)| {
                covers == Covers::Head && params.kind == NormKind::Rms && params.bias.is_none() && params.weight.is_some()
            });
            norm && !heads.norm_after_rope && heads.clamp.is_none() && heads.temperature.is_none() && heads.from.stride == heads.dim
        };
        let own = [op.queries, keys, values].map(|heads| heads.from.buffer);
        let whole = products.products.iter().map(|(_, out)| out).eq(own);
        self.is_fast(op) && whole && plain(&op.queries) && plain(&keys) && plain(&values) && values.norm.is_none()
    }

    /// The buffer of fresh queries, keys and values, if the op before made all of them and attention can finish them.
    fn fresh(&mut self, op: &Attention) -> Option<u32> {
        let before = self.at.checked_sub(1).map(|at| &self.from.ops[at].op);
        match before {
            Some(crate::program::Op::Linear(products)) if self.finishes_heads(op, products) => Some(self.buffer(op.queries.from.buffer)),
            _ => None,
        }
    }

    fn fresh_heads(&mut self, op: &Attention, attend: &mut sys::pen_attention) {
        let bias = |heads: Option<Heads>| heads.and_then(|heads| heads.bias);
        let norm = |heads: Option<Heads>| heads.and_then(|heads| heads.norm).and_then(|(params, _)| params.weight);
        attend.q_bias = self.vector_or_none(op.queries.bias);
        attend.k_bias = self.vector_or_none(bias(op.keys));
        attend.v_bias = self.vector_or_none(bias(op.values));
        attend.q_norm = self.vector_or_none(norm(Some(op.queries)));
        attend.k_norm = self.vector_or_none(norm(op.keys));
        attend.rope = op.queries.rope.map_or(NONE, |(rope, _)| rope as u32);
    }

    /// Finishes queries, keys and values op by op. Returns the buffer of the queries.
    fn general_heads(&mut self, op: &Attention, stride: usize) -> Result<u32, EngineError> {
        let cache = self.cache(op.cache) as u32;
        if let Some(values) = &op.values {
            self.finish(values, HeadTarget::Values(cache))?;
        }
        if let Some(keys) = &op.keys {
            self.finish(keys, HeadTarget::Keys(cache))?;
        }
        if is_plain(&op.queries) && self.is_half[op.queries.from.buffer.0] {
            return Ok(self.buffer(op.queries.from.buffer));
        }
        let q = self.shared_halves("queries with padding", op.queries.count * stride);
        self.finish(&op.queries, HeadTarget::Rows(sys::pen_part { buffer: q, first: 0, stride: stride as u32 }))?;
        Ok(q)
    }

    pub fn finish_heads(&mut self, op: &FinishHeads) -> Result<(), EngineError> {
        let to = self.part(op.to);
        self.finish(&op.heads, HeadTarget::Rows(to))
    }

    /// Applies bias, clamp, norm, rotation and temperature. A norm over all heads at once is an op of its own between them.
    pub fn finish(&mut self, heads: &Heads, to: HeadTarget) -> Result<(), EngineError> {
        let at = self.part(heads.from);
        let (rope, rope_first) = heads.rope.map_or((NONE, 0), |(rope, first)| (rope as u32, first as u32));
        let mut op = self.plain_heads(at, heads.count, heads.dim);
        (op.bias, op.clamp) = (self.vector_or_none(heads.bias), heads.clamp.unwrap_or(0.0));
        (op.rope, op.rope_first) = (rope, rope_first);
        match heads.norm {
            None => {}
            Some((params, Covers::Row)) => {
                let first = sys::pen_heads { rope: if heads.norm_after_rope { rope } else { NONE }, out: at, ..op };
                if first.bias != NONE || first.clamp != 0.0 || first.rope != NONE {
                    self.op(first);
                }
                // the heads of a row must be contiguous: queries with gates between them never have this norm
                let row = sys::pen_part { stride: 0, ..at };
                let norm = self.group_norm([row; 2], [1, heads.count * heads.dim], &params);
                self.op(norm);
                (op.bias, op.clamp) = (NONE, 0.0);
                op.rope = if heads.norm_after_rope { NONE } else { rope };
            }
            Some((params, covers)) => {
                op.norm = if params.kind == NormKind::Layer { sys::PEN_LAYER_NORM } else { sys::PEN_RMS_NORM };
                op.norm_dim = if let Covers::First(len) = covers { len as u32 } else { 0 };
                op.own = u32::from(covers == Covers::OwnHead);
                (op.weight, op.norm_bias) = (self.vector_or_none(params.weight), self.vector_or_none(params.bias));
                op.norm_behind = u32::from(heads.norm_after_rope && params.weight.is_some());
            }
        }
        if let Some(temperature) = heads.temperature {
            (op.temperature_scale, op.temperature_floor) = (temperature.scale, temperature.floor);
            op.temperature_offset = temperature.offset;
        }
        match to {
            HeadTarget::Rows(part) => op.out = part,
            HeadTarget::Keys(cache) => (op.cache, op.values) = (cache, 0),
            HeadTarget::Values(cache) => (op.cache, op.values) = (cache, 1),
        }
        self.op(op);
        Ok(())
    }

    /// Heads without any finishing.
    fn plain_heads(&self, from: sys::pen_part, heads: usize, dim: usize) -> sys::pen_heads {
        sys::pen_heads {
            r#in: from,
            out: NO_PART,
            heads: heads as u32,
            dim: dim as u32,
            bias: NONE,
            norm: sys::PEN_NO_NORM,
            norm_dim: 0,
            weight: NONE,
            own: 0,
            norm_bias: NONE,
            norm_behind: 0,
            rope: NONE,
            rope_first: 0,
            rope_pairs: match self.from.pairing {
                RopePairing::Adjacent => sys::PEN_PAIRS_ADJACENT,
                RopePairing::Halves => sys::PEN_PAIRS_HALVES,
                RopePairing::Quarters => sys::PEN_PAIRS_QUARTERS,
            },
            cache: NONE,
            values: 0,
            clamp: 0.0,
            eps: self.weights.spec.norm_eps,
            temperature_scale: 0.0,
            temperature_floor: 1.0,
            temperature_offset: 0.0,
        }
    }
}
