//! [`Change`]: the change of a matrix in the form that the kernels take.

use super::super::simd::Kernels;
use super::super::simd::pool::ThreadPool;
use super::super::simd::rows::Rows;
use crate::{ChangeKind, WeightChange};
use std::ops::Range;

/// The columns that a task changes at a time, if there are few rows.
const PART: usize = 1024;

pub enum Change {
    Low(Low),
    /// [count · rows, cols] weights in place of the matrix's own.
    Replacement {
        weights: Rows,
        rows: usize,
    },
}

/// W' = gain ⊙ (W + scale · B A)
pub struct Low {
    rank: usize,
    a: Rows, // [count · rank, cols]
    b: Rows, // [count · rank, rows] the columns of B
    scale: f32,
    gain: Option<Vec<f32>>, // [count · rows]
    rows: usize,
}

/// A row of a product with its changes and their scales.
pub struct RowChanges<'a> {
    pub at: usize,
    pub matrix: usize,
    pub changes: Vec<(&'a Change, f32)>,
}

/// The fewest multiplications of A x that threads share.
const SHARED_FROM: usize = 1 << 16;

impl Change {
    /// `rows`: the rows of each matrix that are the shard's own.
    pub fn new(change: &WeightChange, own: &Range<usize>) -> Self {
        let (count, cols) = (change.count, change.cols);
        match &change.kind {
            ChangeKind::Low(low) => {
                let rank = low.rank;
                let (mut a, mut b) = (Rows::new(cols), Rows::new(own.len()));
                a.resize(count * rank);
                b.resize(count * rank);
                for i in 0..count * rank {
                    a.row_mut(i).copy_from_slice(&low.a[i * cols..][..cols]);
                    let matrix = &low.b[i / rank * change.rows * rank..][..change.rows * rank];
                    let column = own.clone().map(|row| matrix[row * rank + i % rank]);
                    b.row_mut(i).iter_mut().zip(column).for_each(|(to, from)| *to = from);
                }
                let gain = low.gain.as_ref().map(|all| own_rows(all, count, change.rows, own));
                Self::Low(Low { rank, a, b, scale: low.scale, gain, rows: own.len() })
            }
            ChangeKind::Replacement(all) => {
                let mut weights = Rows::new(cols);
                weights.resize(count * own.len());
                for i in 0..count * own.len() {
                    let row = i / own.len() * change.rows + own.start + i % own.len();
                    weights.row_mut(i).copy_from_slice(&all[row * cols..][..cols]);
                }
                Self::Replacement { weights, rows: own.len() }
            }
        }
    }

    /// Whether the change needs the product alone, without what it is added to.
    pub fn needs_product(&self) -> bool {
        !matches!(self, Change::Low(Low { gain: None, .. }))
    }

    fn rank(&self) -> usize {
        if let Change::Low(low) = self { low.rank } else { 0 }
    }
}

/// The shard's own of each matrix's rows.
fn own_rows(all: &[f32], count: usize, rows: usize, own: &Range<usize>) -> Vec<f32> {
    (0..count).flat_map(|matrix| all[matrix * rows..][own.clone()].iter().copied()).collect()
}

/// Changes rows of a product. `x` is its input. The rows ascend.
pub fn apply((kernels, pool): (&Kernels, &mut ThreadPool), rows: &[RowChanges], x: &Rows, out: &mut Rows) {
    if rows.is_empty() {
        return;
    }
    // first A x of all changes, each in a row of its own
    let all: Vec<(&RowChanges, &Change, f32)> =
        rows.iter().flat_map(|row| row.changes.iter().map(move |(change, scale)| (row, *change, *scale))).collect();
    let mut thin = Rows::new(all.iter().map(|(_, change, _)| change.rank()).max().unwrap_or(0));
    thin.resize(all.len());
    let reduce = |i: usize, to: &mut [f32]| {
        let (row, change, scale) = all[i];
        if let Change::Low(low) = change {
            low.reduce(kernels, row.matrix, x.row(row.at), scale, to);
        }
    };
    if thin.width() * x.width() * all.len() < SHARED_FROM {
        (0..all.len()).for_each(|i| reduce(i, thin.row_mut(i)));
    } else {
        thin.for_each(pool, reduce);
    }
    let firsts: Vec<usize> = rows.iter().scan(0, |next, row| Some(std::mem::replace(next, *next + row.changes.len()))).collect();
    let at: Vec<usize> = rows.iter().map(|row| row.at).collect();
    let step = if rows.len() < 2 * pool.num_threads() { PART } else { out.width().max(1) };
    out.for_parts(pool, &at, step, |i, column, part| {
        let row = &rows[i];
        let base = if row.changes.iter().any(|(change, _)| change.needs_product()) { part.to_vec() } else { Vec::new() };
        for (k, (change, scale)) in row.changes.iter().enumerate() {
            match change {
                Change::Low(low) => low.expand(kernels, row.matrix, thin.row(firsts[i] + k), *scale, (&base, column, part)),
                Change::Replacement { weights, rows } => {
                    for (j, (to, base)) in part.iter_mut().zip(&base).enumerate() {
                        let product = kernels.dot(weights.row(row.matrix * rows + column + j), x.row(row.at));
                        *to += scale * (product - base);
                    }
                }
            }
        }
    });
}

/// Changes row `id` of a table.
pub fn table_row(kernels: &Kernels, changes: &[(&Change, f32)], id: usize, row: &mut [f32]) {
    let base = row.to_vec();
    for (change, scale) in changes {
        match change {
            Change::Low(low) => {
                let factor = scale * low.scale;
                let factors: Vec<f32> = (0..low.rank).map(|k| factor * low.b.row(k)[id]).collect();
                match low.gain.as_ref().map(|gain| gain[id]) {
                    None => kernels.add_rows(row, &low.a, (0, 0), &factors),
                    Some(gain) => {
                        let mut sum = vec![0.0; row.len()];
                        kernels.add_rows(&mut sum, &low.a, (0, 0), &factors);
                        let with = |to: &mut f32, (base, sum): (&f32, &f32)| *to += scale * (gain - 1.0) * base + gain * sum;
                        row.iter_mut().zip(base.iter().zip(&sum)).for_each(|(to, of)| with(to, of));
                    }
                }
            }
            Change::Replacement { weights, .. } => {
                row.iter_mut().zip(base.iter().zip(weights.row(id))).for_each(|(to, (base, new))| *to += scale * (new - base));
            }
        }
    }
}

impl Low {
    /// to = scale · A x
    fn reduce(&self, kernels: &Kernels, matrix: usize, x: &[f32], scale: f32, to: &mut [f32]) {
        let factor = scale * self.scale;
        for (k, to) in to[..self.rank].iter_mut().enumerate() {
            *to = factor * kernels.dot(self.a.row(matrix * self.rank + k), x);
        }
    }

    /// Adds B to a part of a row, from `column` on, with the gain of each row of B. `base` is the product without any change.
    fn expand(&self, kernels: &Kernels, matrix: usize, thin: &[f32], scale: f32, (base, column, part): (&[f32], usize, &mut [f32])) {
        let (first, factors) = (matrix * self.rank, &thin[..self.rank]);
        let Some(gain) = &self.gain else { return kernels.add_rows(part, &self.b, (first, column), factors) };
        let mut sum = vec![0.0; part.len()];
        kernels.add_rows(&mut sum, &self.b, (first, column), factors);
        let gain = &gain[matrix * self.rows + column..][..part.len()];
        for (((to, gain), base), sum) in part.iter_mut().zip(gain).zip(base).zip(&sum) {
            *to += scale * (gain - 1.0) * base + gain * sum;
        }
    }
}
