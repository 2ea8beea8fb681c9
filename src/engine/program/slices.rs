//! [`Slices`]: how the sum over a matrix's columns is cut, so that shards can share it.
//!
//! The columns are cut into eight slices. Each slice is summed by itself, and the sums are added as the tree
//! ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)). A shard of two, four or eight has a whole subtree, so the shards exchange one sum each, and
//! together they have the bits of one device.
//!
//! Slice `s` of eight begins at tile ⌊s · tiles / 8⌋ of 64 columns, as on the GPU (`cuda/linear/linear.h`). If such a slice would be empty
//! or too short for a kernel, or would cut what a kernel takes as one unit, neighbouring slices are joined: four, two or one are left.

use super::scope::{Shard, Span};

/// The most slices: the leaves of the tree.
pub const MAX_SLICES: usize = 8;

/// The columns of a tile, which is the shortest slice.
pub const TILE: usize = 64;

/// Neighbouring slices of a matrix's columns: one, two, four or eight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slices {
    count: usize,
    ends: [usize; MAX_SLICES],
}

impl Slices {
    /// One slice of all columns.
    pub fn one(cols: usize) -> Self {
        Self { count: 1, ends: [cols; MAX_SLICES] }
    }

    /// The slices of a matrix. `unit` is the number of columns that cannot be cut. A slice has at least `least` columns, or a tile.
    pub fn of(cols: usize, unit: usize, least: usize) -> Self {
        let tiles = cols.div_ceil(TILE);
        let end = |slice: usize, count: usize| (slice * tiles / count * TILE).min(cols);
        let is_long = |count: usize| tiles / count * TILE >= least.max(TILE);
        let fits = |count: usize| is_long(count) && (1..count).all(|slice| end(slice, count).is_multiple_of(unit));
        match [8, 4, 2].into_iter().find(|&count| fits(count)) {
            Some(count) => Self { count, ends: std::array::from_fn(|slice| end((slice + 1).min(count), count)) },
            None => Self::one(cols),
        }
    }

    /// The slices of a shard, whose ends count from its own first column, and its columns. None if there are fewer slices than shards.
    pub fn of_shard(&self, shard: Shard) -> Option<(Self, Span)> {
        let count = (self.count / shard.count).max(1);
        let first = if shard.index == 0 { 0 } else { self.ends[shard.index * count - 1] };
        let ends = std::array::from_fn(|slice| self.ends[(shard.index * count + slice.min(count - 1)).min(MAX_SLICES - 1)] - first);
        let columns = Span { first, len: ends[count - 1], of: self.cols() };
        (self.count >= shard.count).then_some((Self { count, ends }, columns))
    }

    /// The number of columns.
    pub fn cols(&self) -> usize {
        self.ends[self.count - 1]
    }

    /// The column behind the last one of each slice.
    pub fn ends(&self) -> &[usize] {
        &self.ends[..self.count]
    }
}

/// Adds up the sums of slices as the tree.
#[inline(always)]
pub fn tree(sums: &[f32]) -> f32 {
    match *sums {
        [a] => a,
        [a, b] => a + b,
        [a, b, c, d] => (a + b) + (c + d),
        [a, b, c, d, e, f, g, h] => ((a + b) + (c + d)) + ((e + f) + (g + h)),
        _ => unreachable!("slices are one, two, four or eight"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_begin_at_the_gpus_tiles() {
        assert_eq!(Slices::of(4096, 256, TILE).ends(), [512, 1024, 1536, 2048, 2560, 3072, 3584, 4096]);
        // nine tiles: the last slice has two
        assert_eq!(Slices::of(576, 32, TILE).ends(), [64, 128, 192, 256, 320, 384, 448, 576]);
        assert_eq!(Slices::of(1000, 8, TILE).ends(), [128, 256, 384, 512, 640, 768, 896, 1000]);
    }

    #[test]
    fn slices_are_joined_rather_than_empty_or_cut() {
        assert_eq!(Slices::of(1024, 256, TILE).ends(), [256, 512, 768, 1024]);
        assert_eq!(Slices::of(4864, 256, TILE).ends(), [4864], "half of it cuts a block");
        assert_eq!(Slices::of(320, 32, TILE).ends(), [64, 128, 192, 320]);
        assert_eq!(Slices::of(1536, 32, 512).ends(), [768, 1536], "four slices are too short");
        assert_eq!(Slices::of(40, 32, TILE).ends(), [40]);
    }

    #[test]
    fn the_shards_slices_are_those_of_the_whole() {
        for (cols, unit) in [(576, 32), (4096, 256), (1000, 8), (1024, 256), (40, 8)] {
            let whole = Slices::of(cols, unit, TILE);
            for count in [1, 2, 4, 8] {
                let shards: Vec<_> = (0..count).map_while(|index| whole.of_shard(Shard { index, count })).collect();
                assert_eq!(shards.len(), if whole.ends().len() < count { 0 } else { count }, "{count} shards of {cols} columns");
                let ends: Vec<usize> = shards.iter().flat_map(|(own, at)| own.ends().iter().map(|end| at.first + end)).collect();
                assert!(ends.is_empty() || ends == whole.ends(), "{ends:?}");
            }
        }
    }

    #[test]
    fn subtrees_join_to_the_tree() {
        let sums: [f32; 8] = std::array::from_fn(|i| 0.1 * 7f32.powi(i as i32));
        for parts in [1, 2, 4, 8] {
            let joined: Vec<f32> = sums.chunks_exact(8 / parts).map(tree).collect();
            assert_eq!(tree(&joined).to_bits(), tree(&sums).to_bits());
        }
        assert_ne!(tree(&sums).to_bits(), sums.iter().sum::<f32>().to_bits(), "the order matters");
    }
}
