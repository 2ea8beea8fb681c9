//! Builds attention. Fast kernels finish their heads themselves; the heads of all other kernels are finished op by op.

use super::super::sys;
use super::builder::{Builder, Input, NO_PART, Norm, copy, part};
use super::layer::Mixed;
use super::parts::NONE;
use crate::EngineError;
use model::arch::WindowKind;
use model::spec::{Attention, AttnGate as Gate, HeadNorm};
use model::{NormKind, RopePairing, TensorRole};

/// The longest head that the fast kernels take.
const MAX_HEAD_DIM: usize = 256;

/// Whether the fast kernels support sinks and chunked windows for heads of this length: `attention_extras` in `cuda/attention`.
fn has_extras(head_dim: usize) -> bool {
    head_dim <= 64 || (97..=128).contains(&head_dim)
}

/// Queries, keys or values of a row before they are finished.
struct Heads {
    at: sys::pen_part,
    count: usize,
    dim: usize,
    bias: u32,
    norm: HeadNorm,
    roles: Option<[TensorRole; 2]>,
    rotated: bool,
    is_query: bool,
}

/// The destination of finished heads.
enum HeadTarget {
    Rows(sys::pen_part),
    Cache(u32, bool),
}

impl Builder<'_> {
    pub fn attention(&mut self, i: usize, a: &Attention, input: Input) -> Result<Mixed, EngineError> {
        let cache = self.caches[a.kv_of.unwrap_or(i)];
        let kept = self.program.caches[cache as usize];
        let is_fast = self.is_fast(i, a, kept);
        let out = self.halves(&format!("attention of {} heads", a.num_heads), a.num_heads * a.value_dim);
        let mut op = self.attend(i, a, cache, out);
        if is_fast && self.finishes_heads(i, a) {
            self.fresh_heads(i, a, input, &mut op)?;
        } else {
            let stride = kept.key_dim as usize;
            op.q = self.halves(&format!("queries of {stride} elements"), a.num_heads * stride);
            op.general = u32::from(!is_fast || !(a.num_heads * stride).is_multiple_of(64));
            let gate = self.general_heads(i, a, input, part(op.q, 0, stride))?;
            self.op(op);
            if let Some(gate) = gate {
                let rows = part(out, 0, a.value_dim);
                self.op(sys::pen_map { by: gate, g: sys::PEN_SIGMOID, ..copy(rows, rows, a.num_heads, a.value_dim) });
            }
        }
        if self.weights.spec.arch.required.contains(&TensorRole::AttnSubNorm) {
            let norm = self.rms_norm(TensorRole::AttnSubNorm, i)?;
            self.norm_in_place(out, a.num_heads * a.value_dim, norm);
        }
        Ok(Mixed { rows: out, output: TensorRole::AttnOutput, bias: self.vector(TensorRole::AttnOutputBias, i) })
    }

    /// The attention op with the parameters of a layer.
    fn attend(&mut self, i: usize, a: &Attention, cache: u32, out: u32) -> sys::pen_attention {
        let kind = self.weights.spec.arch.window_kind;
        sys::pen_attention {
            window: a.window.unwrap_or(0) as u32,
            window_kind: match kind {
                WindowKind::Sliding => sys::PEN_SLIDING,
                WindowKind::Chunked => sys::PEN_CHUNKED,
                WindowKind::Symmetric => sys::PEN_SYMMETRIC,
            },
            sinks: self.vector(TensorRole::AttnSinks, i),
            soft_cap: a.soft_cap.unwrap_or(0.0),
            alibi: a.alibi.unwrap_or(0.0),
            ..self.plain_attention(cache, out, [a.num_heads, a.value_dim], a.scale)
        }
    }

    /// An attention op over everything before a row, for heads that are finished elsewhere.
    pub fn plain_attention(&self, cache: u32, out: u32, [heads, value_dim]: [usize; 2], scale: f32) -> sys::pen_attention {
        let spec = &self.weights.spec;
        sys::pen_attention {
            qkv: NONE,
            q: NONE,
            out,
            cache,
            heads: heads as u32,
            value_dim: value_dim as u32,
            q_bias: NONE,
            k_bias: NONE,
            v_bias: NONE,
            q_norm: NONE,
            k_norm: NONE,
            rope: NONE,
            rope_halves: u32::from(spec.rope_pairing == RopePairing::Halves),
            general: 0,
            window: 0,
            window_kind: sys::PEN_SLIDING,
            bidirectional: u32::from(spec.arch.bidirectional),
            sinks: NONE,
            eps: spec.norm_eps,
            scale,
            soft_cap: 0.0,
            alibi: 0.0,
        }
    }

    /// Whether the fast kernels compute this attention.
    fn is_fast(&self, i: usize, a: &Attention, kept: sys::pen_cache) -> bool {
        let arch = self.weights.spec.arch;
        let windowed = a.window.is_some();
        let extras = self.has(TensorRole::AttnSinks, i) || (windowed && arch.window_kind == WindowKind::Chunked);
        let known = !(windowed && arch.window_kind == WindowKind::Symmetric) && (!extras || has_extras(a.head_dim));
        let same = a.head_dim == a.value_dim && [kept.key_dim, kept.value_dim] == [a.head_dim as u32; 2];
        known && same && !arch.bidirectional && a.alibi.is_none() && a.head_dim <= MAX_HEAD_DIM && a.head_dim.is_multiple_of(8)
    }

    /// Whether the fast kernels also finish these heads.
    fn finishes_heads(&self, i: usize, a: &Attention) -> bool {
        let arch = self.weights.spec.arch;
        let plain = |norm: HeadNorm, bias| match norm {
            HeadNorm::None => true,
            HeadNorm::Head => arch.norm == NormKind::Rms && !self.has(bias, i),
            _ => false,
        };
        let norms = plain(a.q_norm, TensorRole::AttnQNormBias) && plain(a.k_norm, TensorRole::AttnKNormBias);
        let whole = a.kv_of.is_none() && self.has(TensorRole::AttnV, i) && a.v_norm == HeadNorm::None;
        norms && whole && !arch.norm_after_rope && a.clamp.is_none() && a.temperature.is_none() && a.gate == Gate::None
    }

    fn fresh_heads(&mut self, i: usize, a: &Attention, input: Input, op: &mut sys::pen_attention) -> Result<(), EngineError> {
        use TensorRole::*;
        let matrices = [self.matrix(AttnQ, i)?, self.matrix(AttnK, i)?, self.matrix(AttnV, i)?];
        op.qkv = self.floats("qkv", (a.num_heads + 2 * a.num_kv_heads) * a.head_dim);
        op.q = self.halves("queries", a.num_heads * a.head_dim);
        self.products(input, &matrices, op.qkv, sys::PEN_STORE);
        [op.q_bias, op.k_bias, op.v_bias] = [AttnQBias, AttnKBias, AttnVBias].map(|role| self.vector(role, i));
        op.q_norm = if a.q_norm == HeadNorm::None { NONE } else { self.required_vector(AttnQNorm, i)? };
        op.k_norm = if a.k_norm == HeadNorm::None { NONE } else { self.required_vector(AttnKNorm, i)? };
        op.rope = self.ropes[i].map_or(NONE, |rope| rope as u32);
        self.op(*op);
        Ok(())
    }

    /// Finishes queries, keys and values op by op. Returns the gate of attention's output.
    fn general_heads(&mut self, i: usize, a: &Attention, input: Input, to: sys::pen_part) -> Result<Option<sys::pen_part>, EngineError> {
        use TensorRole::*;
        let h = self.ready(input);
        let own = a.kv_of.is_none();
        let has_v = own && self.has(AttnV, i);
        let mut matrices = vec![self.matrix(AttnQ, i)?];
        if own {
            matrices.push(self.matrix(AttnK, i)?);
        }
        if has_v {
            matrices.push(self.matrix(AttnV, i)?);
        }
        let rows = |builder: &Self, i: usize| builder.program.tensors[matrices[i] as usize].desc.rows as usize;
        let starts = [0, rows(self, 0), rows(self, 0) + if own { rows(self, 1) } else { 0 }];
        let width = (0..matrices.len()).map(|i| rows(self, i)).sum();
        let qkv = self.floats("qkv", width);
        self.products(Input::Ready(h), &matrices, qkv, sys::PEN_STORE);
        let gate = match a.gate {
            Gate::None => None,
            // each head holds its query, then its gate
            Gate::InQuery => Some(part(qkv, a.head_dim, 2 * a.head_dim)),
            Gate::Own => {
                let matrix = self.matrix(AttnGate, i)?;
                Some(part(self.product(h, matrix, "attention's gate"), 0, a.value_dim))
            }
        };
        let rotated = self.ropes[i].is_some();
        if own {
            let cache = self.caches[i];
            let (kv, dim) = (a.num_kv_heads, a.value_dim);
            let (v_at, v_bias) = if has_v { (starts[2], self.vector(AttnVBias, i)) } else { (starts[1], NONE) };
            let norm = a.v_norm;
            let v = Heads { at: part(qkv, v_at, dim), count: kv, dim, bias: v_bias, norm, roles: None, rotated: false, is_query: false };
            self.finish(i, a, v, HeadTarget::Cache(cache, true))?;
            let k = Heads {
                at: part(qkv, starts[1], a.head_dim),
                count: kv,
                dim: a.head_dim,
                bias: self.vector(AttnKBias, i),
                norm: a.k_norm,
                roles: Some([AttnKNorm, AttnKNormBias]),
                rotated,
                is_query: false,
            };
            self.finish(i, a, k, HeadTarget::Cache(cache, false))?;
        }
        let q = Heads {
            at: part(qkv, 0, a.head_dim * a.gate.query_rows()),
            count: a.num_heads,
            dim: a.head_dim,
            bias: self.vector(AttnQBias, i),
            norm: a.q_norm,
            roles: Some([AttnQNorm, AttnQNormBias]),
            rotated,
            is_query: true,
        };
        self.finish(i, a, q, HeadTarget::Rows(to))?;
        Ok(gate)
    }

    /// Applies bias, clamp, norm, rotation and temperature. A norm over all heads at once is an op of its own between them.
    fn finish(&mut self, i: usize, a: &Attention, heads: Heads, to: HeadTarget) -> Result<(), EngineError> {
        let arch = self.weights.spec.arch;
        let rope = if heads.rotated { self.ropes[i].map_or(NONE, |rope| rope as u32) } else { NONE };
        let mut op = self.plain_heads(heads.at, heads.count, heads.dim);
        op.bias = heads.bias;
        op.clamp = a.clamp.unwrap_or(0.0);
        let weights = |builder: &mut Self, [weight, bias]: [TensorRole; 2]| -> Result<Norm, EngineError> {
            Ok(Norm { kind: arch.norm, weight: builder.required_vector(weight, i)?, bias: builder.vector(bias, i) })
        };
        match (heads.norm, heads.roles) {
            (HeadNorm::None, _) | (HeadNorm::Head | HeadNorm::OwnHead | HeadNorm::Row, None) => {}
            (HeadNorm::Weightless, _) => op.norm = sys::PEN_RMS_NORM,
            (HeadNorm::Row, Some(roles)) => {
                let norm = weights(self, roles)?;
                let first = sys::pen_heads { rope: if arch.norm_after_rope { rope } else { NONE }, out: heads.at, ..op };
                if first.bias != NONE || first.clamp != 0.0 || first.rope != NONE {
                    self.op(first);
                }
                // the heads of a row must be contiguous: queries with gates between them never have this norm
                let row = part(heads.at.buffer, heads.at.first as usize, 0);
                self.group_norm([row; 2], 1, heads.count * heads.dim, norm);
                (op.bias, op.clamp) = (NONE, 0.0);
            }
            (HeadNorm::Head | HeadNorm::OwnHead, Some(roles)) => {
                let norm = weights(self, roles)?;
                op.norm = if norm.kind == NormKind::Layer { sys::PEN_LAYER_NORM } else { sys::PEN_RMS_NORM };
                op.own = u32::from(heads.norm == HeadNorm::OwnHead);
                (op.weight, op.norm_bias, op.norm_behind) = (norm.weight, norm.bias, u32::from(arch.norm_after_rope));
            }
        }
        let is_rotated = heads.norm == HeadNorm::Row && arch.norm_after_rope;
        op.rope = if is_rotated { NONE } else { rope };
        if let Some(temperature) = a.temperature.filter(|_| heads.is_query) {
            (op.temperature_scale, op.temperature_floor) = (temperature.scale, temperature.floor);
            op.temperature_offset = temperature.offset;
        }
        match to {
            HeadTarget::Rows(part) => op.out = part,
            HeadTarget::Cache(cache, values) => (op.cache, op.values) = (cache, u32::from(values)),
        }
        self.op(op);
        Ok(())
    }

    /// Heads without any finishing.
    pub fn plain_heads(&self, from: sys::pen_part, heads: usize, dim: usize) -> sys::pen_heads {
        let spec = &self.weights.spec;
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
            rope_halves: u32::from(spec.rope_pairing == RopePairing::Halves),
            cache: NONE,
            values: 0,
            clamp: 0.0,
            eps: spec.norm_eps,
            temperature_scale: 0.0,
            temperature_floor: 1.0,
            temperature_offset: 0.0,
        }
    }
}
