//! Turns `config.json` into the metadata keys of the architecture.

use gguf::{Array, Value};
use model::arch::{Activation, Layers, Positions};
use model::{Arch, NormKind};

use crate::config::Config;
use crate::error::Fallible;
use crate::family::{Family, Keys, Shape};
use crate::rope::{self, Factors};

const EPS: &[&str] = &["rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"];
const CONTEXT: &[&str] = &["max_position_embeddings", "n_positions", "max_sequence_length", "n_ctx"];
const FFN: &[&str] = &["intermediate_size", "ffn_hidden_size", "n_inner"];

/// The architecture's keys, the model's sizes, and the factors of its rotation.
pub struct ArchitectureKeys {
    pub keys: Keys,
    pub shape: Shape,
    pub factors: Factors,
}

pub fn describe(config: &Config, family: &Family) -> Fallible<ArchitectureKeys> {
    let Some(arch) = family.arch() else { return config.fault("architectures", "an architecture that this program runs") };
    let mut keys = Keys { arch: family.arch, pairs: Vec::new() };
    let mut shape = read_shape(config, family)?;
    check_activation(config, arch)?;
    (family.own)(config, &mut shape, &mut keys)?;
    if !shape.heads.is_multiple_of(shape.kv_heads) {
        return config.fault("num_key_value_heads", format!("a divisor of the {} heads", shape.heads));
    }
    let factors = if arch.positions == Positions::Rope { rope::read(config, &mut shape, &mut keys)? } else { Factors::default() };
    keys.arch("context_length", shape.context);
    keys.arch("embedding_length", shape.hidden);
    keys.arch("block_count", shape.layers);
    keys.count("feed_forward_length", shape.ffn);
    keys.arch("attention.head_count", shape.heads);
    keys.arch("attention.head_count_kv", shape.kv_heads);
    keys.arch("attention.key_length", shape.head_dim);
    keys.arch("attention.value_length", shape.head_dim);
    let eps = match arch.norm {
        NormKind::Rms => "attention.layer_norm_rms_epsilon",
        NormKind::Layer => "attention.layer_norm_epsilon",
    };
    let Some(value) = config.number(EPS)?.or(family.norm_eps) else { return config.fault(EPS[0], "a positive number") };
    keys.arch(eps, value as f32);
    if arch.experts.known {
        experts(config, &mut keys)?;
    }
    windows(config, arch, &shape, &mut keys)?;
    Ok(ArchitectureKeys { keys, shape, factors })
}

fn read_shape(config: &Config, family: &Family) -> Fallible<Shape> {
    let hidden = config.need_count(&["hidden_size", "n_embd"])?;
    let heads = config.need_count(&["num_attention_heads", "n_head"])?;
    let head_dim = match config.count(&["head_dim"])? {
        Some(dim) => dim,
        None if hidden.is_multiple_of(heads) => hidden / heads,
        None => return config.fault("num_attention_heads", format!("a divisor of the hidden size {hidden}")),
    };
    let ffn = config.count(FFN)?.or(family.four_times.then(|| hidden.saturating_mul(4)));
    if ffn.is_none() {
        return config.fault(FFN[0], "an integer above 0");
    }
    let rotated = (f64::from(head_dim) * rope::share(config)?) as u32;
    let context = match config.count(CONTEXT)? {
        Some(context) => context,
        // Falcon's first files do not set a context length.
        None if family.arch == "falcon" => 2048,
        None => return config.fault(CONTEXT[0], "an integer above 0"),
    };
    Ok(Shape {
        layers: config.need_count(&["num_hidden_layers", "n_layer"])?,
        hidden,
        heads,
        kv_heads: config.count(&["num_key_value_heads", "num_kv_heads"])?.unwrap_or(heads),
        head_dim,
        rotated,
        context,
        ffn,
    })
}

/// Refuses an activation that differs from the architecture's.
fn check_activation(config: &Config, arch: &Arch) -> Fallible<()> {
    let names: &[&str] = match arch.activation {
        Activation::Silu => &["silu", "swish"],
        // llama.cpp and the engines approximate GELU by tanh in all of these families.
        Activation::Gelu => &["gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu"],
        Activation::ReluSquared => &["relu2"],
        _ => return Ok(()),
    };
    let settings = ["hidden_activation", "hidden_act", "activation_function", "activation"];
    match config.text(&settings)? {
        Some(name) if !names.contains(&name) => {
            let setting = config.get(&settings).map_or_else(|| settings[0].to_owned(), |(setting, _)| setting);
            config.fault(&setting, names.join(" or "))
        }
        _ => Ok(()),
    }
}

fn experts(config: &Config, keys: &mut Keys) -> Fallible<()> {
    let Some(count) = config.count(&["num_local_experts", "num_experts"])? else { return Ok(()) };
    keys.arch("expert_count", count);
    keys.arch("expert_used_count", config.need_count(&["num_experts_per_tok"])?);
    keys.count("expert_feed_forward_length", config.count(&["moe_intermediate_size"])?);
    keys.count("expert_shared_feed_forward_length", config.count(&["shared_expert_intermediate_size"])?);
    if let Some(flag) = config.flag(&["norm_topk_prob"])? {
        keys.arch("expert_weights_norm", flag);
    }
    Ok(())
}

/// Writes the sliding window. Also writes which layers have one if the architecture's rule differs.
fn windows(config: &Config, arch: &Arch, shape: &Shape, keys: &mut Keys) -> Fallible<()> {
    let used = config.flag(&["use_sliding_window"])? != Some(false);
    let Some(window) = config.count(&["sliding_window"])?.filter(|_| used) else { return Ok(()) };
    let layers = shape.layers as usize;
    let usual: Vec<bool> = (0..layers).map(|layer| arch.windowed.contains(layer)).collect();
    let windowed = windowed_layers(config, layers)?.unwrap_or_else(|| usual.clone());
    if !windowed.contains(&true) {
        return Ok(());
    }
    keys.arch("attention.sliding_window", window);
    if windowed == usual {
        return Ok(());
    }
    let every = |n: &usize| (0..layers).all(|layer| windowed[layer] == Layers::NotEvery(*n).contains(layer));
    match (2..=layers).find(every) {
        Some(n) if matches!(arch.windowed, Layers::NotEvery(_)) => keys.arch("attention.sliding_window_pattern", n as u32),
        _ => keys.arch("attention.sliding_window_pattern", Value::Array(Array::Bool(windowed))),
    }
    Ok(())
}

/// Whether each layer has a window. None if the configuration does not say.
fn windowed_layers(config: &Config, layers: usize) -> Fallible<Option<Vec<bool>>> {
    if let Some((name, list)) = config.get(&["layer_types"]) {
        let kind = |kind: &serde_json::Value| match kind.as_str() {
            Some("sliding_attention") => Some(true),
            Some("full_attention") => Some(false),
            _ => None,
        };
        let kinds: Option<Vec<bool>> = list.as_array().and_then(|list| list.iter().map(kind).collect());
        return match kinds {
            Some(kinds) if kinds.len() == layers => Ok(Some(kinds)),
            _ => config.fault(&name, format!("sliding_attention or full_attention for each of the {layers} layers")),
        };
    }
    if let Some(every) = config.count(&["sliding_window_pattern"])? {
        return Ok(Some((0..layers).map(|layer| Layers::NotEvery(every as usize).contains(layer)).collect()));
    }
    if config.flag(&["use_sliding_window"])? == Some(true)
        && let Some(first) = config.count_or_zero(&["max_window_layers"])?
    {
        return Ok(Some((0..layers).map(|layer| layer >= first as usize).collect()));
    }
    Ok(None)
}
