//! Compares an adapter with the model's own weights, row by row: the norms that DoRA divides by, and weights that were saved unchanged.

use engine::LowRank;

use crate::targets::{Placement, Targets};

/// The largest distance between the model's weights and the same weights before they were quantised, relative to their length. Types of
/// two bits reach 0.3. Weights of another model have 1.4.
pub const SAME: f64 = 0.5;

/// Computes the factor of each row: magnitude / ‖row of W + scale · B A‖.
///
/// # Errors
/// If a row has the length 0, so that it has no direction.
pub fn of(targets: &Targets, placements: &[Placement], low: &LowRank, magnitude: Vec<f32>) -> Result<Vec<f32>, String> {
    let mut gain = magnitude;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    for at in placements {
        let gain = &mut gain[at.from_row..][..at.rows];
        let step = at.rows.div_ceil(threads).max(1);
        std::thread::scope(|scope| {
            let workers: Vec<_> =
                gain.chunks_mut(step).enumerate().map(|(i, gain)| scope.spawn(move || divide(targets, at, low, i * step, gain))).collect();
            workers.into_iter().try_for_each(|worker| worker.join().unwrap_or_else(|_| Err("a norm could not be computed".to_owned())))
        })?;
    }
    Ok(gain)
}

/// Divides the magnitudes of some rows, from row `first` of a placement on, by the rows' norms.
fn divide(targets: &Targets, at: &Placement, low: &LowRank, first: usize, gain: &mut [f32]) -> Result<(), String> {
    let mut row = Vec::new();
    for (i, gain) in gain.iter_mut().enumerate() {
        let i = first + i;
        targets.base_row(at.target, at.matrix.unwrap_or(0), at.first_row + i, &mut row)?;
        let b = &low.b[(at.from_row + i) * low.rank..][..low.rank];
        for (b, a) in b.iter().zip(low.a.chunks_exact(row.len())) {
            let factor = low.scale * b;
            row.iter_mut().zip(a).for_each(|(x, a)| *x += factor * a);
        }
        let norm = row.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
        *gain = (f64::from(*gain) / norm) as f32;
        if !gain.is_finite() {
            return Err(format!("row {i} of W + scale · B A has the length {norm}, so DoRA's factor is not a number"));
        }
    }
    Ok(())
}

/// The distance between the model's weights and `all`, relative to the length of `all`.
pub fn distance(targets: &Targets, placements: &[Placement], all: &[f32]) -> Result<f64, String> {
    let (mut apart, mut length, mut row) = (0.0, 0.0, Vec::new());
    for at in placements {
        for i in 0..at.rows {
            targets.base_row(at.target, at.matrix.unwrap_or(0), at.first_row + i, &mut row)?;
            for (x, y) in row.iter().zip(&all[(at.from_row + i) * row.len()..]) {
                apart += f64::from(x - y).powi(2);
                length += f64::from(*y).powi(2);
            }
        }
    }
    Ok(if apart == 0.0 { 0.0 } else { (apart / length).sqrt() })
}
