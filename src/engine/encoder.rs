//! [`Encoder`]: turns pictures into rows of embeddings for a language model.

use crate::{BackendKind, EngineError};
use model::VisionSpec;

/// A picture as an encoder takes it: resized to whole patches.
#[derive(Clone, Copy, Debug)]
pub struct Picture<'a> {
    pub width: usize,
    pub height: usize,
    /// [height, width, 3]
    pub rgb: &'a [u8],
}

/// How an encoder is opened.
#[derive(Clone, Copy, Debug)]
pub struct EncoderOptions {
    /// The device, that of the language model: the backend, and the index among its devices.
    pub place: (BackendKind, u32),
    /// Threads on the CPU. 0: one per physical core.
    pub threads: usize,
    /// The most patches of a picture, for which a device keeps memory.
    pub most_patches: usize,
}

/// A picture encoder, open on a device.
pub trait Encoder: Send {
    fn spec(&self) -> &VisionSpec;

    /// The row that ends a row of tiles (LLaVA 1.6). Empty if the file has none.
    fn newline_row(&self) -> &[f32];

    /// Encodes pictures. Returns the rows of each, one after another [rows, row width].
    ///
    /// # Errors
    /// [`EngineError::InvalidBatch`] names a picture that the encoder does not take. [`EngineError::Tensor`] if the file has changed.
    fn encode(&mut self, pictures: &[Picture]) -> Result<Vec<Vec<f32>>, EngineError>;
}

/// The patches per column and per row of each picture.
///
/// # Errors
/// [`EngineError::InvalidBatch`] names a picture that the encoder does not take.
pub fn grids(pictures: &[Picture], spec: &VisionSpec) -> Result<Vec<[usize; 2]>, EngineError> {
    let grid = |(i, picture): (usize, &Picture)| picture.grid(spec).map_err(|why| EngineError::InvalidBatch(format!("picture {i}: {why}")));
    pictures.iter().enumerate().map(grid).collect()
}

impl Picture<'_> {
    /// The patches per column and per row.
    ///
    /// # Errors
    /// Why the encoder does not take the picture.
    pub fn grid(&self, spec: &VisionSpec) -> Result<[usize; 2], String> {
        let (size, Self { width, height, rgb }) = (spec.patch_size, *self);
        if rgb.len() != 3 * width * height || !width.is_multiple_of(size) || !height.is_multiple_of(size) {
            return Err(format!("{} bytes of {width} × {height} pixels, expected three per pixel and patches of {size}", rgb.len()));
        }
        let grid = [height / size, width / size];
        spec.check_grid(grid).map(|()| grid)
    }

    /// Writes the pixels of a patch, colour by colour and row by row [3, patch size, patch size].
    pub fn write_patch(&self, spec: &VisionSpec, [row, col]: [usize; 2], out: &mut [f32]) {
        let size = spec.patch_size;
        for (colour, out) in out.chunks_exact_mut(size * size).enumerate() {
            let (mean, deviation) = (spec.pixels.mean[colour], spec.pixels.deviation[colour]);
            for (y, out) in out.chunks_exact_mut(size).enumerate() {
                let first = (row * size + y) * self.width + col * size;
                for (x, out) in out.iter_mut().enumerate() {
                    *out = (f32::from(self.rgb[(first + x) * 3 + colour]) / 255.0 - mean) / deviation;
                }
            }
        }
    }
}
