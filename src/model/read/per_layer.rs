//! Reads the per-layer properties of Gemma 3n and 4: each layer's own input, and the cutoff of its gate.

use super::keys::{Fallible, Keys, MAX_DIM};
use crate::arch::Block;
use crate::spec::ALTUP_STREAMS;

/// The cutoff that keeps a twentieth of normally distributed values: the 0.95 quantile of the normal distribution.
const TWENTIETH: f32 = 1.644_853_6;

/// The length of each layer's own input. 0 if layers have none.
pub fn input(keys: &Keys, num_layers: usize) -> Fallible<usize> {
    let suffix = "embedding_length_per_layer_input";
    let altup = keys.arch.block == Block::Altup;
    if altup {
        check_altup(keys)?;
    }
    let most = MAX_DIM / num_layers;
    match keys.count_or_none(suffix, MAX_DIM)? {
        Some(len) if len > most => keys.wrong(suffix, format!("at most {most} elements for each of the {num_layers} layers")),
        Some(len) => Ok(len),
        None if altup && keys.value(suffix).is_some() => keys.wrong(suffix, format!("an integer from 1 to {most}")),
        None => Ok(if altup { 256 } else { 0 }),
    }
}

/// Refuses AltUp with another number or order of streams than all known models have.
fn check_altup(keys: &Keys) -> Fallible<()> {
    for (suffix, known) in [("altup.num_inputs", ALTUP_STREAMS), ("altup.active_idx", 0)] {
        if keys.value(suffix).is_some_and(|value| value.as_int() != Some(known as i128)) {
            return keys.wrong(suffix, format!("{known} or no such key (not supported)"));
        }
    }
    Ok(())
}

/// The cutoff of each layer's gate. Files write one cutoff per layer, and minus infinity for layers without one.
pub fn gate_cutoffs(keys: &Keys, num_layers: usize) -> Fallible<Vec<Option<f32>>> {
    let (suffix, sparse) = ("activation_sparsity_scale", keys.arch.sparse_gates);
    match keys.value(suffix) {
        _ if sparse == 0 => Ok(vec![None; num_layers]),
        None => Ok((0..num_layers).map(|i| (i < sparse).then_some(TWENTIETH)).collect()),
        Some(value) => match value.floats() {
            Ok(all) if all.len() >= num_layers && all.iter().all(|x| *x < f32::INFINITY) => {
                Ok(all[..num_layers].iter().map(|&cutoff| cutoff.is_finite().then_some(cutoff)).collect())
            }
            _ => keys.wrong(suffix, format!("one number or minus infinity per layer ({num_layers})")),
        },
    }
}
