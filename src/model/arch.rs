//! What distinguishes one architecture from another. The rows stand in `archs/`.

use crate::tensor_roles::TensorRole;

/// Which elements of a head RoPE rotates as a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePairing {
    /// (0, 1), (2, 3) …
    Adjacent,
    /// (0, d/2), (1, d/2 + 1) …
    Halves,
}

/// How a row knows its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positions {
    /// Queries and keys are rotated (Su et al. 2021).
    Rope,
    /// A learned embedding of the position is added to that of the token.
    Learned,
    /// Scores fall linearly with the distance (ALiBi, Press et al. 2022).
    Alibi,
    /// Not at all, or by the order of a recurrence.
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// x · sigmoid(x)
    Silu,
    /// x · Φ(x), Φ by its tanh approximation
    Gelu,
    /// x · Φ(x), Φ by the error function
    GeluErf,
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
    /// x += mixer(norm(x)), then x += ffn(norm(x)). A norm behind a branch applies to what the branch adds. Any norm may be missing.
    Sequential,
    /// x += mixer(h) + ffn(h') with h = norm(x), and h' = ffn_norm(x) or, without such a norm, h
    Parallel,
    /// x = norm(x + mixer(x)), then x = norm(x + ffn(x)) (BERT)
    PostNorm,
    /// h = norm(x), x = scale · h + mixer(h), and the same with the feed-forward layer (MiniMax-01)
    NormedResidual,
    /// Four streams that predict and correct each other (AltUp, Gemma 3n)
    Altup,
}

/// The factor of the token embeddings if the file does not set one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EmbeddingScale {
    One,
    /// sqrt(hidden)
    SqrtHidden,
    By(f32),
}

/// What the file's `logit_scale` does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LogitScale {
    Unused,
    /// Logits are multiplied by it, or by this number if the file has none.
    Multiply(f32),
    /// Logits are divided by it.
    Divide,
    /// Logits are multiplied by it and divided by the embedding's factor (MiniCPM: hidden / base).
    MiniCpm,
    /// It is not used: logits are multiplied by 256 / hidden (MiniCPM 3).
    MiniCpm3,
}

/// Some layers of a model, by their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layers {
    None,
    All,
    /// All but every `n`-th: layers n − 1, 2n − 1 … are left out.
    NotEvery(usize),
    /// All but layers 0, n, 2n …
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
    /// The layers without a sliding window, if the model has such windows.
    Global,
    /// As `Global`, but for the leading dense layers of a model with experts.
    GlobalBehindDense,
}

/// What a sliding window of `n` tokens shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowKind {
    /// The last `n` positions, the row's own among them.
    Sliding,
    /// The positions since the last multiple of `n` (Llama 4).
    Chunked,
    /// n / 2 positions before and after (ModernBERT).
    Symmetric,
}

/// Which mixers a model's layers have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mixers {
    Attention,
    /// Multi-head latent attention (DeepSeek-V2)
    Latent,
    Mamba1,
    Mamba2,
    /// Attention where the layer has key-value heads, elsewhere the other
    Or(Recurrent),
    /// Attention and Mamba 2 side by side (Falcon-H1)
    WithMamba2,
    /// Attention in every n-th layer or as `attention.recurrent_layers` says, elsewhere the other. Key: `full_attention_interval`.
    Interval(Recurrent),
}

/// A mixer with a state of fixed size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recurrent {
    Mamba1,
    /// Mamba 1's tensors with a scalar decay per head (PLaMo 2)
    MambaPlamo,
    Mamba2,
    /// The gated delta rule (Yang et al. 2024), Qwen3-Next's layout
    DeltaNext,
    /// The gated delta rule, Qwen 3.5's layout
    Delta,
    /// The delta rule with a decay per channel (Kimi Linear)
    Kda,
    /// A gated convolution over a few rows (LFM2)
    ShortConv,
    /// Linear attention with a fixed decay per head (MiniMax-01)
    Lightning,
}

/// How an expert's score becomes its weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gating {
    #[default]
    Softmax,
    Sigmoid,
    /// Softmax over the chosen experts only.
    SoftmaxOfChosen,
}

/// Which layers of a model with experts route to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routed {
    /// All of them.
    All,
    /// Those behind the first `leading_dense_block_count`, every `interleave_moe_layer_step`-th of them.
    Metadata,
    /// Those that have a router.
    ByTensor,
    /// Layers 1, n + 1, 2n + 1 … with n from `moe_every_n_layers`.
    EveryOther,
}

/// Where a layer's dense feed-forward part stands beside its experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    /// Layers have either.
    Either,
    /// x += dense(norm(x)), and the experts see the layer's input before attention: Arctic.
    Residual,
    /// sqrt(1/2) · (dense + experts) of the same input: Grok.
    Mean,
    /// Both with norms of their own, added: Gemma 4.
    Normed,
}

/// What a model's experts have of their own.
#[derive(Clone, Copy, Debug)]
pub struct ExpertRule {
    /// Whether the architecture knows experts.
    pub known: bool,
    /// Whether every file of the architecture has experts.
    pub needed: bool,
    pub layers: Routed,
    /// Files without a length of an expert's own give that of all experts of a row together.
    pub total_length: bool,
    pub gating: Gating,
    /// Whether the weights of a row's experts are scaled to add up to 1 if the file does not say.
    pub normalise: bool,
    /// Whether all rows may share an expert.
    pub shared: bool,
    /// Whether they do even if the file gives neither the number nor the length of shared experts.
    pub always_shared: bool,
    /// What the shared expert and the others give is averaged (Cohere).
    pub mean_shared: bool,
    /// An expert's input is multiplied by its weight, instead of its output (Llama 4).
    pub weigh_input: bool,
    /// The router sees the layer's input before attention (SmallThinker).
    pub early_router: bool,
    pub beside: Beside,
    /// The experts' activation, if it differs.
    pub activation: Option<Activation>,
}

/// What distinguishes an architecture. Everything else comes from the model file's metadata and from its tensors.
#[derive(Clone, Copy, Debug)]
pub struct Arch {
    /// `general.architecture`
    pub name: &'static str,
    pub rope: RopePairing,
    pub positions: Positions,
    /// Models with this many layers know their positions in another way.
    pub positions_by_layers: &'static [(usize, Positions)],
    pub block: Block,
    pub mixers: Mixers,
    pub norm: NormKind,
    /// Norms have no weights, and so no tensors (OLMo).
    pub weightless_norms: bool,
    pub activation: Activation,
    /// Whether feed-forward layers have a gate.
    pub gated: bool,
    pub embedding_scale: EmbeddingScale,
    pub logit_scale: LogitScale,
    /// Layers with a window, if the model has one and the file does not list them.
    pub windowed: Layers,
    /// Only models with this many layers have windows.
    pub windowed_with: Option<usize>,
    pub window_kind: WindowKind,
    pub unrotated: Unrotated,
    /// Whether `rope.scaling.finetuned = false` means that nothing is rotated (Granite).
    pub rotation_switch: bool,
    /// The window if the file does not set one.
    pub default_window: Option<usize>,
    /// Soft caps of attention scores and logits if the file does not set them. 0: none.
    pub default_soft_caps: Option<[f32; 2]>,
    /// RoPE base if the file does not set one (`rope.freq_base`).
    pub default_rope_theta: f32,
    /// RoPE base of the layers with a window, if it differs from that of the others.
    pub local_rope_theta: Option<f32>,
    /// Whether queries and keys are normalised behind the rotation instead of before it.
    pub norm_after_rope: bool,
    /// Whether queries and keys of rotated layers are normalised without weights.
    pub weightless_qk_norm: bool,
    /// Whether values are normalised without weights.
    pub weightless_v_norm: bool,
    /// Whether a query projection of twice the width holds a gate for attention's output.
    pub gate_in_query: bool,
    /// Whether files with `attention.kv_lora_rank` have latent attention.
    pub may_be_latent: bool,
    /// The factor of attention scores, if it is not 1/sqrt(head_dim).
    pub attn_scale: Option<f32>,
    /// Scores are divided by head_dim instead of its root (Jais).
    pub scaled_by_dim: bool,
    /// The model with this many layers divides scores by the root of hidden / heads.
    pub scaled_by_width: Option<usize>,
    /// Layers from this one on read keys and values of earlier layers, if the file does not say.
    pub own_kv_layers: Option<usize>,
    /// The first layers' gates keep only their largest values, if the file does not say (see `LayerSpec::gate_cutoff`).
    pub sparse_gates: usize,
    /// A layer is either a mixer or a feed-forward layer (Nemotron-H).
    pub one_part: bool,
    /// A layer with a feed-forward length of 0 has no feed-forward part (Deci).
    pub may_lack_ffn: bool,
    /// The file's feed-forward length counts gate and up together (Qwen 1).
    pub half_ffn: bool,
    /// Whether rows see later rows of their sequence.
    pub bidirectional: bool,
    pub experts: ExpertRule,
    /// Norms and biases that every file has. What mixers and feed-forward layers need is known without them.
    pub required: &'static [TensorRole],
    /// Roles that a file may have, besides the output matrix and biases.
    pub optional: &'static [TensorRole],
    /// Roles that other architectures have, and that this one does not use even if a file fills them.
    pub ignored: &'static [TensorRole],
    /// Other names of roles, with `{}` for the layer's number. The first that the file has counts.
    pub renamed: &'static [(TensorRole, &'static str)],
}

impl Arch {
    /// The names that a role's tensor may have, with `{}` for the layer's number.
    pub fn names_of(&self, role: TensorRole) -> impl Iterator<Item = &'static str> {
        let own: Vec<_> = self.renamed.iter().filter(|(renamed, _)| *renamed == role).map(|(_, name)| *name).collect();
        let usual = own.is_empty().then(|| role.pattern());
        own.into_iter().chain(usual)
    }
}
