//! `ARCHS`: one row per architecture.

use crate::slots::TensorSlot::{self, *};

/// Which elements of a head RoPE rotates as a pair.
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

/// A tensor that holds the rows of several slots, one slot after another.
#[derive(Debug)]
pub struct Fused {
    /// GGUF's name, with `{}` for the layer's number.
    pub pattern: &'static str,
    /// The slots, in the tensor's order.
    pub parts: &'static [TensorSlot],
}

/// What distinguishes an architecture. Everything else comes from the model file's metadata.
#[derive(Debug)]
pub struct Arch {
    /// `general.architecture`
    pub name: &'static str,
    pub rope: RopePairing,
    /// A learned embedding of the position is added to that of the token, and RoPE is not used.
    pub learned_positions: bool,
    pub norm: NormKind,
    pub activation: Activation,
    /// Embeddings are multiplied by sqrt(hidden).
    pub scale_embeddings: bool,
    /// Every `n`-th layer attends to the whole context, the others to the sliding window. 0: all layers are alike.
    pub global_every: usize,
    /// The sliding window if the file does not set one.
    pub default_window: Option<usize>,
    /// Soft caps of attention scores and logits if the file does not set them.
    pub default_soft_caps: Option<[f32; 2]>,
    /// RoPE base if the file does not set one (`rope.freq_base`).
    pub default_rope_theta: f32,
    /// RoPE base of the layers with a sliding window, if it differs from that of the others.
    pub local_rope_theta: Option<f32>,
    /// Slots that every file has.
    pub required: &'static [TensorSlot],
    /// Slots that a file may have.
    pub optional: &'static [TensorSlot],
    /// Tensors that hold several slots.
    pub fused: &'static [Fused],
    /// The slots that replace `DENSE` in files with experts. Empty for architectures without them.
    pub experts: &'static [TensorSlot],
    /// Whether the weights of a row's experts are scaled to add up to 1 if the file does not say.
    pub normalise_experts: bool,
}

impl Arch {
    /// The row of the architecture that `general.architecture` names.
    pub fn by_name(name: &str) -> Option<&'static Arch> {
        static ROWS: &[Arch] = ARCHS;
        ROWS.iter().find(|arch| arch.name == name)
    }
}

/// The slots of a dense feed-forward layer, which experts replace.
pub const DENSE: &[TensorSlot] = &[FfnGate, FfnUp, FfnDown, FfnGateBias, FfnUpBias, FfnDownBias];

const EXPERTS: &[TensorSlot] = &[FfnRouter, FfnGateExps, FfnUpExps, FfnDownExps];

/// What most architectures have in common. A row states the differences.
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

const EMBEDDING: &[TensorSlot] = &[TokenEmbd, OutputNorm];
const QKV: &[TensorSlot] = &[AttnNorm, AttnQ, AttnK, AttnV];
const QKV_BIASES: &[TensorSlot] = &[AttnQBias, AttnKBias, AttnVBias];
const QK_NORMS: &[TensorSlot] = &[AttnQNorm, AttnKNorm];
const GATED_FFN: &[TensorSlot] = &[FfnNorm, FfnGate, FfnUp, FfnDown];

/// Concatenates lists of slots into one static list.
macro_rules! slots {
    ($($part:expr),+ $(,)?) => {{
        const PARTS: &[&[TensorSlot]] = &[$($part),+];
        const ALL: [TensorSlot; total_len(PARTS)] = concat_slots(PARTS);
        &ALL
    }};
}

const fn total_len(parts: &[&[TensorSlot]]) -> usize {
    let (mut total, mut i) = (0, 0);
    while i < parts.len() {
        total += parts[i].len();
        i += 1;
    }
    total
}

const fn concat_slots<const N: usize>(parts: &[&[TensorSlot]]) -> [TensorSlot; N] {
    let (mut all, mut len, mut i) = ([TokenEmbd; N], 0, 0);
    while i < parts.len() {
        let mut j = 0;
        while j < parts[i].len() {
            all[len] = parts[i][j];
            (len, j) = (len + 1, j + 1);
        }
        i += 1;
    }
    all
}

pub const ARCHS: &[Arch] = &[
    // Llama 2 and 3, Mistral, Mixtral, SmolLM. The converter permutes Q and K so that RoPE's pairs are adjacent.
    Arch {
        name: "llama",
        rope: RopePairing::Adjacent,
        required: slots![EMBEDDING, QKV, &[AttnOutput], GATED_FFN],
        optional: slots![&[Output, RopeFreqs], QKV_BIASES, &[AttnOutputBias, FfnGateBias, FfnUpBias, FfnDownBias]],
        experts: EXPERTS,
        ..COMMON
    },
    // Qwen 2 and 2.5
    Arch {
        name: "qwen2",
        required: slots![EMBEDDING, QKV, QKV_BIASES, &[AttnOutput], GATED_FFN],
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
        required: slots![EMBEDDING, QKV, QK_NORMS, &[AttnOutput, PostAttnNorm], GATED_FFN, &[PostFfnNorm]],
        ..COMMON
    },
    // Qwen 3, dense
    Arch { name: "qwen3", required: slots![EMBEDDING, QKV, QK_NORMS, &[AttnOutput], GATED_FFN], ..COMMON },
    // Gemma 2. The first files set neither the window nor the caps.
    Arch {
        name: "gemma2",
        activation: Activation::Gelu,
        scale_embeddings: true,
        global_every: 2,
        default_window: Some(4096),
        default_soft_caps: Some([50.0, 30.0]),
        required: slots![EMBEDDING, QKV, &[AttnOutput, PostAttnNorm], GATED_FFN, &[PostFfnNorm]],
        ..COMMON
    },
    // Phi 3, 3.5 and 4
    Arch {
        name: "phi3",
        required: slots![EMBEDDING, QKV, &[AttnOutput], GATED_FFN],
        fused: &[FUSED_QKV, Fused { pattern: "blk.{}.ffn_up.weight", parts: &[FfnGate, FfnUp] }],
        ..COMMON
    },
    // GPT-2: no gate
    Arch {
        name: "gpt2",
        learned_positions: true,
        norm: NormKind::Layer,
        activation: Activation::Gelu,
        required: slots![
            &[TokenEmbd, PositionEmbd, OutputNorm, OutputNormBias],
            &[AttnNorm, AttnNormBias, AttnQ, AttnK, AttnV],
            QKV_BIASES,
            &[AttnOutput, AttnOutputBias],
            &[FfnNorm, FfnNormBias, FfnUp, FfnUpBias, FfnDown, FfnDownBias],
        ],
        fused: &[FUSED_QKV, Fused { pattern: "blk.{}.attn_qkv.bias", parts: QKV_BIASES }],
        ..COMMON
    },
    // Qwen 1.5 and 2 with experts. All tokens share one of them.
    Arch {
        name: "qwen2moe",
        required: slots![EMBEDDING, QKV, QKV_BIASES, &[AttnOutput, FfnNorm]],
        experts: slots![EXPERTS, &[SharedRouter, FfnGateShexp, FfnUpShexp, FfnDownShexp]],
        normalise_experts: false,
        ..COMMON
    },
    // Qwen 3 with experts
    Arch { name: "qwen3moe", required: slots![EMBEDDING, QKV, QK_NORMS, &[AttnOutput, FfnNorm]], experts: EXPERTS, ..COMMON },
];
