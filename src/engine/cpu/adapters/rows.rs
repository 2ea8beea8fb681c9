//! [`AdaptedRows`]: the rows of a step that adapters change.

use crate::Batch;

/// The use of a loaded adapter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlaceUse {
    pub place: u32,
    pub scale: f32,
}

/// A row of a product, and the adapters that may change it.
pub struct ChangedRow<'a> {
    /// The row of the input and the output.
    pub at: usize,
    /// The matrix of a stack.
    pub matrix: usize,
    pub uses: &'a [PlaceUse],
}

/// The adapters of each row of a step, in their order.
#[derive(Default)]
pub struct AdaptedRows {
    uses: Vec<PlaceUse>,
    /// [num_tokens] the end of each row's uses. Empty if no row has any.
    ends: Vec<usize>,
    /// The places in use.
    places: Vec<u32>,
}

impl AdaptedRows {
    /// Collects the uses of a batch.
    pub fn collect(&mut self, batch: &Batch) {
        self.uses.clear();
        self.ends.clear();
        self.places.clear();
        if batch.adapters.iter().all(|of| of.is_empty()) {
            return;
        }
        for (i, adapters) in batch.adapters.iter().enumerate() {
            for index in batch.indices(i) {
                let now = adapters.iter().filter(|of| of.first <= index && of.scale != 0.0);
                self.uses.extend(now.map(|of| PlaceUse { place: of.place, scale: of.scale }));
                self.ends.push(self.uses.len());
            }
        }
        self.places.extend(self.uses.iter().map(|of| of.place));
        self.places.sort_unstable();
        self.places.dedup();
    }

    /// The places in use, in ascending order.
    pub fn places(&self) -> &[u32] {
        &self.places
    }

    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The adapters of a row.
    pub fn of(&self, row: usize) -> &[PlaceUse] {
        let Some(&end) = self.ends.get(row) else { return &[] };
        let start = if row == 0 { 0 } else { self.ends[row - 1] };
        &self.uses[start..end]
    }

    /// The step's rows that have adapters, as rows of one matrix.
    pub fn changed(&self) -> Vec<ChangedRow<'_>> {
        self.changed_of(0..self.ends.len())
    }

    /// Rows of the step that have adapters. Row k of the product is row `rows(k)` of the step.
    pub fn changed_of(&self, rows: impl Iterator<Item = usize>) -> Vec<ChangedRow<'_>> {
        let changed = rows.enumerate().map(|(at, row)| ChangedRow { at, matrix: 0, uses: self.of(row) });
        changed.filter(|row| !row.uses.is_empty()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AdapterUse;

    #[test]
    fn rows_before_the_first_one_of_an_adapter_have_none() {
        let used = |place, scale, first| AdapterUse { place, scale, first };
        let adapters = vec![vec![].into(), vec![used(3, 1.0, 6), used(1, 0.5, 0), used(2, 0.0, 0)].into()];
        let batch = Batch { cu_seqlens_q: vec![0, 2, 5], context_lens: vec![2, 8], adapters, ..Batch::default() };
        let mut rows = AdaptedRows::default();
        rows.collect(&batch);
        let half = PlaceUse { place: 1, scale: 0.5 };
        assert_eq!(rows.places(), [1, 3]);
        assert_eq!((rows.of(1), rows.of(2)), (&[][..], &[half][..]));
        assert_eq!(rows.of(4), [PlaceUse { place: 3, scale: 1.0 }, half]);
        assert_eq!(rows.changed_of([4, 0].into_iter()).iter().map(|row| row.at).collect::<Vec<_>>(), [0]);
        rows.collect(&Batch { adapters: Vec::new(), ..batch });
        assert!(rows.is_empty() && rows.of(2).is_empty());
    }
}
