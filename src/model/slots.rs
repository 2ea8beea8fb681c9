//! Tensor slots and the names that GGUF gives them.

use std::collections::HashMap;
use std::sync::Arc;

use super::{ModelSpec, Quant};
use crate::gguf::GgufFile;

/// A place in the forward pass that a tensor fills. The names are GGUF's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TensorSlot {
    TokenEmbd,
    PositionEmbd,
    OutputNorm,
    OutputNormBias,
    Output,
    RopeFreqs,
    RopeFactorsLong,
    RopeFactorsShort,
    AttnNorm,
    AttnNormBias,
    AttnQ,
    AttnK,
    AttnV,
    AttnQBias,
    AttnKBias,
    AttnVBias,
    AttnQNorm,
    AttnKNorm,
    AttnOutput,
    AttnOutputBias,
    PostAttnNorm,
    FfnNorm,
    FfnNormBias,
    FfnGate,
    FfnUp,
    FfnDown,
    FfnGateBias,
    FfnUpBias,
    FfnDownBias,
    FfnRouter,
    FfnGateExps,
    FfnUpExps,
    FfnDownExps,
    SharedRouter,
    FfnGateShexp,
    FfnUpShexp,
    FfnDownShexp,
    PostFfnNorm,
}

impl TensorSlot {
    /// GGUF's name, `{}` for the layer's number.
    const fn pattern(self) -> &'static str {
        match self {
            TensorSlot::TokenEmbd => "token_embd.weight",
            TensorSlot::PositionEmbd => "position_embd.weight",
            TensorSlot::OutputNorm => "output_norm.weight",
            TensorSlot::OutputNormBias => "output_norm.bias",
            TensorSlot::Output => "output.weight",
            TensorSlot::RopeFreqs => "rope_freqs.weight",
            TensorSlot::RopeFactorsLong => "rope_factors_long.weight",
            TensorSlot::RopeFactorsShort => "rope_factors_short.weight",
            TensorSlot::AttnNorm => "blk.{}.attn_norm.weight",
            TensorSlot::AttnNormBias => "blk.{}.attn_norm.bias",
            TensorSlot::AttnQ => "blk.{}.attn_q.weight",
            TensorSlot::AttnK => "blk.{}.attn_k.weight",
            TensorSlot::AttnV => "blk.{}.attn_v.weight",
            TensorSlot::AttnQBias => "blk.{}.attn_q.bias",
            TensorSlot::AttnKBias => "blk.{}.attn_k.bias",
            TensorSlot::AttnVBias => "blk.{}.attn_v.bias",
            TensorSlot::AttnQNorm => "blk.{}.attn_q_norm.weight",
            TensorSlot::AttnKNorm => "blk.{}.attn_k_norm.weight",
            TensorSlot::AttnOutput => "blk.{}.attn_output.weight",
            TensorSlot::AttnOutputBias => "blk.{}.attn_output.bias",
            TensorSlot::PostAttnNorm => "blk.{}.post_attention_norm.weight",
            TensorSlot::FfnNorm => "blk.{}.ffn_norm.weight",
            TensorSlot::FfnNormBias => "blk.{}.ffn_norm.bias",
            TensorSlot::FfnGate => "blk.{}.ffn_gate.weight",
            TensorSlot::FfnUp => "blk.{}.ffn_up.weight",
            TensorSlot::FfnDown => "blk.{}.ffn_down.weight",
            TensorSlot::FfnGateBias => "blk.{}.ffn_gate.bias",
            TensorSlot::FfnUpBias => "blk.{}.ffn_up.bias",
            TensorSlot::FfnDownBias => "blk.{}.ffn_down.bias",
            TensorSlot::FfnRouter => "blk.{}.ffn_gate_inp.weight",
            TensorSlot::FfnGateExps => "blk.{}.ffn_gate_exps.weight",
            TensorSlot::FfnUpExps => "blk.{}.ffn_up_exps.weight",
            TensorSlot::FfnDownExps => "blk.{}.ffn_down_exps.weight",
            TensorSlot::SharedRouter => "blk.{}.ffn_gate_inp_shexp.weight",
            TensorSlot::FfnGateShexp => "blk.{}.ffn_gate_shexp.weight",
            TensorSlot::FfnUpShexp => "blk.{}.ffn_up_shexp.weight",
            TensorSlot::FfnDownShexp => "blk.{}.ffn_down_shexp.weight",
            TensorSlot::PostFfnNorm => "blk.{}.post_ffw_norm.weight",
        }
    }

    /// One a layer, or one a model?
    pub fn per_layer(self) -> bool {
        self.pattern().starts_with("blk.")
    }

    /// The tensor's name in the file (`blk.7.attn_q.weight`).
    pub fn name(self, layer: usize) -> String {
        self.pattern().replace("{}", &layer.to_string())
    }

    /// Dimensions in a model of this spec, innermost first: of a vector its length, of a matrix columns and rows, of a stack of experts
    /// columns, rows and experts.
    pub fn dims(self, spec: &ModelSpec) -> Vec<usize> {
        use TensorSlot::*;
        let (hidden, heads, kv_heads) = (spec.hidden_dim, spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim);
        let experts = spec.experts.unwrap_or_default();
        match self {
            TokenEmbd | Output => vec![hidden, spec.vocab_size],
            PositionEmbd => vec![hidden, spec.context_length],
            OutputNorm | AttnNorm | PostAttnNorm | FfnNorm | PostFfnNorm | OutputNormBias | AttnNormBias | FfnNormBias => vec![hidden],
            RopeFreqs | RopeFactorsLong | RopeFactorsShort => vec![spec.rope_dim / 2],
            AttnQ => vec![hidden, heads],
            AttnK | AttnV => vec![hidden, kv_heads],
            AttnQBias => vec![heads],
            AttnKBias | AttnVBias => vec![kv_heads],
            AttnQNorm | AttnKNorm => vec![spec.head_dim],
            AttnOutput => vec![heads, hidden],
            AttnOutputBias | FfnDownBias => vec![hidden],
            FfnGate | FfnUp => vec![hidden, spec.ffn_dim],
            FfnGateBias | FfnUpBias => vec![spec.ffn_dim],
            FfnDown => vec![spec.ffn_dim, hidden],
            FfnRouter => vec![hidden, experts.count],
            FfnGateExps | FfnUpExps => vec![hidden, experts.ffn_dim, experts.count],
            FfnDownExps => vec![experts.ffn_dim, hidden, experts.count],
            SharedRouter => vec![hidden, 1],
            FfnGateShexp | FfnUpShexp => vec![hidden, experts.shared_ffn_dim],
            FfnDownShexp => vec![experts.shared_ffn_dim, hidden],
        }
    }

    /// Is it a vector of float32 in the engines, whatever float type the file has?
    pub fn is_vector(self, spec: &ModelSpec) -> bool {
        self.dims(spec).len() == 1
    }

    /// Does a row compute with some of its experts only?
    pub fn is_routed(self) -> bool {
        matches!(self, TensorSlot::FfnGateExps | TensorSlot::FfnUpExps | TensorSlot::FfnDownExps)
    }
}

/// A tensor of the mapped file, or a part of one: `rows` rows of `cols` weights in `quant`'s blocks. A vector is one row, a stack of
/// experts the rows of all.
#[derive(Clone, Copy, Debug)]
pub struct Weight {
    pub quant: &'static Quant,
    pub rows: usize,
    pub cols: usize,
    /// Index into the file's tensors.
    pub tensor: usize,
    /// Bytes of the tensor before it.
    pub offset: usize,
}

impl Weight {
    pub fn num_bytes(&self) -> usize {
        self.rows * self.quant.row_bytes(self.cols)
    }
}

/// Every tensor of a model by slot and layer (0 for those outside of layers), with the map that holds their bytes.
/// Every required slot of the architecture is there, of the shape that the spec says and of a type in `QUANTS`.
pub struct Weights {
    pub spec: ModelSpec,
    pub file: Arc<GgufFile>,
    pub by_slot: HashMap<(TensorSlot, usize), Weight>,
}

impl Weights {
    /// A slot's tensor. A model without an output matrix of its own gives the token embedding for it.
    pub fn get(&self, slot: TensorSlot, layer: usize) -> Option<&Weight> {
        self.by_slot.get(&(slot, layer))
    }

    /// A slot's vector as float32.
    pub fn vector(&self, slot: TensorSlot, layer: usize) -> Option<Vec<f32>> {
        self.get(slot, layer).map(|weight| {
            let mut out = vec![0f32; weight.rows * weight.cols];
            (weight.quant.dequantize)(self.data(weight), &mut out);
            out
        })
    }

    /// The weight's bytes in the map.
    pub fn data(&self, weight: &Weight) -> &[u8] {
        &self.file.data(&self.file.tensors()[weight.tensor])[weight.offset..][..weight.num_bytes()]
    }
}
