//! Rows of GPT-2 and its descendants, which use LayerNorm with biases and mostly no gate.

use super::common::*;

const GPT2: &[Rule] = &[
    copy("wte", "token_embd"),
    copy("wpe", "position_embd"),
    copy("ln_f", "output_norm"),
    copy("lm_head", "output"),
    copy("h.{}.ln_1", "blk.{}.attn_norm"),
    copy("h.{}.ln_2", "blk.{}.ffn_norm"),
];

const CONV1D: &[Rule] = &[
    rule("h.{}.attn.c_attn", "blk.{}.attn_qkv", TensorTransform::Transposed),
    rule("h.{}.attn.c_proj", "blk.{}.attn_output", TensorTransform::Transposed),
    rule("h.{}.mlp.c_fc", "blk.{}.ffn_up", TensorTransform::Transposed),
    rule("h.{}.mlp.c_proj", "blk.{}.ffn_down", TensorTransform::Transposed),
];

const LINEAR: &[Rule] = &[
    copy("h.{}.attn.c_attn", "blk.{}.attn_qkv"),
    copy("h.{}.attn.c_proj", "blk.{}.attn_output"),
    copy("h.{}.mlp.c_fc", "blk.{}.ffn_up"),
    copy("h.{}.mlp.c_proj", "blk.{}.ffn_down"),
];

const STARCODER2: &[Rule] = &[copy("layers.{}.mlp.c_fc", "blk.{}.ffn_up"), copy("layers.{}.mlp.c_proj", "blk.{}.ffn_down")];

const NEOX: &[Rule] = &[
    copy("embed_in", "token_embd"),
    copy("final_layer_norm", "output_norm"),
    copy("embed_out", "output"),
    copy("layers.{}.input_layernorm", "blk.{}.attn_norm"),
    copy("layers.{}.post_attention_layernorm", "blk.{}.ffn_norm"),
    rule("layers.{}.attention.query_key_value", "blk.{}.attn_qkv", TensorTransform::GroupedQkv),
    copy("layers.{}.attention.dense", "blk.{}.attn_output"),
    copy("layers.{}.mlp.dense_h_to_4h", "blk.{}.ffn_up"),
    copy("layers.{}.mlp.dense_4h_to_h", "blk.{}.ffn_down"),
];

const FALCON: &[Rule] = &[
    copy("word_embeddings", "token_embd"),
    copy("ln_f", "output_norm"),
    copy("lm_head", "output"),
    copy("h.{}.input_layernorm", "blk.{}.attn_norm"),
    copy("h.{}.ln_mlp", "blk.{}.attn_norm"),
    copy("h.{}.ln_attn", "blk.{}.attn_norm_2"),
    rule("h.{}.self_attention.query_key_value", "blk.{}.attn_qkv", TensorTransform::GroupedQkv),
    copy("h.{}.self_attention.dense", "blk.{}.attn_output"),
    copy("h.{}.mlp.dense_h_to_4h", "blk.{}.ffn_up"),
    copy("h.{}.mlp.dense_4h_to_h", "blk.{}.ffn_down"),
];

const NEMOTRON: &[Rule] = &[
    copy("embed_tokens", "token_embd"),
    rule("norm", "output_norm", TensorTransform::PlusOne),
    copy("lm_head", "output"),
    rule("layers.{}.input_layernorm", "blk.{}.attn_norm", TensorTransform::PlusOne),
    rule("layers.{}.post_attention_layernorm", "blk.{}.ffn_norm", TensorTransform::PlusOne),
    copy("layers.{}.mlp.up_proj", "blk.{}.ffn_up"),
    copy("layers.{}.mlp.down_proj", "blk.{}.ffn_down"),
];

pub const ROWS: &[Family] = &[
    Family { classes: &["GPT2LMHeadModel", "GPT2Model"], arch: "gpt2", tensors: &[GPT2, CONV1D], four_times: true, own: gpt2, ..COMMON },
    Family { classes: &["GPTBigCodeForCausalLM"], arch: "starcoder", tensors: &[GPT2, LINEAR], four_times: true, own: big_code, ..COMMON },
    Family { classes: &["Starcoder2ForCausalLM"], arch: "starcoder2", tensors: &[ENDS, NORMS, ATTENTION, STARCODER2], ..COMMON },
    Family { classes: &["GPTNeoXForCausalLM"], arch: "gptneox", tensors: &[NEOX], own: neox, ..COMMON },
    Family {
        classes: &["FalconForCausalLM", "RWForCausalLM"],
        arch: "falcon",
        tensors: &[FALCON],
        four_times: true,
        own: falcon,
        ..COMMON
    },
    Family { classes: &["NemotronForCausalLM"], arch: "nemotron", tensors: &[NEMOTRON, ATTENTION], ..COMMON },
];

fn gpt2(config: &Config, _: &mut Shape, _: &mut Keys) -> Fallible<()> {
    only_flag(config, "scale_attn_weights", true, true)?;
    only_flag(config, "scale_attn_by_inverse_layer_idx", false, false)
}

fn big_code(config: &Config, shape: &mut Shape, _: &mut Keys) -> Fallible<()> {
    only_flag(config, "scale_attn_weights", true, true)?;
    only_flag(config, "multi_query", true, true)?;
    shape.kv_heads = 1;
    Ok(())
}

fn neox(config: &Config, shape: &mut Shape, keys: &mut Keys) -> Fallible<()> {
    shape.kv_heads = shape.heads;
    keys.arch("use_parallel_residual", config.flag(&["use_parallel_residual"])?.unwrap_or(true));
    Ok(())
}

fn falcon(config: &Config, shape: &mut Shape, _: &mut Keys) -> Fallible<()> {
    only_flag(config, "alibi", false, false)?;
    if config.flag(&["new_decoder_architecture"])?.unwrap_or(false) {
        return Ok(());
    }
    only_flag(config, "parallel_attn", true, true)?;
    only_flag(config, "multi_query", true, true)?;
    shape.kv_heads = 1;
    Ok(())
}
