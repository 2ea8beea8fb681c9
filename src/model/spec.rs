//! [`ModelSpec`]: the hyperparameters that a forward pass needs, layer by layer. `read/` reads and validates them.

use crate::arch::{Activation, Arch, Block, Gating, Recurrent, RopePairing};

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    None,
    /// Positions are divided by the factor.
    Linear {
        factor: f32,
    },
    /// YaRN (Peng et al. 2023). Dimensions that make more than `beta_fast` rotations within the original context keep their frequency. The
    /// frequency of dimensions that make fewer than `beta_slow` is divided by the factor. A linear ramp lies between them.
    Yarn {
        factor: f32,
        original_context: usize,
        /// The factor of sine and cosine. Includes YaRN's own 0.1 ln(factor) + 1.
        attn_factor: f32,
        beta_fast: f32,
        beta_slow: f32,
    },
    /// LongRoPE (Ding et al. 2024). The frequency of each pair is divided by a factor of its own. The factors come from the tensor
    /// `rope_factors_long` if the engine was opened for more than the original context, and otherwise from `rope_factors_short`.
    Long {
        original_context: usize,
        /// The factor of sine and cosine.
        attn_factor: f32,
    },
}

/// The rotation of a layer's queries and keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeSpec {
    /// The number of rotated elements per head.
    pub dim: usize,
    pub theta: f32,
    pub scaling: RopeScaling,
    /// Whether the frequencies are divided by the tensor `rope_freqs`, if the file has it.
    pub factors: bool,
}

/// Which of a row's three positions rotates each pair: those of time, of picture rows and of picture columns (M-RoPE, Wang et al. 2024).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RopeSections {
    /// The pairs that each position rotates.
    pub pairs: [usize; 3],
    /// Whether the positions take turns, instead of rotating neighbouring pairs each.
    pub interleaved: bool,
}

impl RopeSections {
    /// The index of the position that rotates a pair. The first one rotates pairs that are in no section.
    pub fn position_of(&self, pair: usize) -> usize {
        let [first, second, third] = self.pairs;
        match self.interleaved {
            true if pair % 3 == 1 && pair < 3 * second => 1,
            true if pair % 3 == 2 && pair < 3 * third => 2,
            false if (first..first + second).contains(&pair) => 1,
            false if (first + second..first + second + third).contains(&pair) => 2,
            _ => 0,
        }
    }
}

/// The elements that a norm of queries or keys covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadNorm {
    None,
    /// Each head alone, with weights that all heads share.
    Head,
    /// Each head alone, with weights of its own.
    OwnHead,
    /// All heads of a row together.
    Row,
    /// Each head alone, without weights, as an RMS norm.
    Weightless,
}

/// The gate that multiplies an attention's output before the output projection, after a sigmoid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttnGate {
    None,
    /// The second half of each head of the query projection.
    InQuery,
    /// A separate projection, as wide as the heads.
    Own,
}

/// A growing factor of the queries: 1 + scale · ln(1 + floor((position + offset) / floor)).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Temperature {
    pub scale: f32,
    pub floor: f32,
    pub offset: f32,
}

impl Temperature {
    /// The factor of the queries at a position.
    pub fn at(&self, position: u32) -> f32 {
        1.0 + self.scale * ((position as f32 + self.offset) / self.floor).floor().ln_1p()
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    pub num_heads: usize,
    pub num_kv_heads: usize,
    /// The number of elements per head of queries and keys.
    pub head_dim: usize,
    /// The number of elements per head of values.
    pub value_dim: usize,
    pub rope: Option<RopeSpec>,
    /// The number of tokens that a row sees, including its own. The architecture's `window_kind` says which ones.
    pub window: Option<usize>,
    /// The factor of the attention scores.
    pub scale: f32,
    /// Caps scaled attention scores: s becomes cap · tanh(s / cap).
    pub soft_cap: Option<f32>,
    /// Clamps queries, keys and values to [-clamp, clamp].
    pub clamp: Option<f32>,
    /// The largest bias of ALiBi: head h has the slope 2^(-alibi · (h + 1) / heads).
    pub alibi: Option<f32>,
    pub temperature: Option<Temperature>,
    pub q_norm: HeadNorm,
    pub k_norm: HeadNorm,
    pub v_norm: HeadNorm,
    pub gate: AttnGate,
    /// The layer whose keys and values this layer reads. None if the layer has its own.
    pub kv_of: Option<usize>,
    pub picture_rows: RunSight,
}

/// Which rows of its run a row of a whole run sees besides those that every row sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RunSight {
    /// None.
    #[default]
    Causal,
    /// All of them, however short the layer's window is.
    Whole,
    /// The later ones.
    Later,
}

/// Multi-head latent attention (DeepSeek-V2): keys and values are projections of one latent vector per token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latent {
    pub num_heads: usize,
    /// The rank of the queries' projection. 0 if queries are projected directly.
    pub q_rank: usize,
    /// The length of the latent vector.
    pub kv_rank: usize,
    /// The elements of a query's head that are not rotated.
    pub nope_dim: usize,
    /// The number of elements per head of values.
    pub value_dim: usize,
    /// The rotation of the last elements of each query's head and of the one shared key. Its `dim` is their number. None in models without
    /// rotation, which still have these elements.
    pub rope: Option<RopeSpec>,
    pub rope_dim: usize,
    pub scale: f32,
    /// Whether the file holds separate tensors `attn_k_b` and `attn_v_b`, in the form for absorbed products, instead of `attn_kv_b`.
    pub split: bool,
    pub temperature: Option<Temperature>,
}

/// The shape of a mixer with recurrent state. The kind decides which fields matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ssm {
    pub kind: Recurrent,
    /// The number of channels after the input projection.
    pub inner: usize,
    /// The state per channel (Mamba), or the elements per head of keys (delta rule).
    pub state: usize,
    /// The number of rows that the convolution covers.
    pub conv: usize,
    /// The rank of the time step (Mamba 1), or the number of heads.
    pub heads: usize,
    /// The number of groups of heads that share B and C, or of key heads.
    pub groups: usize,
    /// Whether dt, B and C of Mamba 1 are normalised even if the file has no weights for the norms (FalconMamba).
    pub normalised: bool,
}

impl AttnGate {
    /// The rows of the query projection per element of the heads.
    pub fn query_rows(self) -> usize {
        if self == AttnGate::InQuery { 2 } else { 1 }
    }
}

impl Ssm {
    /// The rank of the time step's projection, in a model with rows of `hidden` elements.
    pub fn time_rank(&self, hidden: usize) -> usize {
        if self.kind == Recurrent::MambaPlamo { (hidden / 16).max(64) } else { self.heads }
    }

    /// The number of channels that the convolution covers.
    pub fn conv_channels(&self) -> usize {
        match self.kind {
            Recurrent::Mamba1 | Recurrent::MambaPlamo | Recurrent::ShortConv => self.inner,
            Recurrent::Mamba2 | Recurrent::Delta | Recurrent::DeltaNext => self.inner + 2 * self.groups * self.state,
            Recurrent::Kda => 3 * self.inner,
            Recurrent::Lightning => 0,
        }
    }

    /// The floats of state per sequence: the convolution's earlier rows, then the recurrence's state.
    pub fn state_width(&self) -> usize {
        let recurrence = match self.kind {
            Recurrent::ShortConv => 0,
            _ => self.inner * self.state,
        };
        (self.conv - 1) * self.conv_channels() + recurrence
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mixer {
    None,
    Attention(Attention),
    Latent(Latent),
    Recurrent(Ssm),
    /// Both in parallel, on the same input.
    Both(Attention, Ssm),
}

/// A mixture of experts: each layer has several feed-forward networks, and a router chooses a few of them for each row (Shazeer et al.
/// 2017).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Experts {
    pub count: usize,
    /// The number of experts that each row uses.
    pub used: usize,
    /// The inner dimension of each expert.
    pub ffn_dim: usize,
    /// The inner dimension of the expert that all rows share. 0 if there is none.
    pub shared_ffn_dim: usize,
    pub gating: Gating,
    /// Whether the weights of a row's experts are scaled to add up to 1.
    pub normalise: bool,
    /// The factor of the weights. 1 unless the file sets another.
    pub scale: f32,
    /// Experts are chosen from the best `groups_used` of `groups` groups. With 0 groups, they are chosen from all experts.
    pub groups: usize,
    pub groups_used: usize,
    /// The inner dimension of the adjugate experts (GroveMoE), one per group of `chunk_group` experts. 0 if there are none.
    pub chunk_ffn_dim: usize,
    pub chunk_group: usize,
    pub chunk_scale: f32,
}

impl Experts {
    /// The number of adjugate experts.
    pub fn num_chunks(&self) -> usize {
        self.count.div_ceil(self.chunk_group.max(1))
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FeedForward {
    None,
    /// A dense part with this inner dimension.
    Dense(usize),
    Experts(Experts),
    /// A dense part in parallel with the experts.
    Both(usize, Experts),
}

impl FeedForward {
    pub fn dense(&self) -> Option<usize> {
        match self {
            FeedForward::Dense(dim) | FeedForward::Both(dim, _) => Some(*dim),
            _ => None,
        }
    }

    pub fn experts(&self) -> Option<&Experts> {
        match self {
            FeedForward::Experts(experts) | FeedForward::Both(_, experts) => Some(experts),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerSpec {
    pub mixer: Mixer,
    pub ffn: FeedForward,
    /// The cutoff of the dense part's gate, whose output becomes max(x − (mean + cutoff · deviation of the row), 0) before the activation
    /// (Gemma 3n). None leaves the output as it is.
    pub gate_cutoff: Option<f32>,
}

impl LayerSpec {
    pub fn attention(&self) -> Option<&Attention> {
        match &self.mixer {
            Mixer::Attention(attention) | Mixer::Both(attention, _) => Some(attention),
            _ => None,
        }
    }

    pub fn latent(&self) -> Option<&Latent> {
        if let Mixer::Latent(latent) = &self.mixer { Some(latent) } else { None }
    }

    pub fn ssm(&self) -> Option<&Ssm> {
        match &self.mixer {
            Mixer::Recurrent(ssm) | Mixer::Both(_, ssm) => Some(ssm),
            _ => None,
        }
    }

    /// The floats of recurrent state per sequence.
    pub fn state_width(&self) -> usize {
        self.ssm().map_or(0, Ssm::state_width)
    }

    /// The data that the layer caches per token. None if it caches nothing.
    pub fn cached(&self) -> Option<Cached> {
        match &self.mixer {
            Mixer::Latent(latent) => Some(Cached { heads: 1, key: latent.kv_rank + latent.rope_dim, value: latent.kv_rank }),
            Mixer::Attention(a) | Mixer::Both(a, _) if a.kv_of.is_none() => {
                Some(Cached { heads: a.num_kv_heads, key: a.head_dim, value: a.value_dim })
            }
            _ => None,
        }
    }
}

/// The shape of a layer's keys and values: the number of heads, and the elements of each head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cached {
    pub heads: usize,
    pub key: usize,
    pub value: usize,
}

/// How the rows of a sequence become one vector, after the final norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The row at position 0.
    First,
    Last,
    /// The mean of all rows, summed in the order of their positions.
    Mean,
    /// The classifier's scores of one row: the first row if rows see later rows, else the last.
    Rank,
}

/// The number of AltUp's residual streams (Baykal et al. 2023) in every model that uses AltUp. The first stream is the active one.
pub const ALTUP_STREAMS: usize = 4;

#[derive(Clone, Debug)]
pub struct ModelSpec {
    pub arch: &'static Arch,
    /// `general.name`, or the file name without its extension.
    pub name: String,
    pub vocab_size: usize,
    pub hidden_dim: usize,
    pub layers: Vec<LayerSpec>,
    pub block: Block,
    pub activation: Activation,
    pub rope_pairing: RopePairing,
    /// None if rows have one position.
    pub rope_sections: Option<RopeSections>,
    /// xIELU's parameters per layer: alpha of negative inputs, alpha of positive inputs, beta, epsilon. Empty for other activations.
    pub xielu: Vec<[f32; 4]>,
    /// The longest context that the model was trained for, in tokens.
    pub context_length: usize,
    pub norm_eps: f32,
    /// The factor of the token embeddings.
    pub embedding_scale: f32,
    /// The factor of a branch's output when it is added to the residual stream.
    pub residual_scale: f32,
    /// The factor of the logits.
    pub logit_scale: f32,
    /// Caps logits: x becomes cap · tanh(x / cap).
    pub final_soft_cap: Option<f32>,
    /// The length of each layer's own input (Gemma 3n and 4). 0 if layers have none.
    pub per_layer_input: usize,
    /// The number of layers, from the first on, that each add a slice of a picture's row to the stream (Qwen3-VL's deepstack).
    pub deepstack: usize,
    /// The number of token types (BERT). 0 if the model has none.
    pub num_token_types: usize,
    /// How a text becomes a vector.
    pub pooling: Pooling,
    /// The number of scores that a classifier gives. 0 if the model has no classifier.
    pub num_classes: usize,
    /// The layer that is the model's draft head (multi-token prediction): the last one. None in the spec of the model without it.
    pub draft_head: Option<usize>,
}

impl ModelSpec {
    pub fn num_layers(&self) -> usize {
        self.layers.len()
    }

    /// The length of a row of embeddings: what enters the stream, then what each layer of the deepstack adds.
    pub fn embedding_width(&self) -> usize {
        self.hidden_dim * (1 + self.deepstack)
    }

    /// Whether the rows of a picture see each other in some layer, so that one step must have them all.
    pub fn has_whole_pictures(&self) -> bool {
        self.layers.iter().any(|layer| layer.attention().is_some_and(|a| a.picture_rows != RunSight::Causal))
    }

    /// The attention of the first layer that has one, for models whose layers only differ in window and rotation.
    pub fn attention(&self) -> Option<&Attention> {
        self.layers.iter().find_map(LayerSpec::attention)
    }

    /// The experts of the first layer that has some.
    pub fn experts(&self) -> Option<&Experts> {
        self.layers.iter().find_map(|layer| layer.ffn.experts())
    }

    /// The number of positions that the model has embeddings for. None if there is no such limit.
    pub fn max_positions(&self) -> Option<usize> {
        (self.arch.positions == crate::arch::Positions::Learned).then_some(self.context_length)
    }

    /// The floats of recurrent state per sequence, for each layer.
    pub fn state_widths(&self) -> impl Iterator<Item = usize> {
        self.layers.iter().map(LayerSpec::state_width)
    }

    /// The size of a sequence's recurrent state in float32, in bytes.
    pub fn state_bytes(&self) -> u64 {
        self.state_widths().fold(0, |sum, width| sum.saturating_add(4 * width as u64))
    }

    /// Whether a sequence has a recurrent state.
    pub fn is_recurrent(&self) -> bool {
        self.layers.iter().any(|layer| layer.ssm().is_some())
    }
}
