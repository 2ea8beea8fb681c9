//! [`Assembly`]: joins what files say about the rows and matrices of a tensor to one change per tensor.
//!
//! A file may name the parts of a tensor that the model holds as one (queries, keys and values; gate and up; the experts of a stack). Their
//! ranks add up: A holds the parts' rows one after another, and B is a block per part.

use std::collections::BTreeMap;

use engine::{ChangeKind, LowRank, WeightChange};

use crate::budget::Budget;
use crate::targets::{Placement, Shape, Target};

/// A change of some rows.
pub struct Piece {
    pub at: Placement,
    /// The file's name for it.
    pub name: String,
    pub low: LowRank,
}

#[derive(Default)]
pub struct Assembly {
    pieces: BTreeMap<usize, Vec<Piece>>,
    whole: BTreeMap<usize, (String, Vec<f32>)>,
}

impl Assembly {
    /// Adds a change of the rows of all its placements. `low` has a row of B for each row of the change.
    pub fn add(&mut self, name: &str, low: LowRank, shape: Shape, placements: &[Placement]) {
        if let [only] = placements
            && only.rows == shape.rows
        {
            self.pieces.entry(only.target).or_default().push(Piece { at: *only, name: name.to_owned(), low });
            return;
        }
        for &at in placements {
            let cut = |all: &[f32], width: usize| -> Vec<f32> {
                all.chunks_exact(shape.rows * width).flat_map(|matrix| &matrix[at.from_row * width..][..at.rows * width]).copied().collect()
            };
            let part = LowRank { b: cut(&low.b, low.rank), a: low.a.clone(), gain: low.gain.as_ref().map(|gain| cut(gain, 1)), ..low };
            self.pieces.entry(at.target).or_default().push(Piece { at, name: name.to_owned(), low: part });
        }
    }

    /// Sets all weights of a tensor.
    ///
    /// # Errors
    /// If the placement is only a part of the tensor.
    pub fn replace(&mut self, name: &str, all: Vec<f32>, placements: &[Placement], targets: &[Target]) -> Result<(), String> {
        let [at] = placements else {
            return Err(format!("{name} is saved whole, but the model holds it as several tensors: merge the adapter into the model"));
        };
        let target = &targets[at.target];
        if at.matrix.is_some_and(|_| target.shape.count > 1) || at.rows != target.shape.rows {
            return Err(format!("{name} is saved whole, but is a part of the model's {}: merge the adapter into the model", target.name));
        }
        match self.whole.insert(at.target, (name.to_owned(), all)) {
            Some((other, _)) => Err(format!("{other} and {name} both replace {}", target.name)),
            None => Ok(()),
        }
    }

    /// The change of each tensor.
    ///
    /// # Errors
    /// If two pieces change the same rows, or if a change is larger than the budget or than float32 can hold.
    pub fn finish(self, targets: &[Target], budget: &mut Budget) -> Result<Vec<WeightChange>, String> {
        let mut changes = Vec::new();
        for (index, (name, all)) in self.whole {
            if let Some(piece) = self.pieces.get(&index).and_then(|pieces| pieces.first()) {
                return Err(format!("{} changes {}, which {name} replaces", piece.name, targets[index].name));
            }
            changes.push(change(&targets[index], ChangeKind::Replacement(all)));
        }
        for (index, pieces) in self.pieces {
            let target = &targets[index];
            refuse_overlaps(&pieces, target)?;
            let low = join(pieces, target, budget)?;
            let all = low.a.iter().chain(&low.b).chain(low.gain.iter().flatten());
            if !all.copied().all(f32::is_finite) || !low.scale.is_finite() {
                return Err(format!("{}: the scale and the weights are too large for float32", target.name));
            }
            changes.push(change(target, ChangeKind::Low(low)));
        }
        Ok(changes)
    }
}

fn change(target: &Target, kind: ChangeKind) -> WeightChange {
    let Shape { count, rows, cols } = target.shape;
    WeightChange { tensor: target.name.clone(), count, rows, cols, kind }
}

fn refuse_overlaps(pieces: &[Piece], target: &Target) -> Result<(), String> {
    let matrices = |at: &Placement| at.matrix.map_or(0..target.shape.count, |matrix| matrix..matrix + 1);
    let mut sorted: Vec<&Piece> = pieces.iter().collect();
    sorted.sort_by_key(|piece| (matrices(&piece.at).start, piece.at.first_row));
    for (i, one) in sorted.iter().enumerate() {
        for other in sorted[i + 1..].iter().take_while(|other| matrices(&other.at).start < matrices(&one.at).end) {
            if one.at.first_row < other.at.first_row + other.at.rows && other.at.first_row < one.at.first_row + one.at.rows {
                return Err(format!("{} and {} change the same rows of {}", one.name, other.name, target.name));
            }
        }
    }
    Ok(())
}

/// Joins pieces of different rows or matrices.
fn join(mut pieces: Vec<Piece>, target: &Target, budget: &mut Budget) -> Result<LowRank, String> {
    let Shape { count, rows, cols } = target.shape;
    let is_whole = |at: &Placement| at.rows == rows && (at.matrix.is_none() || count == 1);
    if let [only] = &pieces[..]
        && is_whole(&only.at)
    {
        return pieces.pop().map(|piece| piece.low).ok_or_else(String::new);
    }
    let matrices = |at: &Placement| at.matrix.map_or(0..count, |matrix| matrix..matrix + 1);
    let mut used = vec![0; count];
    let mut places = Vec::new();
    for piece in &pieces {
        let own = matrices(&piece.at);
        places.push(used[own.clone()].to_vec());
        used[own].iter_mut().for_each(|rank| *rank += piece.low.rank);
    }
    let rank = used.iter().copied().max().unwrap_or(0);
    let has_gain = pieces.iter().any(|piece| piece.low.gain.is_some());
    budget.take(&target.name, [count, rank, rows + cols])?;
    budget.take(&target.name, [usize::from(has_gain), count, rows])?;
    let scale = pieces[0].low.scale;
    let shared = pieces.iter().all(|piece| piece.low.scale.to_bits() == scale.to_bits());
    let mut joined = LowRank {
        rank,
        a: vec![0.0; count * rank * cols],
        b: vec![0.0; count * rows * rank],
        scale: if shared { scale } else { 1.0 },
        gain: has_gain.then(|| vec![1.0; count * rows]),
    };
    for (piece, places) in pieces.iter().zip(&places) {
        let (low, at) = (&piece.low, &piece.at);
        let factor = if shared { 1.0 } else { low.scale };
        for (i, (matrix, &first)) in matrices(at).zip(places).enumerate() {
            let a = &low.a[i * low.rank * cols..][..low.rank * cols];
            joined.a[(matrix * rank + first) * cols..][..a.len()].copy_from_slice(a);
            for row in 0..at.rows {
                let from = &low.b[(i * at.rows + row) * low.rank..][..low.rank];
                let to = &mut joined.b[(matrix * rows + at.first_row + row) * rank + first..][..low.rank];
                to.iter_mut().zip(from).for_each(|(to, from)| *to = from * factor);
            }
            if let (Some(gain), Some(own)) = (&mut joined.gain, &low.gain) {
                gain[matrix * rows + at.first_row..][..at.rows].copy_from_slice(&own[i * at.rows..][..at.rows]);
            }
        }
    }
    Ok(joined)
}
