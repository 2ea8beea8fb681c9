//! [`VisionSpec`]: the hyperparameters of a picture encoder.

use super::family::{Family, Places, Step};
use crate::spec::ModelSpec;

/// Layers that see only windows of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Every so manyth layer sees the whole picture.
    pub every: usize,
    /// Patches per side of a window: a multiple of those that become one row.
    pub side: usize,
}

/// What the file says of the pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pixels {
    /// Per colour: a pixel x of 0 to 1 becomes (x − mean) / deviation.
    pub mean: [f32; 3],
    pub deviation: [f32; 3],
}

/// A valid picture encoder: every value was checked when it was read.
#[derive(Clone, Debug)]
pub struct VisionSpec {
    pub family: &'static Family,
    /// The tower's layers, as those of a model without a vocabulary.
    pub tower: ModelSpec,
    pub patch_size: usize,
    /// The pixels per side of the pictures that the encoder was trained for. 0 if they vary.
    pub image_size: usize,
    /// The patches per side that become one row.
    pub merge: usize,
    pub windows: Option<Windows>,
    pub pixels: Pixels,
    /// The layers behind which rows are projected for the language model's first layers (deepstack).
    pub deep_layers: Vec<usize>,
    /// The elements of a row that enter the language model's stream.
    pub output_dim: usize,
    /// The learned queries of a resampler. 0 if there is none.
    pub num_queries: usize,
    /// The rows of the table of places. Per axis, if there is a table per axis.
    pub num_places: usize,
    /// The steps of the projector that the file has the tensors of.
    pub steps: Vec<Step>,
}

impl VisionSpec {
    /// The floats of a patch.
    pub fn patch_len(&self) -> usize {
        3 * self.patch_size * self.patch_size
    }

    /// The floats of an output row: those for the stream, then those for each layer of the deepstack.
    pub fn row_width(&self) -> usize {
        self.output_dim * (1 + self.deep_layers.len())
    }

    /// The rows that a picture of `rows` × `cols` patches becomes.
    pub fn num_rows(&self, [rows, cols]: [usize; 2]) -> usize {
        if self.num_queries > 0 {
            return self.num_queries;
        }
        let cells = (rows / self.merge) * (cols / self.merge);
        let has_breaks = self.steps.iter().any(|step| matches!(step, Step::Breaks(_)));
        cells + if has_breaks { (rows / self.merge).saturating_sub(1) } else { 0 }
    }

    /// Checks that the encoder takes a picture of `rows` × `cols` patches.
    ///
    /// # Errors
    /// What the encoder takes.
    pub fn check_grid(&self, [rows, cols]: [usize; 2]) -> Result<(), String> {
        let Self { merge, num_places, .. } = *self;
        if rows == 0 || cols == 0 || !rows.is_multiple_of(merge) || !cols.is_multiple_of(merge) {
            return Err(format!("a picture of {rows} × {cols} patches, expected multiples of {merge}"));
        }
        let side = self.image_size / self.patch_size;
        match self.family.places {
            Places::Learned if [rows, cols] != [side; 2] => Err(format!("a picture of {rows} × {cols} patches, expected {side} × {side}")),
            Places::Axes if rows.max(cols) > num_places => {
                Err(format!("a picture of {rows} × {cols} patches, expected at most {num_places} per side"))
            }
            _ => Ok(()),
        }
    }
}
