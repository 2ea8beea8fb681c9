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
    let windowed = match listed(keys, shape)? {
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

/// The layers that the file lists as those with a window. A list may end before a draft head, which then has none.
fn listed(keys: &Keys, shape: &Shape) -> Fallible<Option<Vec<bool>>> {
    let (suffix, n) = ("attention.sliding_window_pattern", shape.num_layers);
    let mut flags = match (keys.flags(suffix, n), shape.draft_head) {
        (Err(_), Some(head)) => keys.flags(suffix, head)?,
        (flags, _) => flags?,
    };
    flags.iter_mut().for_each(|flags| flags.resize(n, false));
    Ok(flags)
}

/// Whether each layer's queries and keys are rotated. Those of draft heads are, if the model rotates any.
pub fn rotated(keys: &Keys, shape: &Shape, windows: &[Option<usize>]) -> Fallible<Vec<bool>> {
    let rotates = positions(keys, windows.len())? == Positions::Rope;
    let dense = keys.count_or_none("leading_dense_block_count", MAX_DIM)?.unwrap_or(0);
    let has_windows = windows.iter().any(Option::is_some);
    let is_rotated = |(i, window): (usize, &Option<usize>)| match keys.arch.unrotated {
        Unrotated::These(layers) => !layers.contains(i),
        Unrotated::Global => !has_windows || window.is_some(),
        Unrotated::GlobalBehindDense => i < dense || !has_windows || window.is_some(),
    };
    let is_head = |layer: usize| shape.draft_head == Some(layer);
    Ok(windows.iter().enumerate().map(|layer| rotates && (is_head(layer.0) || is_rotated(layer))).collect())
}
