//! Building blocks that several rows of `FAMILIES` share.

pub use crate::config::Config;
pub use crate::error::Fallible;
pub use crate::family::{Family, Keys, Rule, Shape, TensorTransform};

pub const fn copy(from: &'static str, to: &'static str) -> Rule {
    Rule { from, to, how: TensorTransform::Copy }
}

pub const fn rule(from: &'static str, to: &'static str, how: TensorTransform) -> Rule {
    Rule { from, to, how }
}

/// Reads nothing, for families without settings of their own.
pub fn plain(_: &Config, _: &mut Shape, _: &mut Keys) -> Fallible<()> {
    Ok(())
}

pub const COMMON: Family =
    Family { classes: &[], arch: "", section: None, tensors: &[], beside: &[], norm_eps: None, four_times: false, own: plain };

/// Embeddings, output and the norm before it.
pub const ENDS: &[Rule] = &[copy("embed_tokens", "token_embd"), copy("norm", "output_norm"), copy("lm_head", "output")];

/// The norms before attention and before the feed-forward layer.
pub const NORMS: &[Rule] =
    &[copy("layers.{}.input_layernorm", "blk.{}.attn_norm"), copy("layers.{}.post_attention_layernorm", "blk.{}.ffn_norm")];

/// Attention that rotates halves in the checkpoint and in the output.
pub const ATTENTION: &[Rule] = &[
    copy("layers.{}.self_attn.q_proj", "blk.{}.attn_q"),
    copy("layers.{}.self_attn.k_proj", "blk.{}.attn_k"),
    copy("layers.{}.self_attn.v_proj", "blk.{}.attn_v"),
    copy("layers.{}.self_attn.o_proj", "blk.{}.attn_output"),
];

/// Attention that rotates halves in the checkpoint and adjacent pairs in the output.
pub const PAIRED: &[Rule] = &[
    rule("layers.{}.self_attn.q_proj", "blk.{}.attn_q", TensorTransform::PairedQueries),
    rule("layers.{}.self_attn.k_proj", "blk.{}.attn_k", TensorTransform::PairedKeys),
    copy("layers.{}.self_attn.v_proj", "blk.{}.attn_v"),
    copy("layers.{}.self_attn.o_proj", "blk.{}.attn_output"),
];

pub const QK_NORMS: &[Rule] =
    &[copy("layers.{}.self_attn.q_norm", "blk.{}.attn_q_norm"), copy("layers.{}.self_attn.k_norm", "blk.{}.attn_k_norm")];

pub const FFN: &[Rule] = &[
    copy("layers.{}.mlp.gate_proj", "blk.{}.ffn_gate"),
    copy("layers.{}.mlp.up_proj", "blk.{}.ffn_up"),
    copy("layers.{}.mlp.down_proj", "blk.{}.ffn_down"),
];

/// A router and its experts.
pub const EXPERTS: &[Rule] = &[
    copy("layers.{}.mlp.gate", "blk.{}.ffn_gate_inp"),
    rule("layers.{}.mlp.experts.{n}.gate_proj", "blk.{}.ffn_gate_exps", TensorTransform::Stacked),
    rule("layers.{}.mlp.experts.{n}.up_proj", "blk.{}.ffn_up_exps", TensorTransform::Stacked),
    rule("layers.{}.mlp.experts.{n}.down_proj", "blk.{}.ffn_down_exps", TensorTransform::Stacked),
];

/// Refuses values of a flag that no engine supports.
pub fn only_flag(config: &Config, name: &str, wanted: bool, absent: bool) -> Fallible<()> {
    match config.flag(&[name])?.unwrap_or(absent) {
        flag if flag == wanted => Ok(()),
        _ => config.fault(name, format!("{wanted} (another value is not supported)")),
    }
}
