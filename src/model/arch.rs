//! [`Arch`]: the differences between architectures. `archs/` holds one row per architecture.

use crate::tensor_roles::TensorRole;

/// Whether the rows of a picture see the picture's later rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PictureRows {
    Causal,
    /// In all layers, however long a layer's window is (Gemma 3).
    Whole,
    /// In layers with a window, within the window (Gemma 4).
    WholeInWindows,
}

/// Which elements of a head RoPE rotates as a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePairing {
    /// (0, 1), (2, 3) …
    Adjacent,
    /// (0, d/2), (1, d/2 + 1) …
    Halves,
    /// (0, d/4), (1, d/4 + 1) … in the first half of the elements, and the same in the second half (Gemma 4's picture encoder).
    Quarters,
}

/// How a model represents positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positions {
    /// Queries and keys are rotated (Su et al. 2021).
    Rope,
    /// A learned embedding of the position is added to the token's embedding.
    Learned,
    /// Scores fall linearly with the distance (ALiBi, Press et al. 2022).
    Alibi,
    /// Positions are not represented, or only by the order of a recurrence.
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// x · sigmoid(x)
    Silu,
    /// x · Φ(x), with Φ by its tanh approximation
    Gelu,
    /// x · Φ(x), with Φ by the error function
    GeluErf,
    /// x · sigmoid(1.702 · x)
    GeluQuick,
    /// max(x, 0)
    Relu,
    /// max(x, 0)²
    ReluSquared,
    /// gate · sigmoid(1.702 · gate) · (up + 1), with both inputs clamped to 7 (gpt-oss)
    SwigluClamped,
    /// xIELU (Huang and Schlag 2024), with parameters per layer from the file
    Xielu,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// x / sqrt(mean(x²) + eps) · weight
    Rms,
    /// (x − mean(x)) / sqrt(var(x) + eps) · weight + bias
    Layer,
}

/// How a layer's branches and its residual stream are wired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    /// x += mixer(norm(x)), then x += ffn(norm(x)). A norm after a branch applies to the branch's output. Any norm may be missing.
    Sequential,
    /// x += mixer(h) + ffn(h') with h = norm(x). h' is ffn_norm(x), or h without such a norm.
    Parallel,
    /// x = norm(x + mixer(x)), then x = norm(x + ffn(x)) (BERT)
    PostNorm,
    /// h = norm(x), x = scale · h + mixer(h), and the same with the feed-forward layer (MiniMax-01)
    NormedResidual,
    /// Four streams that predict and correct each other (AltUp, Gemma 3n)
    Altup,
}

/// The factor of the token embeddings for files that do not set one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EmbeddingScale {
    One,
    /// sqrt(hidden)
    SqrtHidden,
    By(f32),
}

/// The effect of the file's `logit_scale`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LogitScale {
    Unused,
    /// Logits are multiplied by the scale, or by this number if the file has no scale.
    Multiply(f32),
    /// Logits are divided by the scale.
    Divide,
    /// Logits are multiplied by the scale and divided by the embedding's factor (MiniCPM: hidden / base).
    MiniCpm,
    /// The scale is not used: logits are multiplied by 256 / hidden (MiniCPM 3).
    MiniCpm3,
}

/// A set of layers, by their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layers {
    None,
    All,
    /// All layers except n − 1, 2n − 1 …
    NotEvery(usize),
    /// All layers except 0, n, 2n …
    NotFirstOf(usize),
    /// Layers n − 1, 2n − 1 …
    Every(usize),
}

impl Layers {
    pub fn contains(self, layer: usize) -> bool {
        match self {
            Layers::None => false,
            Layers::All => true,
            Layers::NotEvery(n) => !(layer + 1).is_multiple_of(n),
            Layers::NotFirstOf(n) => !layer.is_multiple_of(n),
            Layers::Every(n) => (layer + 1).is_multiple_of(n),
        }
    }
}

/// Layers whose queries and keys are not rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unrotated {
    These(Layers),
    /// The layers without a sliding window, if any layer has such a window.
    Global,
    /// As `Global`, except the leading dense layers of a model with experts.
    GlobalBehindDense,
}

/// The positions that a window of `n` tokens shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowKind {
    /// The last `n` positions, including the row's own.
    Sliding,
    /// The positions since the last multiple of `n` (Llama 4).
    Chunked,
    /// n / 2 positions before and after (ModernBERT).
    Symmetric,
}

/// The mixers of a model's layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mixers {
    Attention,
    /// Multi-head latent attention (DeepSeek-V2)
    Latent,
    Mamba1,
    Mamba2,
    /// Attention in layers with key-value heads, the recurrent mixer in the others
    Or(Recurrent),
    /// Attention and Mamba 2 in parallel (Falcon-H1)
    WithMamba2,
    /// Attention in every n-th layer (key: `full_attention_interval`) or in the layers that `attention.recurrent_layers` leaves, the
    /// recurrent mixer in the others
    Interval(Recurrent),
}

/// A mixer with a state of fixed size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recurrent {
    Mamba1,
    /// Mamba 1's tensors with a scalar decay per head (PLaMo 2)
    MambaPlamo,
    Mamba2,
    /// The gated delta rule (Yang et al. 2024) in Qwen3-Next's layout
    DeltaNext,
    /// The gated delta rule in Qwen 3.5's layout
    Delta,
    /// The delta rule with a decay per channel (Kimi Linear)
    Kda,
    /// A gated convolution over a few rows (LFM2)
    ShortConv,
    /// Linear attention with a fixed decay per head (MiniMax-01)
    Lightning,
}

/// How a router's score becomes an expert's weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gating {
    #[default]
    Softmax,
    Sigmoid,
    /// Softmax over the chosen experts only.
    SoftmaxOfChosen,
}

/// The layers that route to experts, in a model with experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routed {
    /// All layers.
    All,
    /// The layers after the first `leading_dense_block_count`, and of those every `interleave_moe_layer_step`-th.
    Metadata,
    /// The layers that have a router.
    ByTensor,
    /// Layers 1, n + 1, 2n + 1 … with n from `moe_every_n_layers`.
    EveryOther,
}

/// How a layer combines a dense feed-forward part with its experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    /// Each layer has one of the two.
    Either,
    /// x += dense(norm(x)), while the experts see the layer's input before attention (Arctic).
    Residual,
    /// sqrt(1/2) · (dense + experts) of the same input (Grok).
    Mean,
    /// Both parts have norms of their own and are added (Gemma 4).
    Normed,
}

/// The rules that an architecture's experts follow.
#[derive(Clone, Copy, Debug)]
pub struct ExpertRule {
    /// Whether the architecture supports experts.
    pub known: bool,
    /// Whether every file of the architecture has experts.
    pub needed: bool,
    pub layers: Routed,
    /// Whether a file without the inner dimension of one expert gives the total of all experts of a row.
    pub total_length: bool,
    pub gating: Gating,
    /// Whether the weights of a row's experts are scaled to add up to 1, for files that do not say.
    pub normalise: bool,
    /// Whether there may be an expert that all rows share.
    pub shared: bool,
    /// Whether there is a shared expert even if the file gives neither the number nor the length of shared experts.
    pub always_shared: bool,
    /// Whether the outputs of the shared expert and of the others are averaged (Cohere).
    pub mean_shared: bool,
    /// Whether an expert's weight multiplies its input instead of its output (Llama 4).
    pub weigh_input: bool,
    /// Whether the router sees the layer's input before attention (SmallThinker).
    pub early_router: bool,
    pub beside: Beside,
    /// The experts' activation, if it differs from the model's.
    pub activation: Option<Activation>,
}

/// The properties of an architecture. Everything else comes from the model file's metadata and its tensors.
#[derive(Clone, Copy, Debug)]
pub struct Arch {
    /// `general.architecture`
    pub name: &'static str,
    pub rope: RopePairing,
    pub positions: Positions,
    /// The positions of models with a given number of layers, if they differ.
    pub positions_by_layers: &'static [(usize, Positions)],
    pub block: Block,
    pub mixers: Mixers,
    pub norm: NormKind,
    /// Whether norms have no weights, and therefore no tensors (OLMo).
    pub weightless_norms: bool,
    pub activation: Activation,
    /// Whether feed-forward layers have a gate.
    pub gated: bool,
    pub embedding_scale: EmbeddingScale,
    pub logit_scale: LogitScale,
    /// The layers with a window, if the model has one and the file does not list these layers.
    pub windowed: Layers,
    /// If set, only models with this many layers have windows.
    pub windowed_with: Option<usize>,
    pub window_kind: WindowKind,
    pub unrotated: Unrotated,
    /// Whether the three positions of rows take turns in rotating pairs (Qwen 3.5).
    pub interleaved_sections: bool,
    /// Whether `rope.scaling.finetuned = false` means that nothing is rotated (Granite).
    pub rotation_switch: bool,
    /// The window of files that do not set one.
    pub default_window: Option<usize>,
    /// The soft caps of attention scores and logits, for files that do not set them. 0 means none.
    pub default_soft_caps: Option<[f32; 2]>,
    /// The RoPE base of files that do not set one (`rope.freq_base`).
    pub default_rope_theta: f32,
    /// The RoPE base of the layers with a window, if it differs from that of the others.
    pub local_rope_theta: Option<f32>,
    /// Whether queries and keys are normalised after the rotation instead of before.
    pub norm_after_rope: bool,
    /// Whether queries and keys of rotated layers are normalised without weights.
    pub weightless_qk_norm: bool,
    /// Whether values are normalised without weights.
    pub weightless_v_norm: bool,
    /// Whether a query projection of double width holds a gate for attention's output.
    pub gate_in_query: bool,
    /// Whether files with `attention.kv_lora_rank` have latent attention.
    pub may_be_latent: bool,
    /// The factor of attention scores, if it is not 1/sqrt(head_dim).
    pub attn_scale: Option<f32>,
    /// Whether scores are divided by head_dim instead of its root (Jais).
    pub scaled_by_dim: bool,
    /// The number of layers of a model that divides scores by the root of hidden / heads.
    pub scaled_by_width: Option<usize>,
    /// The first layer that reads keys and values of earlier layers, for files that do not say.
    pub own_kv_layers: Option<usize>,
    /// The number of leading layers whose gates keep only their largest values, for files that do not say (see `LayerSpec::gate_cutoff`).
    pub sparse_gates: usize,
    /// Whether a layer is either a mixer or a feed-forward layer (Nemotron-H).
    pub one_part: bool,
    /// Whether a layer with a feed-forward length of 0 has no feed-forward part (Deci).
    pub may_lack_ffn: bool,
    /// Whether the file's feed-forward length counts gate and up together (Qwen 1).
    pub half_ffn: bool,
    /// Whether rows see later rows of their sequence.
    pub bidirectional: bool,
    pub picture_rows: PictureRows,
    /// Whether a draft head reads rows of the residual stream as they are, before the final norm (MiMo-2).
    pub unnormed_drafts: bool,
    /// The norm of a draft head's output, if it differs from the other norms (Nemotron-H).
    pub draft_norm: Option<NormKind>,
    pub experts: ExpertRule,
    /// The norms and biases that every file has. The other tensors of mixers and feed-forward layers follow from the spec.
    pub required: &'static [TensorRole],
    /// Roles that a file may have, besides the output matrix and biases.
    pub optional: &'static [TensorRole],
    /// Roles of other architectures that this one does not use, even if a file fills them.
    pub ignored: &'static [TensorRole],
    /// Other names of roles, with `{}` for the layer's number. The first name that the file has is used.
    pub renamed: &'static [(TensorRole, &'static str)],
    /// What precedes the names of tensors in layers.
    pub prefix: &'static str,
}

impl Arch {
    /// The names that a role's tensor may have, with `{}` for the layer's number.
    pub fn names_of(&self, role: TensorRole) -> impl Iterator<Item = String> {
        let own: Vec<_> = self.renamed.iter().filter(|(renamed, _)| *renamed == role).map(|(_, name)| *name).collect();
        let usual = own.is_empty().then(|| role.pattern());
        let prefix = if role.per_layer() { self.prefix } else { "" };
        own.into_iter().chain(usual).map(move |name| format!("{prefix}{name}"))
    }
}
