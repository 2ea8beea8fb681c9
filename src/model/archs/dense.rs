//! Rows of architectures without experts. Llama's files may have some.

use super::common::*;

pub const ROWS: &[Arch] = &[
    // Llama 2 and 3, Mistral, Mixtral, SmolLM. The converter permutes Q and K so that RoPE's pairs are adjacent.
    Arch { name: "llama", rope: RopePairing::Adjacent, experts: MAYBE_EXPERTS, ..COMMON },
    // Ministral, and Mistral Small since version 3: queries grow with their position
    Arch { name: "mistral3", rope: RopePairing::Adjacent, experts: MAYBE_EXPERTS, ..COMMON },
    // Qwen 1: the feed-forward length counts gate and up together
    Arch { name: "qwen", half_ffn: true, required: joined!(TensorRole, BASE, QKV_BIASES), ..COMMON },
    // Qwen 2 and 2.5
    Arch { name: "qwen2", required: joined!(TensorRole, BASE, QKV_BIASES), ..COMMON },
    // Qwen 2-VL and 2.5-VL
    // The models have no output bias, and the reference ignores one.
    Arch { name: "qwen2vl", ignored: &[OutputBias], required: joined!(TensorRole, BASE, QKV_BIASES), ..COMMON },
    // Qwen 3, dense
    Arch { name: "qwen3", required: joined!(TensorRole, BASE, QK_NORMS), ..COMMON },
    Arch { name: "qwen3vl", interleaved_sections: true, required: joined!(TensorRole, BASE, QK_NORMS), ..COMMON },
    // Gemma. The converter adds 1 to the norms' weights of all generations.
    Arch { name: "gemma", activation: Activation::Gelu, embedding_scale: EmbeddingScale::SqrtHidden, ..COMMON },
    // Gemma 2. The first files set neither the window nor the caps.
    Arch {
        name: "gemma2",
        activation: Activation::Gelu,
        embedding_scale: EmbeddingScale::SqrtHidden,
        windowed: Layers::NotEvery(2),
        default_window: Some(4096),
        default_soft_caps: Some([50.0, 30.0]),
        scaled_by_width: Some(46),
        required: joined!(TensorRole, BASE, POST_NORMS),
        ..COMMON
    },
    // Gemma 3
    Arch {
        name: "gemma3",
        picture_rows: PictureRows::Whole,
        activation: Activation::Gelu,
        embedding_scale: EmbeddingScale::SqrtHidden,
        windowed: Layers::NotEvery(6),
        default_rope_theta: 1_000_000.0,
        local_rope_theta: Some(10_000.0),
        scaled_by_width: Some(62),
        required: joined!(TensorRole, BASE, QK_NORMS, POST_NORMS),
        ..COMMON
    },
    // Phi 3, 3.5 and 4
    Arch { name: "phi3", ..COMMON },
    // Phi 1.5 and 2
    Arch {
        name: "phi2",
        block: Block::Parallel,
        required: joined!(
            TensorRole,
            &[OutputNorm, OutputNormBias, OutputBias, AttnNorm, AttnNormBias],
            QKV_BIASES,
            &[AttnOutputBias, FfnUpBias, FfnDownBias]
        ),
        ..GPT
    },
    Arch { name: "gpt2", positions: Positions::Learned, required: joined!(TensorRole, GPT.required, &[PositionEmbd]), ..GPT },
    Arch { name: "starcoder", positions: Positions::Learned, required: joined!(TensorRole, GPT.required, &[PositionEmbd]), ..GPT },
    Arch { name: "starcoder2", ..GPT },
    Arch { name: "codeshell", ..GPT },
    // `use_parallel_residual` says how the branches are wired.
    Arch { name: "gptneox", block: Block::Parallel, ..GPT },
    Arch { name: "bloom", positions: Positions::Alibi, required: joined!(TensorRole, GPT.required, &[TokenNorm, TokenNormBias]), ..GPT },
    Arch {
        name: "mpt",
        positions: Positions::Alibi,
        required: &[OutputNorm, AttnNorm, FfnNorm],
        optional: &[PositionEmbd, OutputNormBias, AttnNormBias, FfnNormBias, FfnActScales, AttnQNorm, AttnKNorm],
        ..GPT
    },
    Arch { name: "jais", positions: Positions::Alibi, activation: Activation::Silu, gated: true, scaled_by_dim: true, ..GPT },
    Arch { name: "jais2", activation: Activation::ReluSquared, ..GPT },
    Arch { name: "nemotron", activation: Activation::ReluSquared, required: BIASED_NORMS, ..GPT },
    // The 40B model has a separate norm before attention.
    Arch {
        name: "falcon",
        block: Block::Parallel,
        required: BIASED_NORMS,
        renamed: &[
            (AttnNorm, "blk.{}.attn_norm_2.weight"),
            (AttnNorm, "blk.{}.attn_norm.weight"),
            (AttnNormBias, "blk.{}.attn_norm_2.bias"),
            (AttnNormBias, "blk.{}.attn_norm.bias"),
            (FfnNorm, "blk.{}.attn_norm.weight"),
            (FfnNormBias, "blk.{}.attn_norm.bias"),
        ],
        ..GPT
    },
    // If there is no norm before the feed-forward layer (12B), the branches are parallel.
    Arch {
        name: "stablelm",
        norm: NormKind::Layer,
        required: &[OutputNorm, OutputNormBias, AttnNorm, AttnNormBias],
        optional: &[FfnNorm, FfnNormBias, AttnQNorm, AttnKNorm],
        ..COMMON
    },
    Arch { name: "orion", norm: NormKind::Layer, required: BIASED_NORMS, ..COMMON },
    Arch {
        name: "command-r",
        rope: RopePairing::Adjacent,
        block: Block::Parallel,
        norm: NormKind::Layer,
        logit_scale: LogitScale::Multiply(1.0),
        required: &[OutputNorm, AttnNorm],
        optional: QK_NORMS,
        ..COMMON
    },
    Arch {
        name: "cohere2",
        rope: RopePairing::Adjacent,
        block: Block::Parallel,
        norm: NormKind::Layer,
        logit_scale: LogitScale::Multiply(1.0),
        windowed: Layers::NotEvery(4),
        unrotated: Unrotated::Global,
        required: &[OutputNorm, AttnNorm],
        ..COMMON
    },
    // The 7B model uses RoPE, the 13B model ALiBi.
    Arch {
        name: "baichuan",
        rope: RopePairing::Adjacent,
        positions: Positions::None,
        positions_by_layers: &[(32, Positions::Rope), (40, Positions::Alibi)],
        ..COMMON
    },
    Arch { name: "xverse", rope: RopePairing::Adjacent, ..COMMON },
    Arch { name: "internlm2", rope: RopePairing::Adjacent, ..COMMON },
    Arch { name: "deci", rope: RopePairing::Adjacent, may_lack_ffn: true, ..COMMON },
    Arch { name: "ernie4_5", rope: RopePairing::Adjacent, ..COMMON },
    Arch { name: "arcee", rope: RopePairing::Adjacent, activation: Activation::ReluSquared, gated: false, ..COMMON },
    Arch { name: "smollm3", rope: RopePairing::Adjacent, unrotated: Unrotated::These(Layers::Every(4)), ..COMMON },
    Arch { name: "maincoder", rope: RopePairing::Adjacent, norm_after_rope: true, required: joined!(TensorRole, BASE, QK_NORMS), ..COMMON },
    Arch { name: "chatglm", rope: RopePairing::Adjacent, ..COMMON },
    Arch { name: "glm4", rope: RopePairing::Adjacent, required: joined!(TensorRole, BASE, POST_NORMS), ..COMMON },
    Arch { name: "exaone", ..COMMON },
    Arch {
        name: "exaone4",
        windowed: Layers::NotEvery(4),
        // the 32B model
        windowed_with: Some(64),
        unrotated: Unrotated::Global,
        required: joined!(TensorRole, &[OutputNorm], QK_NORMS, POST_NORMS),
        ..COMMON
    },
    // OLMo 2 and 3
    Arch { name: "olmo2", windowed: Layers::NotEvery(4), required: joined!(TensorRole, &[OutputNorm], QK_NORMS, POST_NORMS), ..COMMON },
    Arch { name: "olmo", rope: RopePairing::Adjacent, norm: NormKind::Layer, weightless_norms: true, required: &[], ..COMMON },
    Arch { name: "openelm", required: joined!(TensorRole, BASE, QK_NORMS), ..COMMON },
    Arch { name: "hunyuan-dense", norm_after_rope: true, required: joined!(TensorRole, BASE, QK_NORMS), ..COMMON },
    Arch { name: "seed_oss", renamed: FFN_NORM_BEHIND_ATTENTION, required: joined!(TensorRole, BASE, QKV_BIASES), ..COMMON },
    Arch { name: "refact", positions: Positions::Alibi, ..COMMON },
    Arch { name: "plamo", block: Block::Parallel, required: &[OutputNorm, AttnNorm], ..COMMON },
    Arch {
        name: "plamo3",
        windowed: Layers::NotEvery(8),
        required: joined!(TensorRole, BASE, QK_NORMS, POST_NORMS),
        renamed: &[(PostAttnNorm, "blk.{}.post_attention_norm"), (PostFfnNorm, "blk.{}.post_ffw_norm")],
        ..COMMON
    },
    Arch { name: "apertus", activation: Activation::Xielu, gated: false, required: joined!(TensorRole, BASE, QK_NORMS), ..COMMON },
    // Norms precede the output projections of both branches
    Arch { name: "bitnet", windowed: Layers::None, required: joined!(TensorRole, BASE, &[AttnSubNorm, FfnSubNorm]), ..COMMON },
    Arch {
        name: "minicpm",
        rope: RopePairing::Adjacent,
        embedding_scale: EmbeddingScale::By(12.0),
        logit_scale: LogitScale::MiniCpm,
        experts: MAYBE_EXPERTS,
        ..COMMON
    },
    Arch { name: "granite", ..GRANITE },
    // Windowed attention with sinks
    Arch { name: "granite_swa", windowed: Layers::NotEvery(4), ..GRANITE },
];
