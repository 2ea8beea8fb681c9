//! Reads a [`VisionSpec`] from GGUF metadata. What depends on tensors is filled in when these are found.

use super::families::FAMILIES;
use super::family::{Family, Places};
use super::spec::{Pixels, VisionSpec, Windows};
use crate::arch::{Activation, Block};
use crate::error::ModelFault;
use crate::read::keys::{Fallible, Keys, MAX_DIM, metadata, shown};
use crate::spec::{Attention, AttnGate, FeedForward, HeadNorm, LayerSpec, Mixer, ModelSpec, Pooling, RunSight};
use crate::tensor_roles::TensorRole::{self, *};
use gguf::{Array, GgufFile, Value};

/// Far above any real encoder.
const MAX_LAYERS: usize = 1000;
/// The most pixels per side of a patch.
const MAX_PATCH: usize = 256;
/// The most patches per side that become one row.
const MAX_MERGE: usize = 16;
/// The most pixels per side of a picture.
const MAX_SIDE: usize = 1 << 16;

/// Reads everything that the metadata says. The projector's steps and their widths are read with its tensors.
pub fn read(file: &GgufFile) -> Fallible<VisionSpec> {
    let family = family(file)?;
    let hidden = Keys { file, arch: &family.towers[0] }.required("embedding_length", MAX_DIM)?;
    let tower = tower(file, family, hidden)?;
    let keys = Keys { file, arch: tower.arch };
    let mut patch_size = keys.required("patch_size", MAX_PATCH)?;
    let image_size = keys.count_or_none("image_size", MAX_SIDE)?.unwrap_or(0);
    let (suffix, default) = family.merge;
    let given = if suffix.is_empty() { None } else { keys.count_or_none(suffix, MAX_MERGE)? };
    let mut merge = given.unwrap_or(default);
    if family.is_encoder_free {
        if patch_size * merge > MAX_PATCH {
            return keys.wrong("patch_size", format!("at most {} pixels", MAX_PATCH / merge));
        }
        (patch_size, merge) = (patch_size * merge, 1);
    }
    if family.places == Places::Learned && image_size / patch_size == 0 {
        return keys.wrong("image_size", format!("an integer from {patch_size} to {MAX_SIDE}"));
    }
    let deep_layers = keys.flags("is_deepstack_layers", tower.num_layers())?.unwrap_or_default();
    Ok(VisionSpec {
        patch_size,
        image_size,
        merge,
        windows: windows(&keys, family, patch_size, merge)?,
        pixels: pixels(&keys, family)?,
        deep_layers: deep_layers.into_iter().enumerate().filter_map(|(layer, is_deep)| is_deep.then_some(layer)).collect(),
        output_dim: 0,
        num_queries: 0,
        num_places: 0,
        steps: Vec::new(),
        family,
        tower,
    })
}

/// The file's family. The name stands under one of two keys.
fn family(file: &GgufFile) -> Fallible<&'static Family> {
    if file.architecture() != Some("clip") {
        let found = file.architecture().map_or_else(|| "missing".to_owned(), |name| format!("{name:?}"));
        return metadata("general.architecture", found, "\"clip\", as in a multimodal projector (mmproj)");
    }
    let key = if file.get("clip.vision.projector_type").is_some() { "clip.vision.projector_type" } else { "clip.projector_type" };
    if file.get_bool("clip.has_vision_encoder") != Some(true) {
        return metadata("clip.has_vision_encoder", file.get("clip.has_vision_encoder").map_or("missing".into(), shown), "true");
    }
    static ROWS: &[Family] = FAMILIES;
    let name = file.get_str(key);
    ROWS.iter().find(|family| Some(family.name) == name).map_or_else(
        || {
            let known: Vec<_> = ROWS.iter().map(|family| family.name).collect();
            metadata(key, file.get(key).map_or("missing".into(), shown), format!("one of {}", known.join(", ")))
        },
        Ok,
    )
}

/// The tower's layers: a model without a vocabulary.
fn tower(file: &GgufFile, family: &'static Family, hidden: usize) -> Fallible<ModelSpec> {
    let [named, old] = match &family.larger {
        Some((larger, towers)) if *larger == hidden => towers,
        _ => &family.towers,
    };
    if family.is_encoder_free {
        return tower_of(&Keys { file, arch: named }, family, hidden, Vec::new());
    }
    // Old files hold the matrix that leads to the wider rows as `ffn_down`.
    let columns = |name: &str| file.tensor_index(name).and_then(|index| file.tensors()[index].dims.first().copied());
    let [down, up] = ["v.blk.0.ffn_down.weight", "v.blk.0.ffn_up.weight"].map(columns);
    let keys = Keys { file, arch: named };
    let ffn = keys.required("feed_forward_length", MAX_DIM)?;
    let is_old = ffn != hidden && (down == Some(hidden as u64) || down.is_none() && up.is_some_and(|up| up != hidden as u64));
    let arch = if is_old { old } else { named };
    let keys = Keys { file, arch };
    let num_layers = keys.required("block_count", MAX_LAYERS)?;
    if keys.value("feature_layer").is_some() {
        return keys.wrong("feature_layer", "no such key (rows of several layers are not supported)");
    }
    let attention = attention(&keys, hidden)?;
    let layer = LayerSpec { mixer: Mixer::Attention(attention), ffn: FeedForward::Dense(ffn), gate_cutoff: None };
    tower_of(&keys, family, hidden, vec![layer; num_layers])
}

/// A tower of these layers.
fn tower_of(keys: &Keys, family: &'static Family, hidden: usize, layers: Vec<LayerSpec>) -> Fallible<ModelSpec> {
    let Keys { file, arch } = *keys;
    let Some(norm_eps) = keys.positive("attention.layer_norm_epsilon")? else {
        return keys.wrong("attention.layer_norm_epsilon", "a positive number");
    };
    Ok(ModelSpec {
        arch,
        name: file.name().unwrap_or_default().to_owned(),
        vocab_size: 0,
        hidden_dim: hidden,
        layers,
        block: Block::Sequential,
        activation: activation(file, family)?,
        rope_pairing: arch.rope,
        rope_sections: None,
        xielu: Vec::new(),
        context_length: MAX_DIM,
        norm_eps,
        embedding_scale: 1.0,
        residual_scale: 1.0,
        logit_scale: 1.0,
        final_soft_cap: None,
        per_layer_input: 0,
        deepstack: 0,
        num_token_types: 0,
        pooling: Pooling::Mean,
        num_classes: 0,
        draft_head: None,
    })
}

fn attention(keys: &Keys, hidden: usize) -> Fallible<Attention> {
    let num_heads = keys.required("attention.head_count", MAX_DIM)?;
    let num_kv_heads = keys.count_or_none("attention.head_count_kv", MAX_DIM)?.unwrap_or(num_heads);
    if !num_heads.is_multiple_of(num_kv_heads) {
        return keys.wrong("attention.head_count_kv", format!("a divisor of the {num_heads} heads"));
    }
    let head_dim = match keys.count_or_none("attention.head_dim", MAX_DIM)? {
        Some(dim) => dim,
        None if hidden.is_multiple_of(num_heads) => hidden / num_heads,
        None => return keys.wrong("attention.head_count", format!("a divisor of the embedding length {hidden}")),
    };
    // the pairs of a rotation by rows and columns
    if !head_dim.is_multiple_of(4) || num_heads.checked_mul(head_dim).is_none_or(|width| width > MAX_DIM) {
        let expected = format!("heads of {head_dim} elements in multiples of 4, with at most {MAX_DIM} in all");
        return keys.wrong("attention.head_count", expected);
    }
    Ok(Attention {
        num_heads,
        num_kv_heads,
        head_dim,
        value_dim: head_dim,
        rope: None,
        window: None,
        scale: keys.arch.attn_scale.unwrap_or(1.0 / (head_dim as f32).sqrt()),
        soft_cap: None,
        clamp: None,
        alibi: None,
        temperature: None,
        q_norm: head_norm(keys, AttnQNorm, num_heads, head_dim)?,
        k_norm: head_norm(keys, AttnKNorm, num_kv_heads, head_dim)?,
        v_norm: if keys.arch.weightless_v_norm { HeadNorm::Weightless } else { HeadNorm::None },
        gate: AttnGate::None,
        kv_of: None,
        picture_rows: RunSight::Causal,
    })
}

/// The part of a row that a norm of queries or keys covers, from the shape of the first layer's tensor.
fn head_norm(keys: &Keys, role: TensorRole, heads: usize, dim: usize) -> Fallible<HeadNorm> {
    let is_known = keys.arch.required.contains(&role) || keys.arch.optional.contains(&role);
    let name = format!("{}{}", keys.arch.prefix, role.name(0));
    match keys.dims_of(&name).filter(|_| is_known) {
        None if keys.arch.required.contains(&role) => Ok(HeadNorm::Head),
        None => Ok(HeadNorm::None),
        Some(&[len]) if len == dim as u64 => Ok(HeadNorm::Head),
        Some(&[len]) if len == (dim * heads) as u64 => Ok(HeadNorm::Row),
        Some(found) => Err(ModelFault::TensorShape { tensor: name, found: found.to_vec(), expected: vec![dim as u64] }),
    }
}

fn activation(file: &GgufFile, family: &Family) -> Fallible<Activation> {
    let flag = |key: &str| match file.get(key) {
        None => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(other) => metadata(key, shown(other), "a boolean"),
    };
    Ok(match (flag("clip.use_gelu")?, flag("clip.use_silu")?) {
        (true, true) => return metadata("clip.use_silu", "true", "false, as clip.use_gelu is true"),
        (true, false) => family.gelu,
        (false, true) => Activation::Silu,
        (false, false) => Activation::GeluQuick,
    })
}

fn windows(keys: &Keys, family: &Family, patch_size: usize, merge: usize) -> Fallible<Option<Windows>> {
    if !family.windows {
        return Ok(None);
    }
    let Some(every) = keys.count_or_none("n_wa_pattern", MAX_LAYERS)? else { return Ok(None) };
    let pixels = keys.count_or_none("window_size", MAX_SIDE)?.unwrap_or(112);
    match pixels / patch_size / merge * merge {
        0 => keys.wrong("window_size", format!("at least {} pixels", patch_size * merge)),
        side => Ok(Some(Windows { every, side })),
    }
}

fn pixels(keys: &Keys, family: &Family) -> Fallible<Pixels> {
    if family.centred {
        return Ok(Pixels { mean: [0.5; 3], deviation: [0.5; 3] });
    }
    let of = |suffix: &str, is_right: fn(f32) -> bool| match keys.value(suffix) {
        Some(Value::Array(Array::F32(all))) if all.iter().all(|&x| x.is_finite() && is_right(x)) => {
            <[f32; 3]>::try_from(&all[..]).or_else(|_| keys.wrong(suffix, "three numbers"))
        }
        _ => keys.wrong(suffix, "three finite numbers, for a deviation above 0"),
    };
    Ok(Pixels { mean: of("image_mean", |_| true)?, deviation: of("image_std", |x| x > 0.0)? })
}
