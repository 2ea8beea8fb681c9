//! The shape of each tensor slot, from the hyperparameters.

use crate::slots::TensorSlot;
use crate::spec::ModelSpec;

impl TensorSlot {
    /// Dimensions in a model of this spec, innermost first: `[length]` of a vector, `[columns, rows]` of a matrix,
    /// `[columns, rows, experts]` of a stack of experts.
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

    /// Whether the slot holds a vector. The engines keep vectors as float32, whatever float type the file has.
    pub fn is_vector(self, spec: &ModelSpec) -> bool {
        self.dims(spec).len() == 1
    }
}
