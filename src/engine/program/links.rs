//! [`LayerLinks`]: the rotations and caches that the layers of a model use.

use model::{LayerSpec, ModelSpec};

/// The rotation and the cache of each layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerLinks {
    /// The index of the layer's rotation. None without one.
    pub ropes: Vec<Option<usize>>,
    /// The layer whose cache the layer's attention reads: its own, or that of an earlier one. It then computes no keys and values.
    pub caches: Vec<Option<usize>>,
}

impl LayerLinks {
    /// The caches that the model's file describes.
    pub fn of(spec: &ModelSpec, ropes: Vec<Option<usize>>) -> Self {
        let cache = |(i, layer): (usize, &LayerSpec)| layer.attention().and_then(|attention| attention.kv_of).or(layer.cached().map(|_| i));
        Self { ropes, caches: spec.layers.iter().enumerate().map(cache).collect() }
    }
}
