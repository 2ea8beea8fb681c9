//! [`RowSet`] and [`Rule`]: the rows of a picture encoder, which are not one per row of a step.

use model::vision::{ClassRow, Filter};

/// Rows that belong together. A language model has one set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RowSet {
    /// The rows of a step.
    #[default]
    Step,
    /// One row per patch of each picture.
    Patches,
    /// The rows of the tower's layers: a picture's patches, and its class row.
    Tower,
    /// One row per square of patches.
    Cells,
    /// The queries that each picture has.
    Queries,
    /// Rows of cells with a row behind each but the last.
    Broken,
}

impl RowSet {
    pub const ALL: [Self; 6] = [Self::Step, Self::Patches, Self::Tower, Self::Cells, Self::Queries, Self::Broken];
}

/// How the rows of a [`Mix`](super::Mix) follow from the pictures' grids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// Each patch's row of the tower is that patch.
    Patches,
    /// Each class row is row 0.
    Class,
    /// The row of the place in raster order, before or behind that of the class row.
    Learned(ClassRow),
    /// The row of the place in a square table, in buckets.
    Buckets { side: usize },
    /// Rows of a square table that is resized to the grid.
    Resized { side: usize, filter: Filter },
    /// The sum of the column's row and, `count` rows behind the table's first, the row's.
    Axes { count: usize },
    /// Part i of a cell is its patch i.
    Cells { side: usize },
    /// The mean of a cell's patches.
    Mean { side: usize },
    /// Each cell's row among rows with breaks.
    Cell,
    /// Each break is row 0.
    Break,
    /// Query i of a picture is row i.
    Query,
    /// Part 0 is the column's row, part 1 the row's.
    Coordinates,
}

/// The rows that attention covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Within {
    Picture,
    Window,
}
