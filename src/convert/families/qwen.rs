//! Rows of Qwen, Gemma and Phi.

use super::common::*;

const SHARED_EXPERT: &[Rule] = &[
    rule("layers.{}.mlp.shared_expert_gate", "blk.{}.ffn_gate_inp_shexp", TensorTransform::Row),
    copy("layers.{}.mlp.shared_expert.gate_proj", "blk.{}.ffn_gate_shexp"),
    copy("layers.{}.mlp.shared_expert.up_proj", "blk.{}.ffn_up_shexp"),
    copy("layers.{}.mlp.shared_expert.down_proj", "blk.{}.ffn_down_shexp"),
];

const GEMMA_ENDS: &[Rule] =
    &[copy("embed_tokens", "token_embd"), rule("norm", "output_norm", TensorTransform::PlusOne), copy("lm_head", "output")];

const GEMMA_NORMS: &[Rule] = &[
    rule("layers.{}.input_layernorm", "blk.{}.attn_norm", TensorTransform::PlusOne),
    rule("layers.{}.post_attention_layernorm", "blk.{}.ffn_norm", TensorTransform::PlusOne),
];

const GEMMA2_NORMS: &[Rule] = &[
    rule("layers.{}.input_layernorm", "blk.{}.attn_norm", TensorTransform::PlusOne),
    rule("layers.{}.post_attention_layernorm", "blk.{}.post_attention_norm", TensorTransform::PlusOne),
    rule("layers.{}.pre_feedforward_layernorm", "blk.{}.ffn_norm", TensorTransform::PlusOne),
    rule("layers.{}.post_feedforward_layernorm", "blk.{}.post_ffw_norm", TensorTransform::PlusOne),
];

const GEMMA3_QK_NORMS: &[Rule] = &[
    rule("layers.{}.self_attn.q_norm", "blk.{}.attn_q_norm", TensorTransform::PlusOne),
    rule("layers.{}.self_attn.k_norm", "blk.{}.attn_k_norm", TensorTransform::PlusOne),
];

const PHI3: &[Rule] = &[
    copy("layers.{}.self_attn.qkv_proj", "blk.{}.attn_qkv"),
    copy("layers.{}.self_attn.o_proj", "blk.{}.attn_output"),
    copy("layers.{}.mlp.gate_up_proj", "blk.{}.ffn_up"),
    copy("layers.{}.mlp.down_proj", "blk.{}.ffn_down"),
];

const PHI2: &[Rule] = &[
    copy("embed_tokens", "token_embd"),
    copy("final_layernorm", "output_norm"),
    copy("lm_head", "output"),
    copy("layers.{}.input_layernorm", "blk.{}.attn_norm"),
    copy("layers.{}.self_attn.q_proj", "blk.{}.attn_q"),
    copy("layers.{}.self_attn.k_proj", "blk.{}.attn_k"),
    copy("layers.{}.self_attn.v_proj", "blk.{}.attn_v"),
    copy("layers.{}.self_attn.dense", "blk.{}.attn_output"),
    copy("layers.{}.mlp.fc1", "blk.{}.ffn_up"),
    copy("layers.{}.mlp.fc2", "blk.{}.ffn_down"),
];

const SEED_NORMS: &[Rule] =
    &[copy("layers.{}.input_layernorm", "blk.{}.attn_norm"), copy("layers.{}.post_attention_layernorm", "blk.{}.post_attention_norm")];

const GEMMA3: Family = Family {
    classes: &["Gemma3ForCausalLM", "Gemma3TextModel"],
    arch: "gemma3",
    tensors: &[GEMMA_ENDS, GEMMA2_NORMS, ATTENTION, GEMMA3_QK_NORMS, FFN],
    own: gemma,
    ..COMMON
};

/// The values of the class `Gemma3TextConfig`. Files of models with images omit them.
const GEMMA3_DEFAULTS: &str = r#"{"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0, "query_pre_attn_scalar": 256, "sliding_window": 4096, "hidden_activation": "gelu_pytorch_tanh"}"#;

pub const ROWS: &[Family] = &[
    Family { classes: &["Qwen2ForCausalLM"], arch: "qwen2", tensors: &[ENDS, NORMS, ATTENTION, FFN], ..COMMON },
    Family {
        classes: &["Qwen2MoeForCausalLM"],
        arch: "qwen2moe",
        tensors: &[ENDS, NORMS, ATTENTION, EXPERTS, SHARED_EXPERT],
        own: all_routed,
        ..COMMON
    },
    Family { classes: &["Qwen3ForCausalLM"], arch: "qwen3", tensors: &[ENDS, NORMS, ATTENTION, QK_NORMS, FFN], ..COMMON },
    Family {
        classes: &["Qwen3MoeForCausalLM"],
        arch: "qwen3moe",
        tensors: &[ENDS, NORMS, ATTENTION, QK_NORMS, EXPERTS],
        own: all_routed,
        ..COMMON
    },
    Family { classes: &["SeedOssForCausalLM"], arch: "seed_oss", tensors: &[ENDS, SEED_NORMS, ATTENTION, FFN], ..COMMON },
    Family { classes: &["GemmaForCausalLM"], arch: "gemma", tensors: &[GEMMA_ENDS, GEMMA_NORMS, ATTENTION, FFN], ..COMMON },
    Family { classes: &["Gemma2ForCausalLM"], arch: "gemma2", tensors: &[GEMMA_ENDS, GEMMA2_NORMS, ATTENTION, FFN], own: gemma, ..COMMON },
    GEMMA3,
    // The text part of models with image input
    Family {
        classes: &["Gemma3ForConditionalGeneration"],
        section: Some(("text_config", GEMMA3_DEFAULTS)),
        beside: &["vision_tower.", "multi_modal_projector."],
        ..GEMMA3
    },
    // Phi 3, 3.5 and 4
    Family { classes: &["Phi3ForCausalLM"], arch: "phi3", tensors: &[ENDS, NORMS, PHI3], ..COMMON },
    // Phi 1.5 and 2
    Family { classes: &["PhiForCausalLM"], arch: "phi2", tensors: &[PHI2], own: phi2, ..COMMON },
];

/// Requires that every layer has experts. Checkpoints with other layers are refused.
fn all_routed(config: &Config, _: &mut Shape, _: &mut Keys) -> Fallible<()> {
    if config.count(&["decoder_sparse_step"])?.unwrap_or(1) != 1 {
        return config.fault("decoder_sparse_step", "1 (another value is not supported)");
    }
    match config.get(&["mlp_only_layers"]) {
        Some((name, list)) if list.as_array().is_none_or(|list| !list.is_empty()) => config.fault(&name, "an empty list"),
        _ => Ok(()),
    }
}

fn gemma(config: &Config, _: &mut Shape, keys: &mut Keys) -> Fallible<()> {
    let scalar = config.number(&["query_pre_attn_scalar"])?.filter(|&scalar| scalar > 0.0);
    keys.number("attention.scale", scalar.map(|scalar| scalar.powf(-0.5)));
    keys.number("attn_logit_softcapping", config.number(&["attn_logit_softcapping"])?);
    keys.number("final_logit_softcapping", config.number(&["final_logit_softcapping"])?);
    if config.flag(&["use_bidirectional_attention"])? == Some(true) {
        return config.fault("use_bidirectional_attention", "false: this is an embedding model, which is not supported");
    }
    Ok(())
}

fn phi2(config: &Config, _: &mut Shape, _: &mut Keys) -> Fallible<()> {
    only_flag(config, "qk_layernorm", false, false)
}
