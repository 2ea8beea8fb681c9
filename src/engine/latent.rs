//! Splits latent attention's combined tensor of keys and values.

use model::spec::Latent;
use model::{Stack, StackLayout, Weight};

/// The rows of the keys and the rows of the values of a tensor that holds both, head by head.
pub fn halves(spec: &Latent, both: &Weight) -> [Weight; 2] {
    let row_bytes = both.quant.row_bytes(both.cols);
    let place = StackLayout::Apart((spec.nope_dim + spec.value_dim) * row_bytes);
    let stack = Some(Stack { count: spec.num_heads, place });
    let part = |rows: usize, first: usize| Weight { rows: spec.num_heads * rows, offset: both.offset + first * row_bytes, stack, ..*both };
    [part(spec.nope_dim, 0), part(spec.value_dim, spec.nope_dim)]
}
