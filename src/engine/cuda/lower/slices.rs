//! Products whose sums shards share. On a GPU, the columns of each are cut into eight slices, of which a shard has some.
//!
//! A whole device adds those of long products in halves: the first four in ascending order, then the others. Two shards have a half each,
//! which is one product in four slices. All other shards do not add their slices, so they have a product for each.

use super::super::sys;
use super::lowering::Lowering;
use crate::EngineError;
use crate::program::slices::{MAX_SLICES, TILE};
use crate::program::tensor::Slice;
use crate::program::{BufferId, Span, TensorId};

/// The columns of slices `first` to `first + count - 1` of a matrix.
fn slices(cols: usize, first: usize, count: usize) -> Span {
    let begin = |slice: usize| (slice * cols.div_ceil(TILE) / MAX_SLICES * TILE).min(cols);
    Span { first: begin(first), len: begin(first + count) - begin(first), of: cols }
}

/// Whether a product of so many columns is added in halves.
fn is_in_halves(cols: usize) -> bool {
    cols >= sys::PEN_HALVES_COLUMNS as usize
}

/// The tile at which slice `slice` of `count` begins, if a product has `tiles` tiles: `Slicing` in `cuda/linear/shape.h`.
fn begin_of_slice(slice: usize, count: usize, tiles: usize) -> usize {
    slice * tiles / count
}

/// Whether slices `first` to `first + count - 1` of a matrix are the slices of a product that has only their columns.
fn are_slices_of_product(cols: usize, first: usize, count: usize) -> bool {
    let all = slices(cols, first, count);
    let begins = |slice: usize| (slices(cols, first + slice, 1).first - all.first).div_ceil(TILE);
    (0..count).all(|slice| begins(slice) == begin_of_slice(slice, count, all.len.div_ceil(TILE)))
}

impl Lowering<'_> {
    /// A product in slices, or a shard's part of it.
    pub fn joined_product(&mut self, input: BufferId, (matrix, out): (TensorId, BufferId), add: bool) -> Result<(), EngineError> {
        let shard = self.from.scope.shard;
        if shard.is_whole() {
            let halves = u32::from(is_in_halves(self.from.tensor(matrix).cols));
            let (matrix, out) = (self.matrix(matrix)?, self.buffer(out));
            let epilogue = if add { sys::PEN_ADD } else { sys::PEN_STORE };
            let op = self.products_of(input, &[matrix], out);
            self.op(sys::pen_linear { epilogue, halves, ..op });
            return Ok(());
        }
        let (tensor, count) = (self.from.tensor(matrix).clone(), MAX_SLICES / shard.count);
        let Slice::Columns(own) = tensor.slice else { return Err(self.cannot("a shard has all columns of a matrix")) };
        self.in_halves = is_in_halves(own.of);
        let (first, each) = (shard.index * count, if count == 4 && self.in_halves { 4 } else { 1 });
        if own != slices(own.of, first, count) || (each > 1 && !are_slices_of_product(own.of, first, count)) {
            return Err(self.cannot(&format!("the {} columns of {} have other slices", own.of, tensor.name)));
        }
        for slice in (first..first + count).step_by(each) {
            let sums = self.partial_sums(out, slice - first);
            let part = self.slice_product(input, (matrix, sums), (own, slices(own.of, slice, each)), each)?;
            self.parts.push(part);
        }
        Ok(())
    }

    /// The product of some columns. Returns the buffer of its sums, or None if there are no columns.
    fn slice_product(
        &mut self,
        input: BufferId,
        (matrix, sums): (TensorId, u32),
        (own, columns): (Span, Span),
        slices: usize,
    ) -> Result<Option<u32>, EngineError> {
        if columns.len == 0 {
            return Ok(None);
        }
        let matrix = self.columns(matrix, columns)?;
        let op = self.products_of(input, &[matrix], sums);
        self.op(sys::pen_linear { first: (columns.first - own.first) as u32, slices: slices as u32, ..op });
        Ok(Some(sums))
    }

    /// The buffer of a shard's sums over one part of its columns.
    fn partial_sums(&mut self, out: BufferId, part: usize) -> u32 {
        const MORE: [&str; 3] = ["partial sums, 2nd slice", "partial sums, 3rd slice", "partial sums, 4th slice"];
        match part.checked_sub(1) {
            None => self.buffer(out),
            Some(more) => self.shared_floats(MORE[more], self.from.buffer(out).width),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{Shard, Slices};

    #[test]
    fn the_shards_columns_are_those_of_the_walk() {
        for cols in [512, 576, 704, 1024, 4096, 1000, 11_008] {
            for shard in [2, 4, 8].into_iter().flat_map(|count| (0..count).map(move |index| Shard { index, count })) {
                let Some((_, own)) = Slices::of(cols, 1, TILE).of_shard(shard) else { panic!("{cols} columns have eight slices") };
                let count = MAX_SLICES / shard.count;
                assert_eq!(own, slices(cols, shard.index * count, count), "{shard:?} of {cols}");
            }
        }
    }

    #[test]
    fn slices_of_half_a_matrix_may_differ() {
        let both = |cols| [0, 4].map(|first| are_slices_of_product(cols, first, 4));
        assert_eq!(both(4096), [true, true]);
        assert_eq!(both(256), [true, true], "every other slice is empty");
        assert_eq!(both(576), [true, true], "tiles 0 1 2 3 and 4 5 6 7-8");
        assert_eq!(both(704), [false, true], "slice 3 has tile 4, and in a product of 5 tiles it begins at tile 3");
    }
}
