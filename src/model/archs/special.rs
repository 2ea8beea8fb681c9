//! Rows of architectures with parts that no other architecture has.

use super::common::*;

pub const ROWS: &[Arch] = &[
    // Gemma 3n: AltUp, LAuReL, an input per layer, shared keys and values
    Arch {
        name: "gemma3n",
        block: Block::Altup,
        activation: Activation::Gelu,
        embedding_scale: EmbeddingScale::SqrtHidden,
        windowed: Layers::NotEvery(5),
        local_rope_theta: Some(10_000.0),
        default_soft_caps: Some([0.0, 30.0]),
        weightless_v_norm: true,
        attn_scale: Some(1.0),
        own_kv_layers: Some(20),
        sparse_gates: 10,
        required: joined!(TensorRole, BASE, QK_NORMS, POST_NORMS),
        ..COMMON
    },
    // Gemma 4: heads of two widths, an input per layer, dense parts in parallel with the experts
    Arch {
        name: "gemma4",
        picture_rows: PictureRows::WholeInWindows,
        activation: Activation::Gelu,
        embedding_scale: EmbeddingScale::SqrtHidden,
        windowed: Layers::NotEvery(6),
        default_rope_theta: 1_000_000.0,
        local_rope_theta: Some(10_000.0),
        weightless_v_norm: true,
        attn_scale: Some(1.0),
        required: joined!(TensorRole, BASE, QK_NORMS, POST_NORMS),
        optional: &[LayerOutputScale],
        renamed: &[(FfnNormExps, "blk.{}.pre_ffw_norm_2.weight")],
        experts: ExpertRule { layers: Routed::ByTensor, beside: Beside::Normed, ..MAYBE_EXPERTS },
        ..COMMON
    },
    // MiniCPM 3: latent attention without experts, LongRoPE
    Arch {
        name: "minicpm3",
        mixers: Mixers::Latent,
        embedding_scale: EmbeddingScale::By(12.0),
        logit_scale: LogitScale::MiniCpm3,
        ..COMMON
    },
];
