//! [`PictureLayout`]: which rows of a picture encoder belong to which picture, window and place.

use std::ops::Range;

use crate::program::{RowSet, Rule, Within};
use model::VisionSpec;
use model::vision::{ClassRow, Filter, Rotation};

/// A patch: its picture and its place in the picture's grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patch {
    pub picture: usize,
    pub row: usize,
    pub col: usize,
}

/// A row of the tower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TowerRow {
    /// The index of the patch.
    Patch(usize),
    Class {
        picture: usize,
    },
}

/// A picture of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Placed {
    rows: usize,
    cols: usize,
    /// The tower's rows.
    tower: Range<usize>,
    /// The tower's row of each place, in raster order.
    places: Vec<u32>,
}

/// The rows that each part of a row is a weighted sum of.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Terms {
    /// The end of each part's terms.
    ends: Vec<u32>,
    terms: Vec<(u32, f32)>,
}

impl Terms {
    fn push(&mut self, terms: impl IntoIterator<Item = (usize, f32)>) {
        self.terms.extend(terms.into_iter().map(|(row, weight)| (row as u32, weight)));
        self.ends.push(self.terms.len() as u32);
    }

    /// The end of each part's terms.
    #[allow(dead_code, reason = "only a backend that sends lists to a device asks for it")]
    pub fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// The terms of all parts: rows and their weights.
    #[allow(dead_code, reason = "only a backend that sends lists to a device asks for it")]
    pub fn all(&self) -> &[(u32, f32)] {
        &self.terms
    }

    /// The terms of a part, numbered over all rows.
    pub fn of(&self, part: usize) -> &[(u32, f32)] {
        let start = if part == 0 { 0 } else { self.ends[part - 1] as usize };
        &self.terms[start..self.ends[part] as usize]
    }
}

/// The pictures of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PictureLayout {
    pictures: Vec<Placed>,
    patches: Vec<Patch>,
    tower: Vec<TowerRow>,
    /// The tower's rows of each window.
    windows: Vec<Range<usize>>,
    merge: usize,
    num_queries: usize,
}

impl PictureLayout {
    /// Lays out pictures of these patches per column and per row, which the encoder takes.
    pub fn new(spec: &VisionSpec, grids: &[[usize; 2]]) -> Self {
        let mut layout = Self { merge: spec.merge, num_queries: spec.num_queries, ..Self::default() };
        for (picture, &[rows, cols]) in grids.iter().enumerate() {
            let start = layout.tower.len();
            let class_row = spec.family.class_row;
            if class_row == ClassRow::First {
                layout.tower.push(TowerRow::Class { picture });
            }
            let side = spec.windows.map_or(rows.max(cols), |windows| windows.side);
            let mut places = vec![0; rows * cols];
            for (top, left) in (0..rows).step_by(side).flat_map(|top| (0..cols).step_by(side).map(move |left| (top, left))) {
                let first = layout.tower.len();
                for (row, col) in (top..rows.min(top + side)).flat_map(|row| (left..cols.min(left + side)).map(move |col| (row, col))) {
                    places[row * cols + col] = layout.tower.len() as u32;
                    layout.tower.push(TowerRow::Patch(layout.patches.len()));
                    layout.patches.push(Patch { picture, row, col });
                }
                layout.windows.push(first..layout.tower.len());
            }
            if class_row == ClassRow::Last {
                layout.tower.push(TowerRow::Class { picture });
            }
            layout.pictures.push(Placed { rows, cols, tower: start..layout.tower.len(), places });
        }
        layout
    }

    /// The patches in the order of their rows.
    pub fn patches(&self) -> &[Patch] {
        &self.patches
    }

    /// The rows of a set. None in a language model's step, whose rows are one per token.
    pub fn num_rows(&self, set: RowSet) -> usize {
        match set {
            RowSet::Step => 0,
            RowSet::Patches => self.patches.len(),
            RowSet::Tower => self.tower.len(),
            RowSet::Cells => self.pictures.iter().map(|picture| self.cells(picture).0 * self.cells(picture).1).sum(),
            RowSet::Queries => self.pictures.len() * self.num_queries,
            RowSet::Broken => self.pictures.iter().map(|picture| broken(self.cells(picture))).sum(),
        }
    }

    /// The rows of a set that each picture has, in order.
    pub fn of_pictures(&self, set: RowSet) -> Vec<Range<usize>> {
        let mut end = 0;
        let count = |picture: &Placed| match set {
            RowSet::Step => 0,
            RowSet::Patches => picture.rows * picture.cols,
            RowSet::Tower => picture.tower.len(),
            RowSet::Cells => self.cells(picture).0 * self.cells(picture).1,
            RowSet::Queries => self.num_queries,
            RowSet::Broken => broken(self.cells(picture)),
        };
        let range = |picture: &Placed| {
            let start = end;
            end += count(picture);
            start..end
        };
        self.pictures.iter().map(range).collect()
    }

    /// The tower's rows that attend to each other.
    pub fn groups(&self, within: Within) -> Vec<Range<usize>> {
        match within {
            Within::Picture => self.of_pictures(RowSet::Tower),
            Within::Window => self.windows.clone(),
        }
    }

    /// The positions by which a row of the tower is rotated: none, its row, its column.
    pub fn positions(&self, row: usize, rotation: Rotation) -> [u32; 3] {
        // Llama 4 counts places from 1, because place 0 is that of the class row.
        let first = u32::from(rotation == Rotation::ColumnsThenRows);
        match self.tower[row] {
            TowerRow::Patch(patch) => [0, first + self.patches[patch].row as u32, first + self.patches[patch].col as u32],
            TowerRow::Class { .. } => [0; 3],
        }
    }

    /// The cells of a picture per column and per row.
    fn cells(&self, picture: &Placed) -> (usize, usize) {
        (picture.rows / self.merge, picture.cols / self.merge)
    }

    /// The rows that a rule mixes.
    pub fn terms(&self, rule: Rule) -> Terms {
        let mut terms = Terms::default();
        match rule {
            Rule::Patches => self.tower.iter().for_each(|row| match *row {
                TowerRow::Patch(patch) => terms.push([(patch, 1.0)]),
                TowerRow::Class { .. } => terms.push([]),
            }),
            Rule::Class => self.tower.iter().for_each(|row| match row {
                TowerRow::Patch(_) => terms.push([]),
                TowerRow::Class { .. } => terms.push([(0, 1.0)]),
            }),
            Rule::Learned(_) | Rule::Buckets { .. } | Rule::Resized { .. } | Rule::Axes { .. } | Rule::Coordinates => {
                self.add_places(rule, &mut terms);
            }
            Rule::Cells { side } => self.each_cell(|picture, row, col| {
                (0..side * side).for_each(|i| terms.push([(place(picture, row * side + i / side, col * side + i % side), 1.0)]));
            }),
            Rule::Mean { side } => self.each_cell(|picture, row, col| {
                let weight = 1.0 / (side * side) as f32;
                terms.push((0..side * side).map(|i| (place(picture, row * side + i / side, col * side + i % side), weight)));
            }),
            Rule::Cell | Rule::Break => self.add_breaks(rule == Rule::Break, &mut terms),
            Rule::Query => self.pictures.iter().for_each(|_| (0..self.num_queries).for_each(|query| terms.push([(query, 1.0)]))),
        }
        terms
    }

    fn each_cell(&self, mut f: impl FnMut(&Placed, usize, usize)) {
        for picture in &self.pictures {
            let (rows, cols) = self.cells(picture);
            (0..rows).for_each(|row| (0..cols).for_each(|col| f(picture, row, col)));
        }
    }

    /// Rows of a table of places.
    fn add_places(&self, rule: Rule, terms: &mut Terms) {
        let resized: Vec<_> = match rule {
            Rule::Resized { side, filter } => {
                let axes = |picture: &Placed| [resize(side, picture.rows, filter), resize(side, picture.cols, filter)];
                self.pictures.iter().map(axes).collect()
            }
            _ => Vec::new(),
        };
        for row in &self.tower {
            let (patch, picture) = match *row {
                TowerRow::Patch(patch) => (self.patches[patch], &self.pictures[self.patches[patch].picture]),
                TowerRow::Class { picture } => {
                    let count = self.pictures[picture].rows * self.pictures[picture].cols;
                    terms.push([(if rule == Rule::Learned(ClassRow::Last) { count } else { 0 }, 1.0)]);
                    continue;
                }
            };
            let (row, col) = (patch.row, patch.col);
            match rule {
                Rule::Learned(class) => terms.push([(usize::from(class == ClassRow::First) + row * picture.cols + col, 1.0)]),
                Rule::Buckets { side } => terms.push([(side * row / picture.rows * side + side * col / picture.cols, 1.0)]),
                Rule::Resized { side, .. } => {
                    let [rows, cols] = &resized[patch.picture];
                    let along = |&(y, by_row): &(usize, f32)| cols[col].iter().map(move |&(x, by_col)| (y * side + x, by_row * by_col));
                    terms.push(rows[row].iter().flat_map(along));
                }
                Rule::Axes { count } => terms.push([(col, 1.0), (count + row, 1.0)]),
                _ => {
                    terms.push([(col, 1.0)]);
                    terms.push([(row, 1.0)]);
                }
            }
        }
    }

    /// The cells, with a break behind each row of cells but the last.
    fn add_breaks(&self, are_breaks: bool, terms: &mut Terms) {
        let mut cell = 0;
        for picture in &self.pictures {
            let (rows, cols) = self.cells(picture);
            for row in 0..rows {
                for _ in 0..cols {
                    terms.push((!are_breaks).then_some((cell, 1.0)));
                    cell += 1;
                }
                if row + 1 < rows {
                    terms.push(are_breaks.then_some((0, 1.0)));
                }
            }
        }
    }
}

/// The tower's row of a place.
fn place(picture: &Placed, row: usize, col: usize) -> usize {
    picture.places[row * picture.cols + col] as usize
}

/// The number of rows with breaks.
fn broken((rows, cols): (usize, usize)) -> usize {
    rows * cols + rows.saturating_sub(1)
}

/// The places of one axis of a table that each of `count` places of a grid mixes, with their weights.
fn resize(side: usize, count: usize, filter: Filter) -> Vec<Vec<(usize, f32)>> {
    let last = side - 1;
    let of = |i: usize| -> Vec<(usize, f32)> {
        match filter {
            Filter::Corners => {
                let at = if count > 1 { (last * i) as f32 / (count - 1) as f32 } else { 0.0 };
                let (low, part) = (at.floor() as usize, at.fract());
                vec![(low.min(last), 1.0 - part), ((low + 1).min(last), part)]
            }
            Filter::Bilinear => {
                let scale = side as f64 / count as f64;
                let (centre, reach) = ((i as f64 + 0.5) * scale, scale.max(1.0));
                let (first, end) = ((centre - reach + 0.5).max(0.0) as usize, ((centre + reach + 0.5) as usize).min(side));
                let weight = |at: usize| (1.0 - ((at as f64 + 0.5 - centre) / reach).abs()).max(0.0);
                let total: f64 = (first..end).map(weight).sum();
                (first..end).map(|at| (at, (weight(at) / total) as f32)).collect()
            }
            Filter::Bicubic => {
                let at = (i as f64 + 0.5) * side as f64 / count as f64 - 0.5;
                let (low, part) = (at.floor(), at - at.floor());
                let tap = |k: i64| ((low as i64 + k).clamp(0, last as i64) as usize, cubic((k as f64 - part).abs()) as f32);
                (-1..3).map(tap).collect()
            }
        }
    };
    (0..count).map(of).collect()
}

/// The cubic kernel with a = −3/4.
fn cubic(x: f64) -> f64 {
    const A: f64 = -0.75;
    match x {
        x if x <= 1.0 => ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0,
        x if x < 2.0 => ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A,
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_as_large_as_the_grid_stays_as_it_is() {
        for filter in [Filter::Corners, Filter::Bilinear, Filter::Bicubic] {
            for (i, taps) in resize(6, 6, filter).iter().enumerate() {
                let kept: Vec<_> = taps.iter().filter(|(_, weight)| weight.abs() > 1e-6).collect();
                assert_eq!(kept, [&(i, 1.0)], "{filter:?}");
            }
        }
    }

    #[test]
    fn the_weights_of_a_place_add_up_to_one() {
        for filter in [Filter::Corners, Filter::Bilinear, Filter::Bicubic] {
            for (side, count) in [(6, 1), (6, 2), (6, 5), (6, 17), (16, 7), (1, 3)] {
                for taps in resize(side, count, filter) {
                    let sum: f32 = taps.iter().map(|(_, weight)| weight).sum();
                    assert!((sum - 1.0).abs() < 1e-5, "{filter:?} {side} to {count}: {taps:?}");
                    assert!(taps.iter().all(|&(at, _)| at < side), "{filter:?} {side} to {count}: {taps:?}");
                }
            }
        }
    }

    /// torch.nn.functional.interpolate of [0, 1, 2, 3, 4, 5] to 3 and to 4, with align_corners=False.
    #[test]
    fn places_between_those_of_the_table_are_interpolated() {
        let of = |count, filter| -> Vec<f32> {
            resize(6, count, filter).iter().map(|taps| taps.iter().map(|&(at, weight)| at as f32 * weight).sum()).collect()
        };
        let near = |found: Vec<f32>, expected: &[f32]| {
            assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-4) && found.len() == expected.len(), "{found:?}");
        };
        near(of(3, Filter::Corners), &[0.0, 2.5, 5.0]);
        near(of(3, Filter::Bilinear), &[5.0 / 7.0, 2.5, 5.0 - 5.0 / 7.0]);
        near(of(3, Filter::Bicubic), &[0.40625, 2.5, 4.59375]);
    }
}
