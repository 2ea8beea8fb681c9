//! Lays out the KV cache of a program.

use super::simd::attend::{CacheLayer, CacheLayout, StoredBias};
use crate::program::{Heads, Op, Program, Scope};
use crate::rope::ropes;
use crate::{CacheType, EngineError};
use model::{LayerSpec, ModelSpec, Weights};

/// The keys and values that each layer of a program keeps in the cache.
pub fn cache_layout(program: &Program, spec: &ModelSpec, kept: CacheType) -> CacheLayout {
    let mut layers = vec![CacheLayer::default(); spec.num_layers()];
    for (i, cache) in program.caches.iter().enumerate() {
        let bias = if kept == CacheType::Q8 { stored_bias(program, spec, i) } else { StoredBias::default() };
        layers[cache.layer] = CacheLayer::new(cache.heads, cache.key_dim, cache.value_dim).keep(kept, bias);
    }
    CacheLayout::new(layers, spec.cache_groups().iter().map(|group| &group.layers[..]))
}

/// The layout of a model whose keys are stored whole.
pub fn plain_layout(spec: &ModelSpec, kept: CacheType) -> CacheLayout {
    let of = |layer: &LayerSpec| {
        let cached = layer.cached().map(|cached| CacheLayer::new(cached.heads, cached.key, cached.value));
        cached.map_or(CacheLayer::default(), |layer| layer.keep(kept, StoredBias::default()))
    };
    CacheLayout::new(spec.layers.iter().map(of).collect(), spec.cache_groups().iter().map(|group| &group.layers[..]))
}

/// The layout of a whole model.
///
/// # Errors
/// The errors of [`Program::new`].
pub fn whole_layout(weights: &Weights, kept: CacheType) -> Result<CacheLayout, EngineError> {
    let spec = &weights.spec;
    if kept != CacheType::Q8 {
        return Ok(plain_layout(spec, kept));
    }
    // the length of a context changes the angles of rotations, not their number
    let (_, links) = ropes(weights, spec.context_length);
    Ok(cache_layout(&Program::new(weights, &links, &Scope::whole(spec))?, spec, kept))
}

/// The keys that a layer writes to a cache of the program.
pub fn keys_of(program: &Program, cache: usize) -> Option<&Heads> {
    program.ops.iter().find_map(|step| match &step.op {
        Op::Attention(op) if op.cache == cache => op.keys.as_ref(),
        _ => None,
    })
}

/// Rotated elements per key of a layer.
fn rotated(layer: &LayerSpec) -> usize {
    layer.attention().and_then(|attention| attention.rope).map_or(0, |rope| rope.dim)
}

/// The bias that keys lack in a cache of 8 bits. A bias that something other than the rotation follows stays in them.
pub fn stored_bias(program: &Program, spec: &ModelSpec, cache: usize) -> StoredBias {
    let Some(keys) = keys_of(program, cache) else { return StoredBias::default() };
    let rotated = rotated(&spec.layers[program.caches[cache].layer]);
    if keys.bias.is_none() || keys.clamp.is_some() || keys.norm.is_some() || keys.temperature.is_some() {
        return StoredBias::default();
    }
    match keys.rope {
        None => StoredBias { rope: 0, pairs: 0, has_rest: true },
        Some((rope, _)) => StoredBias { rope, pairs: rotated / 2, has_rest: rotated < keys.dim },
    }
}
