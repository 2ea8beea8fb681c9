//! Computes decays that follow from the architecture alone.

/// e^-slope of each head of lightning attention. The slopes are ALiBi's for a power of two, and fall from layer to layer to almost 0.
pub fn lightning_factors(heads: usize, layer: usize, num_layers: usize) -> Vec<f32> {
    let base = (-(3.0 - (heads as f32).log2()).exp2()).exp2();
    let of_layer = 1.0 - layer as f32 / (num_layers.max(2) - 1) as f32 + 1e-5;
    (0..heads).map(|head| (-base.powi(head as i32 + 1) * of_layer).exp()).collect()
}
