//! Tensor slots and the names that GGUF gives them.

use std::collections::HashMap;
use std::sync::Arc;

use super::{ModelSpec, Quant};
use crate::gguf::GgufFile;

/// A place in the forward pass that a tensor fills. The names are GGUF's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TensorSlot {
    TokenEmbd,
    OutputNorm,
    Output,
    RopeFreqs,
    AttnNorm,
    AttnQ,
    AttnK,
    AttnV,
    AttnQBias,
    AttnKBias,
    AttnVBias,
    AttnQNorm,
    AttnKNorm,
    AttnOutput,
    PostAttnNorm,
    FfnNorm,
    FfnGate,
    FfnUp,
    FfnDown,
    PostFfnNorm,
}

impl TensorSlot {
    /// GGUF's name, `{}` for the layer's number.
    const fn pattern(self) -> &'static str {
        match self {
            TensorSlot::TokenEmbd => "token_embd.weight",
            TensorSlot::OutputNorm => "output_norm.weight",
            TensorSlot::Output => "output.weight",
            TensorSlot::RopeFreqs => "rope_freqs.weight",
            TensorSlot::AttnNorm => "blk.{}.attn_norm.weight",
            TensorSlot::AttnQ => "blk.{}.attn_q.weight",
            TensorSlot::AttnK => "blk.{}.attn_k.weight",
            TensorSlot::AttnV => "blk.{}.attn_v.weight",
            TensorSlot::AttnQBias => "blk.{}.attn_q.bias",
            TensorSlot::AttnKBias => "blk.{}.attn_k.bias",
            TensorSlot::AttnVBias => "blk.{}.attn_v.bias",
            TensorSlot::AttnQNorm => "blk.{}.attn_q_norm.weight",
            TensorSlot::AttnKNorm => "blk.{}.attn_k_norm.weight",
            TensorSlot::AttnOutput => "blk.{}.attn_output.weight",
            TensorSlot::PostAttnNorm => "blk.{}.post_attention_norm.weight",
            TensorSlot::FfnNorm => "blk.{}.ffn_norm.weight",
            TensorSlot::FfnGate => "blk.{}.ffn_gate.weight",
            TensorSlot::FfnUp => "blk.{}.ffn_up.weight",
            TensorSlot::FfnDown => "blk.{}.ffn_down.weight",
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

    /// Rows and columns in a model of this spec; None: a vector, whose length is the second.
    pub fn shape(self, spec: &ModelSpec) -> (Option<usize>, usize) {
        let (hidden, heads, kv_heads) = (spec.hidden_dim, spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim);
        match self {
            TensorSlot::TokenEmbd | TensorSlot::Output => (Some(spec.vocab_size), hidden),
            TensorSlot::OutputNorm | TensorSlot::AttnNorm | TensorSlot::PostAttnNorm | TensorSlot::FfnNorm | TensorSlot::PostFfnNorm => {
                (None, hidden)
            }
            TensorSlot::RopeFreqs => (None, spec.rope_dim / 2),
            TensorSlot::AttnQ => (Some(heads), hidden),
            TensorSlot::AttnK | TensorSlot::AttnV => (Some(kv_heads), hidden),
            TensorSlot::AttnQBias => (None, heads),
            TensorSlot::AttnKBias | TensorSlot::AttnVBias => (None, kv_heads),
            TensorSlot::AttnQNorm | TensorSlot::AttnKNorm => (None, spec.head_dim),
            TensorSlot::AttnOutput => (Some(hidden), heads),
            TensorSlot::FfnGate | TensorSlot::FfnUp => (Some(spec.ffn_dim), hidden),
            TensorSlot::FfnDown => (Some(hidden), spec.ffn_dim),
        }
    }
}

/// A tensor of the mapped file: `rows` rows of `cols` weights in `quant`'s blocks. A vector is one row.
#[derive(Clone, Copy, Debug)]
pub struct Weight {
    pub quant: &'static Quant,
    pub rows: usize,
    pub cols: usize,
    /// Index into the file's tensors.
    pub tensor: usize,
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

    /// The weight's bytes in the map.
    pub fn data(&self, weight: &Weight) -> &[u8] {
        self.file.data(&self.file.tensors()[weight.tensor])
    }
}
