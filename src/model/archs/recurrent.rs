//! Rows of architectures with recurrent state, with or without attention.

use super::common::*;

const QWEN_NEXT: Arch = Arch {
    mixers: Mixers::Interval(Recurrent::Delta),
    gate_in_query: true,
    interleaved_sections: true,
    renamed: FFN_NORM_BEHIND_ATTENTION,
    required: joined!(TensorRole, BASE, QK_NORMS),
    ..COMMON
};

const QWEN_NEXT_EXPERTS: Arch = Arch {
    required: joined!(TensorRole, BASE, QK_NORMS, &[SharedRouter]),
    experts: ExpertRule { shared: true, layers: Routed::All, ..EXPERTS },
    ..QWEN_NEXT
};

const NEMOTRON_H: Arch = Arch {
    mixers: Mixers::Or(Recurrent::Mamba2),
    positions: Positions::None,
    activation: Activation::ReluSquared,
    gated: false,
    one_part: true,
    // a draft head has both parts in one layer
    renamed: &[(FfnNorm, "blk.{}.post_attention_norm.weight"), (FfnNorm, "blk.{}.attn_norm.weight")],
    draft_norm: Some(NormKind::Layer),
    ..COMMON
};

const LFM2: Arch = Arch {
    mixers: Mixers::Or(Recurrent::ShortConv),
    required: joined!(TensorRole, BASE, QK_NORMS),
    renamed: &[(OutputNorm, "token_embd_norm.weight"), (OutputNorm, "output_norm.weight")],
    ..COMMON
};

pub const ROWS: &[Arch] = &[
    Arch { name: "mamba", mixers: Mixers::Mamba1, positions: Positions::None, required: &[OutputNorm, AttnNorm], ..COMMON },
    Arch { name: "mamba2", mixers: Mixers::Mamba2, positions: Positions::None, required: &[OutputNorm, AttnNorm], ..COMMON },
    Arch {
        name: "jamba",
        mixers: Mixers::Or(Recurrent::Mamba1),
        positions: Positions::None,
        experts: ExpertRule { layers: Routed::ByTensor, normalise: false, ..MAYBE_EXPERTS },
        ..COMMON
    },
    Arch {
        name: "falcon-h1",
        mixers: Mixers::WithMamba2,
        // no published file has these, and llama.cpp, the reference for this architecture, ignores them
        ignored: &[RopeFreqs, AttnOutputBias],
        renamed: &[(FfnNorm, "blk.{}.ffn_norm"), (FfnNorm, "blk.{}.ffn_norm.weight")],
        ..COMMON
    },
    Arch {
        name: "granitehybrid",
        mixers: Mixers::Or(Recurrent::Mamba2),
        experts: ExpertRule { shared: true, layers: Routed::All, ..MAYBE_EXPERTS },
        ..GRANITE
    },
    Arch { name: "nemotron_h", ..NEMOTRON_H },
    Arch {
        name: "nemotron_h_moe",
        experts: ExpertRule { shared: true, gating: Gating::Sigmoid, layers: Routed::ByTensor, ..EXPERTS },
        ..NEMOTRON_H
    },
    Arch {
        name: "plamo2",
        mixers: Mixers::Or(Recurrent::MambaPlamo),
        required: joined!(TensorRole, BASE, QK_NORMS, POST_NORMS),
        // converters write these names without an ending
        renamed: &[
            (PostAttnNorm, "blk.{}.post_attention_norm"),
            (PostAttnNorm, "blk.{}.post_attention_norm.weight"),
            (PostFfnNorm, "blk.{}.post_ffw_norm"),
            (PostFfnNorm, "blk.{}.post_ffw_norm.weight"),
            (SsmDtNorm, "blk.{}.ssm_dt_norm"),
            (SsmDtNorm, "blk.{}.ssm_dt_norm.weight"),
            (SsmBNorm, "blk.{}.ssm_b_norm"),
            (SsmBNorm, "blk.{}.ssm_b_norm.weight"),
            (SsmCNorm, "blk.{}.ssm_c_norm"),
            (SsmCNorm, "blk.{}.ssm_c_norm.weight"),
        ],
        ..COMMON
    },
    Arch { name: "lfm2", ..LFM2 },
    Arch { name: "lfm2moe", experts: ExpertRule { gating: Gating::Sigmoid, ..EXPERTS }, ..LFM2 },
    Arch { name: "qwen35", ..QWEN_NEXT },
    Arch { name: "qwen35moe", ..QWEN_NEXT_EXPERTS },
    Arch { name: "qwen3next", mixers: Mixers::Interval(Recurrent::DeltaNext), ..QWEN_NEXT_EXPERTS },
    Arch {
        name: "kimi-linear",
        mixers: Mixers::Or(Recurrent::Kda),
        may_be_latent: true,
        positions: Positions::None,
        experts: ExpertRule { shared: true, gating: Gating::Sigmoid, ..EXPERTS },
        ..COMMON
    },
    Arch {
        name: "minimax-01",
        block: Block::NormedResidual,
        mixers: Mixers::Interval(Recurrent::Lightning),
        renamed: &[(AttnSubNorm, "blk.{}.attn_norm_2.weight")],
        experts: ExpertRule { layers: Routed::All, ..EXPERTS },
        ..COMMON
    },
];
