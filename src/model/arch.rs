//! `ARCHS`: one row an architecture.

use super::TensorSlot::*;

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

/// What sets an architecture apart; everything else is the model file's metadata.
#[derive(Debug)]
pub struct Arch {
    /// `general.architecture`
    pub name: &'static str,
    pub rope: RopePairing,
    pub activation: Activation,
    /// Embeddings are multiplied by sqrt(hidden).
    pub scale_embeddings: bool,
    /// Every `n`-th layer attends to the whole context, the others to the sliding window (0: all layers alike).
    pub global_every: usize,
    /// RoPE base where the file does not name one (`rope.freq_base`).
    pub default_rope_theta: f32,
    /// RoPE base of the layers with a sliding window, where it differs.
    pub local_rope_theta: Option<f32>,
    pub required: &'static [super::TensorSlot],
    pub optional: &'static [super::TensorSlot],
}

impl Arch {
    /// The row of a `general.architecture`.
    pub fn by_name(name: &str) -> Option<&'static Arch> {
        static ROWS: &[Arch] = ARCHS;
        ROWS.iter().find(|arch| arch.name == name)
    }

    /// Every slot that the forward pass may use.
    pub fn slots(&self) -> impl Iterator<Item = super::TensorSlot> {
        self.required.iter().chain(self.optional).copied()
    }
}

pub const ARCHS: &[Arch] = &[
    // Llama 2 and 3, Mistral, SmolLM. The converter permutes Q and K so that RoPE's pairs are adjacent.
    Arch {
        name: "llama",
        rope: RopePairing::Adjacent,
        activation: Activation::Silu,
        scale_embeddings: false,
        global_every: 0,
        default_rope_theta: 10_000.0,
        local_rope_theta: None,
        required: &[TokenEmbd, OutputNorm, AttnNorm, AttnQ, AttnK, AttnV, AttnOutput, FfnNorm, FfnGate, FfnUp, FfnDown],
        optional: &[Output, RopeFreqs, AttnQBias, AttnKBias, AttnVBias],
    },
    // Qwen 2 and 2.5
    Arch {
        name: "qwen2",
        rope: RopePairing::Halves,
        activation: Activation::Silu,
        scale_embeddings: false,
        global_every: 0,
        default_rope_theta: 10_000.0,
        local_rope_theta: None,
        required: &[
            TokenEmbd, OutputNorm, AttnNorm, AttnQ, AttnK, AttnV, AttnQBias, AttnKBias, AttnVBias, AttnOutput, FfnNorm, FfnGate, FfnUp,
            FfnDown,
        ],
        optional: &[Output, RopeFreqs],
    },
    // Gemma 3, text only. The converter has added 1 to the norms' weights.
    Arch {
        name: "gemma3",
        rope: RopePairing::Halves,
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
        optional: &[Output],
    },
    // Qwen 3, dense
    Arch {
        name: "qwen3",
        rope: RopePairing::Halves,
        activation: Activation::Silu,
        scale_embeddings: false,
        global_every: 0,
        default_rope_theta: 10_000.0,
        local_rope_theta: None,
        required: &[
            TokenEmbd, OutputNorm, AttnNorm, AttnQ, AttnK, AttnV, AttnQNorm, AttnKNorm, AttnOutput, FfnNorm, FfnGate, FfnUp, FfnDown,
        ],
        optional: &[Output],
    },
];
