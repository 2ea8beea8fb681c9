//! The shape of multi-head latent attention.

use super::keys::{Fallible, Keys, MAX_DIM};
use super::{Shape, positions, rope};
use crate::arch::Positions;
use crate::slots::TensorSlot;
use crate::spec::{Latent, RopeSpec};

/// Whether layers with attention have latent attention, in architectures that know both.
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
    // Newer files give the lengths of whole heads apart from those of the latent form.
    let key =
        keys.count_or_none("attention.key_length_mla", MAX_DIM)?.map_or_else(|| keys.required("attention.key_length", MAX_DIM), Ok)?;
    let value_dim =
        keys.count_or_none("attention.value_length_mla", MAX_DIM)?.map_or_else(|| keys.required("attention.value_length", MAX_DIM), Ok)?;
    if key < rope_dim || !rope_dim.is_multiple_of(2) || num_heads.checked_mul(key.max(value_dim)).is_none_or(|width| width > MAX_DIM) {
        return keys.wrong("rope.dimension_count", format!("an even number up to the {key} elements of a key's head"));
    }
    let rotation = if positions(keys, shape.num_layers)? == Positions::Rope {
        Some(rope::read(keys, key, false, shape.context_length)?)
    } else {
        None
    };
    // YaRN's scale of the scores: (1 + multiplier · ln factor)² (DeepSeek's mscale_all_dim).
    let scaling = keys.positive_or_none("rope.scaling.factor")?.unwrap_or(1.0);
    let mscale = rope::yarn_log_multiplier(keys)?.map_or(1.0, |multiplier| 1.0 + multiplier * scaling.ln());
    let first = (0..shape.num_layers).find(|&i| heads[i] > 0).unwrap_or(0);
    Ok(Latent {
        num_heads,
        q_rank: if keys.dims_of(&TensorSlot::AttnQ.name(first)).is_some() {
            0
        } else {
            keys.count_or_none("attention.q_lora_rank", MAX_DIM)?.unwrap_or(0)
        },
        kv_rank,
        nope_dim: key - rope_dim,
        value_dim,
        rope: rotation.map(|rotation| RopeSpec { dim: rope_dim, ..rotation }),
        rope_dim,
        scale: mscale * mscale / (key as f32).sqrt(),
        split: keys.dims_of(&TensorSlot::AttnKB.name(first)).is_some(),
        temperature: rope::temperature(keys)?,
    })
}
