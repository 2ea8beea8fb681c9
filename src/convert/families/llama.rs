//! Rows of Llama, and of families that differ from Llama in a few places.

use super::common::*;

const MIXTRAL: &[Rule] = &[
    copy("layers.{}.block_sparse_moe.gate", "blk.{}.ffn_gate_inp"),
    rule("layers.{}.block_sparse_moe.experts.{n}.w1", "blk.{}.ffn_gate_exps", TensorTransform::Stacked),
    rule("layers.{}.block_sparse_moe.experts.{n}.w3", "blk.{}.ffn_up_exps", TensorTransform::Stacked),
    rule("layers.{}.block_sparse_moe.experts.{n}.w2", "blk.{}.ffn_down_exps", TensorTransform::Stacked),
];

const GRANITE_EXPERTS: &[Rule] = &[
    copy("layers.{}.block_sparse_moe.router.layer", "blk.{}.ffn_gate_inp"),
    rule("layers.{}.block_sparse_moe.input_linear", "blk.{}.ffn_gate_exps", TensorTransform::FirstHalves),
    rule("layers.{}.block_sparse_moe.input_linear", "blk.{}.ffn_up_exps", TensorTransform::SecondHalves),
    copy("layers.{}.block_sparse_moe.output_linear", "blk.{}.ffn_down_exps"),
    rule("layers.{}.shared_mlp.input_linear", "blk.{}.ffn_gate_shexp", TensorTransform::FirstHalves),
    rule("layers.{}.shared_mlp.input_linear", "blk.{}.ffn_up_shexp", TensorTransform::SecondHalves),
    copy("layers.{}.shared_mlp.output_linear", "blk.{}.ffn_down_shexp"),
];

const OLMO_NORMS: &[Rule] = &[
    copy("layers.{}.post_attention_layernorm", "blk.{}.post_attention_norm"),
    copy("layers.{}.post_feedforward_layernorm", "blk.{}.post_ffw_norm"),
];

const STABLE_NORMS: &[Rule] = &[
    rule("layers.{}.self_attn.q_layernorm.norms.{n}", "blk.{}.attn_q_norm", TensorTransform::Stacked),
    rule("layers.{}.self_attn.k_layernorm.norms.{n}", "blk.{}.attn_k_norm", TensorTransform::Stacked),
];

pub const ROWS: &[Family] = &[
    // Llama 1 to 3, Yi, SmolLM, TinyLlama, Falcon 3; Mistral up to Nemo
    Family {
        classes: &["LlamaForCausalLM", "LLaMAForCausalLM", "MistralForCausalLM"],
        arch: "llama",
        tensors: &[ENDS, NORMS, PAIRED, FFN],
        ..COMMON
    },
    Family { classes: &["MixtralForCausalLM"], arch: "llama", tensors: &[ENDS, NORMS, PAIRED, MIXTRAL], ..COMMON },
    Family { classes: &["SmolLM3ForCausalLM"], arch: "smollm3", tensors: &[ENDS, NORMS, PAIRED, FFN], own: smollm3, ..COMMON },
    Family { classes: &["ArceeForCausalLM"], arch: "arcee", tensors: &[ENDS, NORMS, PAIRED, FFN], ..COMMON },
    Family { classes: &["GraniteForCausalLM"], arch: "granite", tensors: &[ENDS, NORMS, PAIRED, FFN], own: granite, ..COMMON },
    Family {
        classes: &["GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"],
        arch: "granitemoe",
        tensors: &[ENDS, NORMS, PAIRED, GRANITE_EXPERTS],
        own: granite,
        ..COMMON
    },
    Family { classes: &["OlmoForCausalLM"], arch: "olmo", tensors: &[ENDS, PAIRED, FFN], norm_eps: Some(1e-5), own: clamped, ..COMMON },
    Family {
        classes: &["Olmo2ForCausalLM", "Olmo3ForCausalLM"],
        arch: "olmo2",
        tensors: &[ENDS, ATTENTION, QK_NORMS, OLMO_NORMS, FFN],
        ..COMMON
    },
    Family { classes: &["OlmoeForCausalLM"], arch: "olmoe", tensors: &[ENDS, NORMS, ATTENTION, QK_NORMS, EXPERTS], own: clamped, ..COMMON },
    // Cohere's models already rotate adjacent pairs.
    Family { classes: &["CohereForCausalLM"], arch: "command-r", tensors: &[ENDS, NORMS, ATTENTION, QK_NORMS, FFN], own: cohere, ..COMMON },
    Family { classes: &["Cohere2ForCausalLM"], arch: "cohere2", tensors: &[ENDS, NORMS, ATTENTION, FFN], own: cohere, ..COMMON },
    Family {
        classes: &["StableLmForCausalLM"],
        arch: "stablelm",
        tensors: &[ENDS, NORMS, ATTENTION, STABLE_NORMS, FFN],
        own: stablelm,
        ..COMMON
    },
];

/// Checks that every fourth layer is not rotated, the only choice that the engines support.
fn smollm3(config: &Config, shape: &mut Shape, _: &mut Keys) -> Fallible<()> {
    let expected: Vec<u32> = (0..shape.layers).map(|layer| u32::from(!(layer + 1).is_multiple_of(4))).collect();
    match config.get(&["no_rope_layers"]) {
        Some((_, list)) if *list != serde_json::json!(expected) => config.fault("no_rope_layers", "0 for every fourth layer, and else 1"),
        None if config.count(&["no_rope_layer_interval"])?.unwrap_or(4) != 4 => config.fault("no_rope_layer_interval", 4),
        _ => Ok(()),
    }
}

fn granite(config: &Config, _: &mut Shape, keys: &mut Keys) -> Fallible<()> {
    keys.number("embedding_scale", config.number(&["embedding_multiplier"])?);
    keys.number("residual_scale", config.number(&["residual_multiplier"])?);
    keys.number("attention.scale", config.number(&["attention_multiplier"])?);
    keys.number("logit_scale", config.number(&["logits_scaling"])?);
    keys.count("expert_shared_feed_forward_length", config.count(&["shared_intermediate_size"])?);
    Ok(())
}

fn clamped(config: &Config, _: &mut Shape, keys: &mut Keys) -> Fallible<()> {
    keys.number("attention.clamp_kqv", config.number(&["clip_qkv"])?);
    Ok(())
}

fn cohere(config: &Config, _: &mut Shape, keys: &mut Keys) -> Fallible<()> {
    keys.number("logit_scale", config.number(&["logit_scale"])?);
    Ok(())
}

fn stablelm(config: &Config, _: &mut Shape, keys: &mut Keys) -> Fallible<()> {
    keys.arch("use_parallel_residual", config.flag(&["use_parallel_residual"])?.unwrap_or(false));
    Ok(())
}
