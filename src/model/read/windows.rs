//! Reads which layers have a window, and which are rotated.

use super::keys::{Fallible, Keys, MAX_DIM};
use super::shape::{Shape, positions};
use crate::arch::{Layers, Positions, Unrotated};

/// The window of each layer. None if the layer sees its whole context.
pub fn windows(keys: &Keys, shape: &Shape) -> Fallible<Vec<Option<usize>>> {
    let (arch, n) = (keys.arch, shape.num_layers);
    let suffix = "attention.sliding_window";
    let given = keys.count_or_none(suffix, MAX_DIM)?;
    let window = if keys.value(suffix).is_none() { arch.default_window } else { given };
    let alternates = matches!(arch.windowed, Layers::NotEvery(_) | Layers::NotFirstOf(_));
    let Some(window) = window else {
        // Gemma's layers also differ in their rotation, so a file must say which window it means.
        if alternates && arch.local_rope_theta.is_some() && keys.value(suffix).is_none() {
            return keys.wrong(suffix, format!("an integer from 1 to {MAX_DIM}"));
        }
        return Ok(vec![None; n]);
    };
    let windowed = match keys.flags("attention.sliding_window_pattern", n)? {
        _ if arch.windowed == Layers::None || arch.windowed_with.is_some_and(|layers| layers != n) => vec![false; n],
        Some(flags) => flags,
        None => {
            let layers = match (keys.count_or_none("attention.sliding_window_pattern", MAX_DIM)?, arch.windowed) {
                (Some(every), Layers::NotFirstOf(_)) => Layers::NotFirstOf(every),
                (Some(every), _) => Layers::NotEvery(every),
                (None, layers) => layers,
            };
            (0..n).map(|i| layers.contains(i)).collect()
        }
    };
    // A window at least as long as the context changes nothing, unless layers with a window differ in other ways.
    let matters = window < shape.context_length || windowed.contains(&false);
    Ok(windowed.into_iter().map(|windowed| (windowed && matters).then_some(window)).collect())
}

/// Whether each layer's queries and keys are rotated.
pub fn rotated(keys: &Keys, windows: &[Option<usize>]) -> Fallible<Vec<bool>> {
    let rotates = positions(keys, windows.len())? == Positions::Rope;
    let dense = keys.count_or_none("leading_dense_block_count", MAX_DIM)?.unwrap_or(0);
    let has_windows = windows.iter().any(Option::is_some);
    let is_rotated = |(i, window): (usize, &Option<usize>)| match keys.arch.unrotated {
        Unrotated::These(layers) => !layers.contains(i),
        Unrotated::Global => !has_windows || window.is_some(),
        Unrotated::GlobalBehindDense => i < dense || !has_windows || window.is_some(),
    };
    Ok(windows.iter().enumerate().map(|layer| rotates && is_rotated(layer)).collect())
}
