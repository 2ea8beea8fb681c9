//! Reads the shape of multi-head latent attention.

use super::keys::{Fallible, Keys, MAX_DIM};
use super::rope;
use super::shape::{Shape, positions};
use crate::arch::Positions;
use crate::spec::{Latent, RopeScaling, RopeSpec};
use crate::tensor_roles::TensorRole;

/// Whether layers with attention have latent attention, in architectures that support both.
pub fn is_latent(keys: &Keys) -> bool {
    keys.arch.may_be_latent && keys.value("attention.kv_lora_rank").is_some()
}

pub fn read(keys: &Keys, shape: &Shape) -> Fallible<Latent> {
    let heads = keys.per_layer("attention.head_count", shape.num_layers)?.unwrap_or_default();
    let num_heads = heads.iter().copied().max().unwrap_or(0);
    if num_heads == 0 || heads.iter().any(|&heads| heads != 0 && heads != num_heads) {
        return keys.wrong("attention.head_count", "the same positive number in all layers with attention");
    }
    let rope_dim = keys.required("rope.dimension_count", MAX_DIM)?;
    let kv_rank = keys.required("attention.kv_lora_rank", MAX_DIM)?;
    if !rope_dim.is_multiple_of(2) {
        return keys.wrong("rope.dimension_count", "an even number of elements per head");
    }
    // Newer files give the lengths of whole heads separately from those of the latent form.
    let suffix = |newer, older| if keys.value(newer).is_some() { newer } else { older };
    let key_suffix = suffix("attention.key_length_mla", "attention.key_length");
    let key = keys.required(key_suffix, MAX_DIM)?;
    if key < rope_dim {
        return keys.wrong(key_suffix, format!("at least the {rope_dim} rotated elements of a key's head"));
    }
    let value_dim = keys.required(suffix("attention.value_length_mla", "attention.value_length"), MAX_DIM)?;
    if num_heads.checked_mul(key.max(value_dim)).is_none_or(|width| width > MAX_DIM) {
        return keys.wrong("attention.head_count", format!("heads of {} with at most {MAX_DIM} elements in all", key.max(value_dim)));
    }
    let rotation = if positions(keys, shape.num_layers)? == Positions::Rope {
        Some(rope::read(keys, key, false, shape.context_length)?)
    } else {
        None
    };
    let first = (0..shape.num_layers).find(|&i| heads[i] > 0).unwrap_or(0);
    Ok(Latent {
        num_heads,
        q_rank: if keys.dims_of(&TensorRole::AttnQ.name(first)).is_some() {
            0
        } else {
            keys.count_or_none("attention.q_lora_rank", MAX_DIM)?.unwrap_or(0)
        },
        kv_rank,
        nope_dim: key - rope_dim,
        value_dim,
        rope: rotation.map(|rotation| RopeSpec { dim: rope_dim, ..rotation }),
        rope_dim,
        scale: score_factor(keys, rotation)? / (key as f32).sqrt(),
        split: keys.dims_of(&TensorRole::AttnKB.name(first)).is_some(),
        temperature: rope::temperature(keys)?,
    })
}

/// YaRN's factor of the scores: the square of (its factor of sine and cosine · (1 + 0.1 · mscale_all_dim · ln factor)).
fn score_factor(keys: &Keys, rotation: Option<RopeSpec>) -> Fallible<f32> {
    let Some(RopeScaling::Yarn { factor, attn_factor, .. }) = rotation.map(|rotation| rotation.scaling) else { return Ok(1.0) };
    let tenth = rope::yarn_log_multiplier(keys)?.unwrap_or(0.0);
    let mscale = attn_factor * (1.0 + tenth * factor.ln());
    Ok(mscale * mscale)
}
