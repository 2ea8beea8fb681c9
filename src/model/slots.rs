//! Tensor slots and their names in GGUF files.

/// A role that a tensor has in the forward pass. The variants are named after GGUF's tensors.
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
    /// GGUF's name, with `{}` for the layer's number.
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

    /// Whether there is one tensor per layer. Otherwise there is one per model.
    pub fn per_layer(self) -> bool {
        self.pattern().starts_with("blk.")
    }

    /// The tensor's name in the file (`blk.7.attn_q.weight`).
    pub fn name(self, layer: usize) -> String {
        self.pattern().replace("{}", &layer.to_string())
    }

    /// Whether a row uses only some of the tensor, because it is routed to a few experts.
    pub fn is_routed(self) -> bool {
        matches!(self, TensorSlot::FfnGateExps | TensorSlot::FfnUpExps | TensorSlot::FfnDownExps)
    }
}
