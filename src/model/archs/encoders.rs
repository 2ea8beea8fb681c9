//! Encoders: rows see the whole text, and give a vector or a score.

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
    Arch { name: "bert", positions: Positions::Learned, required: joined!(TensorSlot, BERT.required, &[PositionEmbd]), ..BERT },
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
    Arch { name: "eurobert", bidirectional: true, rope: RopePairing::Adjacent, ..COMMON },
];
