//! Rows of encoders, which see the whole text and give a vector or a score.

use super::common::*;

const BERT: Arch = Arch {
    block: Block::PostNorm,
    norm: NormKind::Layer,
    activation: Activation::GeluErf,
    gated: false,
    bidirectional: true,
    required: &[TokenNorm, TokenNormBias, PostAttnNorm, PostAttnNormBias, PostFfnNorm, PostFfnNormBias],
    renamed: &[
        (PostAttnNorm, "blk.{}.attn_output_norm.weight"),
        (PostAttnNormBias, "blk.{}.attn_output_norm.bias"),
        (PostFfnNorm, "blk.{}.layer_output_norm.weight"),
        (PostFfnNormBias, "blk.{}.layer_output_norm.bias"),
    ],
    ..COMMON
};

pub const ROWS: &[Arch] = &[
    Arch { name: "bert", positions: Positions::Learned, required: joined!(TensorRole, BERT.required, &[PositionEmbd]), ..BERT },
    Arch { name: "nomic-bert", gated: true, activation: Activation::Silu, ..BERT },
    Arch { name: "jina-bert-v2", positions: Positions::Alibi, gated: true, optional: QK_NORMS, ..BERT },
    Arch {
        name: "modern-bert",
        norm: NormKind::Layer,
        activation: Activation::Gelu,
        bidirectional: true,
        windowed: Layers::NotFirstOf(3),
        window_kind: WindowKind::Symmetric,
        required: &[TokenNorm, OutputNorm, FfnNorm],
        optional: &[AttnNorm],
        ..COMMON
    },
    Arch { name: "eurobert", bidirectional: true, ..COMMON },
    Arch { name: "jina-bert-v3", ..BERT },
    Arch { name: "nomic-bert-moe", experts: ExpertRule { layers: Routed::EveryOther, normalise: false, ..MAYBE_EXPERTS }, ..BERT },
    Arch { name: "llama-embed", rope: RopePairing::Adjacent, bidirectional: true, ..COMMON },
    Arch {
        name: "gemma-embedding",
        activation: Activation::Gelu,
        embedding_scale: EmbeddingScale::SqrtHidden,
        windowed: Layers::NotEvery(6),
        window_kind: WindowKind::Symmetric,
        default_rope_theta: 1_000_000.0,
        local_rope_theta: Some(10_000.0),
        bidirectional: true,
        required: joined!(TensorRole, BASE, QK_NORMS, POST_NORMS),
        ..COMMON
    },
];
