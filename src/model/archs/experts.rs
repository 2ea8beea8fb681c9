//! Rows of architectures with experts.

use super::common::*;

const SHARED: ExpertRule = ExpertRule { shared: true, ..EXPERTS };

pub const ROWS: &[Arch] = &[
    // Qwen 1.5 and 2 with experts, one of which all tokens share.
    Arch {
        name: "qwen2moe",
        required: joined!(TensorRole, BASE, QKV_BIASES, &[SharedRouter]),
        experts: ExpertRule { normalise: false, total_length: true, ..SHARED },
        ..COMMON
    },
    // Qwen 3 with experts
    Arch {
        name: "qwen3moe",
        required: joined!(TensorRole, BASE, QK_NORMS),
        experts: ExpertRule { total_length: true, ..EXPERTS },
        ..COMMON
    },
    Arch {
        name: "qwen3vlmoe",
        interleaved_sections: true,
        required: joined!(TensorRole, BASE, QK_NORMS),
        experts: ExpertRule { total_length: true, ..EXPERTS },
        ..COMMON
    },
    Arch { name: "grovemoe", required: joined!(TensorRole, BASE, QK_NORMS), experts: EXPERTS, ..COMMON },
    Arch {
        name: "llama4",
        rope: RopePairing::Adjacent,
        windowed: Layers::NotEvery(4),
        window_kind: WindowKind::Chunked,
        default_window: Some(8192),
        unrotated: Unrotated::These(Layers::Every(4)),
        weightless_qk_norm: true,
        norm_after_rope: true,
        experts: ExpertRule { gating: Gating::Sigmoid, normalise: false, always_shared: true, weigh_input: true, ..SHARED },
        ..COMMON
    },
    Arch {
        name: "gpt-oss",
        windowed: Layers::NotEvery(2),
        renamed: FFN_NORM_BEHIND_ATTENTION,
        required: joined!(
            TensorRole,
            BASE,
            QKV_BIASES,
            &[AttnOutputBias, AttnSinks, FfnRouterBias, FfnGateExpsBias, FfnUpExpsBias, FfnDownExpsBias]
        ),
        experts: ExpertRule { gating: Gating::SoftmaxOfChosen, normalise: false, activation: Some(Activation::SwigluClamped), ..EXPERTS },
        ..COMMON
    },
    Arch {
        name: "phimoe",
        required: joined!(TensorRole, BIASED_NORMS, QKV_BIASES, &[AttnOutputBias, OutputBias]),
        experts: EXPERTS,
        ..COMMON
    },
    Arch { name: "olmoe", required: joined!(TensorRole, BASE, QK_NORMS), experts: ExpertRule { normalise: false, ..EXPERTS }, ..COMMON },
    Arch { name: "dbrx", norm: NormKind::Layer, renamed: &[(FfnNorm, "blk.{}.attn_output_norm.weight")], experts: EXPERTS, ..COMMON },
    Arch { name: "deepseek", rope: RopePairing::Adjacent, experts: ExpertRule { normalise: false, ..SHARED }, ..COMMON },
    Arch {
        name: "deepseek2",
        rope: RopePairing::Adjacent,
        mixers: Mixers::Latent,
        experts: ExpertRule { normalise: false, ..SHARED },
        ..COMMON
    },
    Arch {
        name: "mistral4",
        rope: RopePairing::Adjacent,
        mixers: Mixers::Latent,
        experts: ExpertRule { normalise: false, ..SHARED },
        ..COMMON
    },
    Arch { name: "dots1", required: joined!(TensorRole, BASE, QK_NORMS), experts: ExpertRule { normalise: false, ..SHARED }, ..COMMON },
    Arch {
        name: "bailingmoe",
        rope: RopePairing::Adjacent,
        experts: ExpertRule { layers: Routed::All, normalise: false, ..SHARED },
        ..COMMON
    },
    Arch {
        name: "bailingmoe2",
        required: joined!(TensorRole, BASE, QK_NORMS),
        experts: ExpertRule { normalise: false, ..SHARED },
        ..COMMON
    },
    Arch { name: "ernie4_5-moe", rope: RopePairing::Adjacent, experts: SHARED, ..COMMON },
    Arch {
        name: "exaone-moe",
        windowed: Layers::NotEvery(4),
        unrotated: Unrotated::Global,
        required: joined!(TensorRole, BASE, QK_NORMS),
        experts: ExpertRule { normalise: false, ..SHARED },
        ..COMMON
    },
    Arch {
        name: "glm4moe",
        renamed: FFN_NORM_BEHIND_ATTENTION,
        required: BASE,
        optional: QK_NORMS,
        experts: ExpertRule { gating: Gating::Sigmoid, normalise: false, ..SHARED },
        ..COMMON
    },
    Arch { name: "granitemoe", experts: ExpertRule { shared: true, layers: Routed::All, ..MAYBE_EXPERTS }, ..GRANITE },
    Arch {
        name: "hunyuan-moe",
        norm_after_rope: true,
        required: joined!(TensorRole, BASE, QK_NORMS),
        experts: ExpertRule { layers: Routed::All, always_shared: true, ..SHARED },
        ..COMMON
    },
    Arch {
        name: "hy_v3",
        required: joined!(TensorRole, BASE, QK_NORMS),
        experts: ExpertRule { gating: Gating::Sigmoid, layers: Routed::ByTensor, normalise: false, always_shared: true, ..SHARED },
        renamed: &[(ExpertChoiceBias, "blk.{}.exp_probs_b.bias"), (ExpertChoiceBias, "blk.{}.exp_probs_b")],
        ..COMMON
    },
    Arch {
        name: "mimo2",
        unnormed_drafts: true,
        windowed: Layers::NotEvery(6),
        experts: ExpertRule { gating: Gating::Sigmoid, layers: Routed::ByTensor, ..EXPERTS },
        ..COMMON
    },
    Arch {
        name: "minimax-m2",
        required: joined!(TensorRole, BASE, QK_NORMS),
        experts: ExpertRule { gating: Gating::Sigmoid, layers: Routed::All, ..EXPERTS },
        ..COMMON
    },
    Arch {
        name: "smallthinker",
        activation: Activation::Relu,
        windowed: Layers::NotFirstOf(4),
        unrotated: Unrotated::Global,
        experts: ExpertRule { early_router: true, ..EXPERTS },
        ..COMMON
    },
    Arch {
        name: "afmoe",
        embedding_scale: EmbeddingScale::SqrtHidden,
        windowed: Layers::NotEvery(4),
        unrotated: Unrotated::These(Layers::Every(4)),
        required: joined!(TensorRole, BASE, QK_NORMS, POST_NORMS, &[AttnGate]),
        experts: ExpertRule { gating: Gating::Sigmoid, normalise: false, ..SHARED },
        ..COMMON
    },
    Arch {
        name: "arctic",
        rope: RopePairing::Adjacent,
        required: joined!(TensorRole, BASE, &[FfnNormExps]),
        experts: ExpertRule { beside: Beside::Residual, ..EXPERTS },
        ..COMMON
    },
    Arch {
        name: "grok",
        activation: Activation::Gelu,
        embedding_scale: EmbeddingScale::By(78.383_67),
        logit_scale: LogitScale::Multiply(0.577_350_3),
        attn_scale: Some(0.088_388_35),
        default_soft_caps: Some([30.0, 0.0]),
        required: joined!(TensorRole, BASE, POST_NORMS),
        renamed: &[(PostAttnNorm, "blk.{}.attn_output_norm.weight"), (PostFfnNorm, "blk.{}.layer_output_norm.weight")],
        experts: ExpertRule { beside: Beside::Mean, ..EXPERTS },
        ..COMMON
    },
    Arch {
        name: "cohere2moe",
        rope: RopePairing::Adjacent,
        block: Block::Parallel,
        logit_scale: LogitScale::Multiply(1.0),
        windowed: Layers::NotFirstOf(4),
        unrotated: Unrotated::GlobalBehindDense,
        required: &[OutputNorm, AttnNorm],
        experts: ExpertRule { gating: Gating::Sigmoid, normalise: false, mean_shared: true, ..SHARED },
        ..COMMON
    },
];
