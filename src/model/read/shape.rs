//! Reads the properties that all layers share, and how rows represent positions.

use super::keys::{Fallible, Keys};
use crate::arch::Positions;

/// The properties that all layers share.
pub struct Shape {
    pub hidden_dim: usize,
    pub num_layers: usize,
    pub context_length: usize,
    pub attn_cap: Option<f32>,
    /// The layer that is a draft head. None in the model without it.
    pub draft_head: Option<usize>,
}

/// How the model represents positions.
pub fn positions(keys: &Keys, num_layers: usize) -> Fallible<Positions> {
    let off = keys.arch.rotation_switch && keys.flag("rope.scaling.finetuned")? == Some(false);
    let by_layers = keys.arch.positions_by_layers.iter().find(|(layers, _)| *layers == num_layers);
    let positions = by_layers.map_or(keys.arch.positions, |(_, positions)| *positions);
    Ok(if off && positions == Positions::Rope { Positions::None } else { positions })
}
