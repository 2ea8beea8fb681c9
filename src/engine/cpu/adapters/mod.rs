//! [`Adapters`]: what the adapters of requests add to the products of a shard.
//!
//! A change of a matrix is added to a product's rows behind the product and before its bias, one adapter after another in the order of the
//! row's list. A row is computed from its own numbers alone, so its bits do not depend on the rows beside it.

mod bind;
mod change;
mod rows;

use super::simd::Kernels;
use super::simd::pool::ThreadPool;
use super::simd::rows::Rows;
use crate::program::{Program, TensorId};
use crate::{Adapter, EngineError};
use bind::{Bound, ProgramFacts};
use change::Change;
use model::Weights;
pub use rows::{AdaptedRows, ChangedRow, PlaceUse};

/// The adapters that a shard has loaded.
pub struct Adapters {
    program: ProgramFacts,
    places: Vec<Option<Bound>>,
}

impl Adapters {
    pub fn new(program: &Program, weights: &Weights) -> Self {
        Self { program: ProgramFacts::of(program, weights), places: Vec::new() }
    }

    /// Loads the changes of this shard's tensors, and notes in `bound` which they are.
    ///
    /// # Errors
    /// [`EngineError::Adapter`] for a shape that differs, and for a tensor that the program reads in a way that cannot change.
    pub fn load(&mut self, place: usize, adapter: &Adapter, bound: &mut [bool]) -> Result<(), EngineError> {
        self.unload(place);
        let loaded = Bound::new(&self.program, adapter, bound)?;
        self.places.resize_with(self.places.len().max(place + 1), || None);
        self.places[place] = Some(loaded);
        Ok(())
    }

    pub fn unload(&mut self, place: usize) {
        if let Some(place) = self.places.get_mut(place) {
            *place = None;
        }
    }

    fn at(&self, place: u32) -> Option<&Bound> {
        self.places.get(place as usize)?.as_ref()
    }

    /// Changes rows of a product: `x` holds its input, and `out` its output without a bias.
    pub fn change(
        &self,
        (kernels, pool): (&Kernels, &mut ThreadPool),
        tensor: TensorId,
        rows: &[ChangedRow],
        (x, out): (&Rows, &mut Rows),
    ) {
        let of = |place| self.at(place)?.changes[tensor.0].as_ref();
        change::apply((kernels, pool), &rows_with(rows, of), x, out);
    }

    /// Changes logits: `x` holds the input of the head, and `out` its output without a bias.
    pub fn change_head(&self, (kernels, pool): (&Kernels, &mut ThreadPool), rows: &[ChangedRow], (x, out): (&Rows, &mut Rows)) {
        let of = |place| self.at(place)?.head.as_ref();
        change::apply((kernels, pool), &rows_with(rows, of), x, out);
    }

    /// Changes row `id` of a table.
    pub fn change_table_row(&self, kernels: &Kernels, table: TensorId, uses: &[PlaceUse], id: usize, row: &mut [f32]) {
        let changes = uses.iter().filter_map(|of| Some((self.at(of.place)?.changes[table.0].as_ref()?, of.scale)));
        let changes: Vec<_> = changes.collect();
        if !changes.is_empty() {
            change::table_row(kernels, &changes, id, row);
        }
    }

    /// Whether a change needs the product alone, without what it is added to.
    pub fn needs_product(&self, tensor: TensorId, uses: &[PlaceUse]) -> bool {
        uses.iter().any(|of| self.at(of.place).and_then(|bound| bound.changes[tensor.0].as_ref()).is_some_and(Change::needs_product))
    }

    /// Whether no row of the step has a change of the tensor.
    pub fn is_unchanged(&self, tensor: TensorId, adapted: &AdaptedRows) -> bool {
        let has_change = |place: u32| self.at(place).is_some_and(|bound| bound.changes[tensor.0].is_some());
        adapted.places().iter().all(|&place| !has_change(place))
    }

    /// Adds the directions of a layer to the residual stream behind it.
    pub fn steer(&self, (kernels, pool): (&Kernels, &mut ThreadPool), layer: usize, adapted: &AdaptedRows, stream: &mut Rows) {
        let direction = |of: &PlaceUse| Some((self.at(of.place)?.directions.get(&layer)?, of.scale));
        if !adapted.places().iter().any(|&place| direction(&PlaceUse { place, scale: 1.0 }).is_some()) {
            return;
        }
        stream.for_each(pool, |i, row| {
            for (vector, scale) in adapted.of(i).iter().filter_map(direction) {
                kernels.add_rows(row, vector, (0, 0), &[scale]);
            }
        });
    }
}

/// The changes of each row, in their order. Rows without one are left out.
fn rows_with<'a>(rows: &[ChangedRow<'_>], of: impl Fn(u32) -> Option<&'a Change>) -> Vec<change::RowChanges<'a>> {
    let changes = |row: &ChangedRow| {
        let all: Vec<_> = row.uses.iter().filter_map(|used| Some((of(used.place)?, used.scale))).collect();
        (!all.is_empty()).then_some(change::RowChanges { at: row.at, matrix: row.matrix, changes: all })
    };
    rows.iter().filter_map(changes).collect()
}
