//! [`Family`]: the differences between families of picture encoders.

use crate::arch::{Activation, Arch, NormKind};
use crate::tensor_roles::TensorRole;

/// Where a row that stands for the whole picture lies among a picture's patches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClassRow {
    None,
    First,
    Last,
}

/// How a table of positions is resized to a picture's grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Filter {
    /// Bilinear, with the corners of both grids aligned.
    Corners,
    /// Bilinear, as wide as the step between places if the grid is smaller than the table (antialiased).
    Bilinear,
    /// Bicubic with a = −3/4. Places outside the table repeat its border.
    Bicubic,
}

/// The embeddings of places that are added to patches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Places {
    None,
    /// One per patch of a picture of the encoder's size, and one for the class row.
    Learned,
    /// A square table of this many places per side. Row or column i of n takes place ⌊side · i / n⌋.
    Buckets(usize),
    /// A square table that is resized.
    Resized(Filter),
    /// A table for columns and one for rows.
    Axes,
}

/// How queries and keys are rotated by their patch's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rotation {
    None,
    /// Pairs of halves: the first half of them by the row, the second by the column (Qwen2-VL).
    Halves,
    /// Neighbours: the first half of the pairs by the row with even exponents, the second by the column with odd ones (Pixtral).
    RowsThenColumns,
    /// Neighbours: the pairs take turns, column first (Kimi-VL).
    Turns,
    /// Neighbours: the first half of the pairs by the column, the second by the row. Places count from 1, and the class row stays (Llama
    /// 4).
    ColumnsThenRows,
    /// The first half of a head by the column, the second by the row, each in pairs of its halves (Gemma 4).
    Quarters,
}

/// A step of a projector. Steps whose tensor is optional are left out if the file lacks the tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// A norm of rows, with these weights and biases.
    Norm(NormKind, TensorRole, Option<TensorRole>),
    /// An RMS norm without weights.
    Weightless,
    /// Joins a square of patches to one row, without the class row: patch by patch, or element by element if `interleaved`.
    Join {
        interleaved: bool,
    },
    /// The mean of a square of patches.
    Mean,
    Product(TensorRole, Option<TensorRole>),
    /// A product with a matrix that the file holds transposed.
    Transposed(TensorRole),
    Activate(Activation),
    /// activation(gate · x) · (up · x)
    Gated {
        activation: Activation,
        gate: TensorRole,
        up: TensorRole,
    },
    /// Multiplies rows by the root of their length.
    RootOfLength,
    /// (x − bias) · scale
    Standardise {
        bias: TensorRole,
        scale: TensorRole,
    },
    /// Learned queries attend to the picture's rows (MiniCPM-V).
    Resample,
    /// Adds a row of this role behind each row of the picture but the last.
    Breaks(TensorRole),
}

impl Step {
    /// The tensor without which the step is left out.
    pub fn tensor(self) -> Option<TensorRole> {
        match self {
            Step::Norm(_, role, _) | Step::Product(role, _) | Step::Transposed(role) | Step::Breaks(role) => Some(role),
            Step::Standardise { bias, .. } => Some(bias),
            _ => None,
        }
    }
}

/// The properties of a family. Everything else comes from the file's metadata and its tensors.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// `clip.projector_type`
    pub name: &'static str,
    /// The architectures of its language models. Empty: any.
    pub languages: &'static [&'static str],
    /// The tower's layers as files of today name them, and as old ones do, which name the two matrices of feed-forward parts the wrong way
    /// round.
    pub towers: [Arch; 2],
    /// The embedding length of a larger model of the family, and its tower's layers.
    pub larger: Option<(usize, [Arch; 2])>,
    /// What `clip.use_gelu` means.
    pub gelu: Activation,
    pub class_row: ClassRow,
    pub places: Places,
    pub rotation: Rotation,
    /// The key of the number of patches per side that become one row, and its default.
    pub merge: (&'static str, usize),
    /// Whether some layers see only windows of the picture.
    pub windows: bool,
    /// Whether pixels x become 2x − 1, whatever the file says.
    pub centred: bool,
    /// Whether there are no layers. A patch is as large as the square that becomes a row, and layer norms stand before and behind its
    /// embedding and behind its place.
    pub is_encoder_free: bool,
    pub projector: &'static [Step],
    /// The tensors outside of the layers that a file may lack.
    pub optional: &'static [TensorRole],
}
