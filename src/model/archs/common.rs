//! Building blocks that several rows of `ARCHS` share.

pub use crate::arch::*;
pub use crate::tensor_roles::TensorRole::{self, *};

/// Concatenates static lists into one.
macro_rules! joined {
    ($of:ty, $($part:expr),+ $(,)?) => {{
        const PARTS: &[&[$of]] = &[$($part),+];
        const LEN: usize = {
            let (mut total, mut i) = (0, 0);
            while i < PARTS.len() {
                total += PARTS[i].len();
                i += 1;
            }
            total
        };
        const ALL: [$of; LEN] = {
            let (mut all, mut len, mut i) = ([PARTS[0][0]; LEN], 0, 0);
            while i < PARTS.len() {
                let mut j = 0;
                while j < PARTS[i].len() {
                    all[len] = PARTS[i][j];
                    (len, j) = (len + 1, j + 1);
                }
                i += 1;
            }
            all
        };
        &ALL
    }};
}

pub(super) use joined;

pub const NO_EXPERTS: ExpertRule = ExpertRule {
    known: false,
    needed: false,
    layers: Routed::Metadata,
    total_length: false,
    gating: Gating::Softmax,
    normalise: true,
    shared: false,
    always_shared: false,
    mean_shared: false,
    weigh_input: false,
    early_router: false,
    beside: Beside::Either,
    activation: None,
};

/// Experts that every file of the architecture has.
pub const EXPERTS: ExpertRule = ExpertRule { known: true, needed: true, ..NO_EXPERTS };
/// Experts that a file may have.
pub const MAYBE_EXPERTS: ExpertRule = ExpertRule { known: true, ..NO_EXPERTS };

/// The values that most architectures share. A row states the differences.
pub const COMMON: Arch = Arch {
    name: "",
    rope: RopePairing::Halves,
    interleaved_sections: false,
    positions: Positions::Rope,
    positions_by_layers: &[],
    block: Block::Sequential,
    mixers: Mixers::Attention,
    norm: NormKind::Rms,
    weightless_norms: false,
    activation: Activation::Silu,
    gated: true,
    embedding_scale: EmbeddingScale::One,
    logit_scale: LogitScale::Unused,
    windowed: Layers::All,
    windowed_with: None,
    window_kind: WindowKind::Sliding,
    unrotated: Unrotated::These(Layers::None),
    rotation_switch: false,
    default_window: None,
    default_soft_caps: None,
    default_rope_theta: 10_000.0,
    local_rope_theta: None,
    norm_after_rope: false,
    weightless_qk_norm: false,
    weightless_v_norm: false,
    gate_in_query: false,
    may_be_latent: false,
    attn_scale: None,
    scaled_by_dim: false,
    scaled_by_width: None,
    own_kv_layers: None,
    sparse_gates: 0,
    one_part: false,
    may_lack_ffn: false,
    half_ffn: false,
    bidirectional: false,
    picture_rows: PictureRows::Causal,
    unnormed_drafts: false,
    draft_norm: None,
    experts: NO_EXPERTS,
    required: BASE,
    optional: &[],
    ignored: &[],
    renamed: &[],
    prefix: "",
};

/// The norms of most architectures.
pub const BASE: &[TensorRole] = &[OutputNorm, AttnNorm, FfnNorm];
pub const BIASED_NORMS: &[TensorRole] = &[OutputNorm, OutputNormBias, AttnNorm, AttnNormBias, FfnNorm, FfnNormBias];
pub const QKV_BIASES: &[TensorRole] = &[AttnQBias, AttnKBias, AttnVBias];
pub const QK_NORMS: &[TensorRole] = &[AttnQNorm, AttnKNorm];
pub const POST_NORMS: &[TensorRole] = &[PostAttnNorm, PostFfnNorm];
/// The name of the norm before the feed-forward layer in files that name it by its place after attention.
pub const FFN_NORM_BEHIND_ATTENTION: &[(TensorRole, &str)] = &[(FfnNorm, "blk.{}.post_attention_norm.weight")];
/// LayerNorm, GELU without a gate, biases everywhere.
pub const GPT: Arch = Arch {
    norm: NormKind::Layer,
    activation: Activation::Gelu,
    gated: false,
    required: joined!(TensorRole, BIASED_NORMS, QKV_BIASES, &[AttnOutputBias, FfnUpBias, FfnDownBias]),
    ..COMMON
};

pub const GRANITE: Arch = Arch { rope: RopePairing::Adjacent, rotation_switch: true, logit_scale: LogitScale::Divide, ..COMMON };
