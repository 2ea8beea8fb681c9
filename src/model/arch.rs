//! `ARCHS`: one row an architecture.

use super::TensorSlot::{self, *};

/// Which elements of a head RoPE rotates together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePairing {
    /// (0, 1), (2, 3) …
    Adjacent,
    /// (0, d/2), (1, d/2 + 1) …
    Halves,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    Silu,
    /// tanh approximation
    Gelu,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// x / sqrt(mean(x²) + eps) · weight
    Rms,
    /// (x − mean(x)) / sqrt(var(x) + eps) · weight + bias
    Layer,
}

/// A tensor whose rows are those of several slots, one after another.
#[derive(Debug)]
pub struct Fused {
    /// GGUF's name, `{}` for the layer's number.
    pub pattern: &'static str,
    pub parts: &'static [TensorSlot],
}

/// What sets an architecture apart; everything else is the model file's metadata.
#[derive(Debug)]
pub struct Arch {
    /// `general.architecture`
    pub name: &'static str,
    pub rope: RopePairing,
    /// A position's embedding is added to the token's; nothing is rotated.
    pub learned_positions: bool,
    pub norm: NormKind,
    pub activation: Activation,
    /// Embeddings are multiplied by sqrt(hidden).
    pub scale_embeddings: bool,
    /// Every `n`-th layer attends to the whole context, the others to the sliding window (0: all layers alike).
    pub global_every: usize,
    /// The sliding window where the file does not name one.
    pub default_window: Option<usize>,
    /// Soft caps of scores and logits where the file does not name them.
    pub default_soft_caps: Option<[f32; 2]>,
    /// RoPE base where the file does not name one (`rope.freq_base`).
    pub default_rope_theta: f32,
    /// RoPE base of the layers with a sliding window, where it differs.
    pub local_rope_theta: Option<f32>,
    pub required: &'static [TensorSlot],
    pub optional: &'static [TensorSlot],
    /// Slots whose tensors the file keeps in one.
    pub fused: &'static [Fused],
    /// What takes the place of `DENSE` where the file has experts; empty: it never has.
    pub experts: &'static [TensorSlot],
    /// The weights of a row's experts are made to add up to 1, unless the file says otherwise.
    pub normalise_experts: bool,
}

impl Arch {
    /// The row of a `general.architecture`.
    pub fn by_name(name: &str) -> Option<&'static Arch> {
        static ROWS: &[Arch] = ARCHS;
        ROWS.iter().find(|arch| arch.name == name)
    }
}

/// Slots that experts replace.
pub const DENSE: &[TensorSlot] = &[FfnGate, FfnUp, FfnDown, FfnGateBias, FfnUpBias, FfnDownBias];

const EXPERTS: &[TensorSlot] = &[FfnRouter, FfnGateExps, FfnUpExps, FfnDownExps];

/// What most architectures have in common; rows say what differs.
const COMMON: Arch = Arch {
    name: "",
    rope: RopePairing::Halves,
    learned_positions: false,
    norm: NormKind::Rms,
    activation: Activation::Silu,
    scale_embeddings: false,
    global_every: 0,
    default_window: None,
    default_soft_caps: None,
    default_rope_theta: 10_000.0,
    local_rope_theta: None,
    required: &[],
    optional: &[Output],
    fused: &[],
    experts: &[],
    normalise_experts: true,
};

const FUSED_QKV: Fused = Fused { pattern: "blk.{}.attn_qkv.weight", parts: &[AttnQ, AttnK, AttnV] };

pub const ARCHS: &[Arch] = &[
    // Llama 2 and 3, Mistral, Mixtral, SmolLM. The converter permutes Q and K so that RoPE's pairs are adjacent.
    Arch {
        name: "llama",
        rope: RopePairing::Adjacent,
        required: &[TokenEmbd, OutputNorm, AttnNorm, AttnQ, AttnK, AttnV, AttnOutput, FfnNorm, FfnGate, FfnUp, FfnDown],
        optional: &[Output, RopeFreqs, AttnQBias, AttnKBias, AttnVBias, AttnOutputBias, FfnGateBias, FfnUpBias, FfnDownBias],
        experts: EXPERTS,
        ..COMMON
    },
    // Qwen 2 and 2.5
    Arch {
        name: "qwen2",
        required: &[
            TokenEmbd, OutputNorm, AttnNorm, AttnQ, AttnK, AttnV, AttnQBias, AttnKBias, AttnVBias, AttnOutput, FfnNorm, FfnGate, FfnUp,
            FfnDown,
        ],
        optional: &[Output, RopeFreqs],
        ..COMMON
    },
    // Gemma 3, text only. The converter has added 1 to the norms' weights.
    Arch {
        name: "gemma3",
        activation: Activation::Gelu,
        scale_embeddings: true,
        global_every: 6,
        default_rope_theta: 1_000_000.0,
        local_rope_theta: Some(10_000.0),
        required: &[
            TokenEmbd,
            OutputNorm,
            AttnNorm,
            AttnQ,
            AttnK,
            AttnV,
            AttnQNorm,
            AttnKNorm,
            AttnOutput,
            PostAttnNorm,
            FfnNorm,
            FfnGate,
            FfnUp,
            FfnDown,
            PostFfnNorm,
        ],
        ..COMMON
    },
    // Qwen 3, dense
    Arch {
        name: "qwen3",
        required: &[
            TokenEmbd, OutputNorm, AttnNorm, AttnQ, AttnK, AttnV, AttnQNorm, AttnKNorm, AttnOutput, FfnNorm, FfnGate, FfnUp, FfnDown,
        ],
        ..COMMON
    },
    // Gemma 2. The first files named neither window nor caps.
    Arch {
        name: "gemma2",
        activation: Activation::Gelu,
        scale_embeddings: true,
        global_every: 2,
        default_window: Some(4096),
        default_soft_caps: Some([50.0, 30.0]),
        required: &[
            TokenEmbd,
            OutputNorm,
            AttnNorm,
            AttnQ,
            AttnK,
            AttnV,
            AttnOutput,
            PostAttnNorm,
            FfnNorm,
            FfnGate,
            FfnUp,
            FfnDown,
            PostFfnNorm,
        ],
        ..COMMON
    },
    // Phi 3, 3.5 and 4
    Arch {
        name: "phi3",
        required: &[TokenEmbd, OutputNorm, AttnNorm, AttnQ, AttnK, AttnV, AttnOutput, FfnNorm, FfnGate, FfnUp, FfnDown],
        fused: &[FUSED_QKV, Fused { pattern: "blk.{}.ffn_up.weight", parts: &[FfnGate, FfnUp] }],
        ..COMMON
    },
    // GPT-2: no gate
    Arch {
        name: "gpt2",
        learned_positions: true,
        norm: NormKind::Layer,
        activation: Activation::Gelu,
        required: &[
            TokenEmbd,
            PositionEmbd,
            OutputNorm,
            OutputNormBias,
            AttnNorm,
            AttnNormBias,
            AttnQ,
            AttnK,
            AttnV,
            AttnQBias,
            AttnKBias,
            AttnVBias,
            AttnOutput,
            AttnOutputBias,
            FfnNorm,
            FfnNormBias,
            FfnUp,
            FfnUpBias,
            FfnDown,
            FfnDownBias,
        ],
        fused: &[FUSED_QKV, Fused { pattern: "blk.{}.attn_qkv.bias", parts: &[AttnQBias, AttnKBias, AttnVBias] }],
        ..COMMON
    },
    // Qwen 1.5 and 2 with experts, one of them shared by all tokens
    Arch {
        name: "qwen2moe",
        required: &[TokenEmbd, OutputNorm, AttnNorm, AttnQ, AttnK, AttnV, AttnQBias, AttnKBias, AttnVBias, AttnOutput, FfnNorm],
        experts: &[FfnRouter, FfnGateExps, FfnUpExps, FfnDownExps, SharedRouter, FfnGateShexp, FfnUpShexp, FfnDownShexp],
        normalise_experts: false,
        ..COMMON
    },
    // Qwen 3 with experts
    Arch {
        name: "qwen3moe",
        required: &[TokenEmbd, OutputNorm, AttnNorm, AttnQ, AttnK, AttnV, AttnQNorm, AttnKNorm, AttnOutput, FfnNorm],
        experts: EXPERTS,
        ..COMMON
    },
];
