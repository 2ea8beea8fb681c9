//! [`Encoder`]: turns pictures into rows of embeddings for a language model.

use std::ops::Range;

use crate::{BackendKind, EngineError};
use model::VisionSpec;

/// The most pictures of a pass.
pub const MAX_PICTURES_PER_PASS: usize = 16;

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

    /// The most patches of several pictures that are encoded in one pass. 0: each picture has a pass of its own.
    fn patches_per_pass(&self) -> usize;

    /// Encodes pictures. Returns the rows of each, one after another [rows, row width]. They have the same bits in any company.
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

/// Cuts pictures of these patches into passes: each has one picture, or several of at most `most_patches` in all.
pub fn passes(num_patches: &[usize], most_patches: usize) -> Vec<Range<usize>> {
    let mut passes: Vec<Range<usize>> = Vec::new();
    let mut patches = 0;
    for (i, &more) in num_patches.iter().enumerate() {
        match passes.last_mut() {
            Some(last) if patches + more <= most_patches && last.len() < MAX_PICTURES_PER_PASS => {
                last.end = i + 1;
                patches += more;
            }
            _ => {
                passes.push(i..i + 1);
                patches = more;
            }
        }
    }
    passes
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_share_a_pass_while_their_patches_fit() {
        assert_eq!(passes(&[], 100), []);
        assert_eq!(passes(&[40, 60, 1, 300, 99], 100), [0..2, 2..3, 3..4, 4..5]);
        assert_eq!(passes(&[1, 1], 0), [0..1, 1..2], "each has a pass of its own");
        assert_eq!(passes(&[1; 40], 100), [0..16, 16..32, 32..40]);
    }
}
