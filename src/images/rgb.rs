//! A picture's pixels.

use std::fmt;

/// 8-bit RGB pixels.
#[derive(Clone, PartialEq, Eq)]
pub struct Rgb {
    pub width: u32,
    pub height: u32,
    /// [height, width, 3], rows from the top
    pub pixels: Vec<u8>,
}

impl Rgb {
    /// A picture of one colour.
    pub fn filled(width: u32, height: u32, colour: [u8; 3]) -> Self {
        let pixels = colour.into_iter().cycle().take(3 * width as usize * height as usize).collect();
        Self { width, height, pixels }
    }

    /// One row of pixels.
    pub fn row(&self, y: u32) -> &[u8] {
        let stride = 3 * self.width as usize;
        &self.pixels[y as usize * stride..(y as usize + 1) * stride]
    }

    /// The part of `width` × `height` pixels whose top left corner is (left, top).
    pub fn crop(&self, left: u32, top: u32, width: u32, height: u32) -> Self {
        let columns = 3 * left as usize..3 * (left + width) as usize;
        let rows = (top..top + height).map(|y| &self.row(y)[columns.clone()]);
        Self { width, height, pixels: rows.collect::<Vec<_>>().concat() }
    }

    /// CRC-32 of the pixels.
    pub fn crc32(&self) -> u32 {
        let mut crc = flate2::Crc::new();
        crc.update(&self.pixels);
        crc.sum()
    }

    /// (x / 255 - mean) / std of each sample. [3, height, width]
    pub fn planes(&self, mean: &[f32; 3], std: &[f32; 3]) -> Vec<f32> {
        let table = normalised(mean, std);
        let channel = |c: usize| self.pixels.iter().skip(c).step_by(3).map(move |&x| (c, x));
        (0..3).flat_map(channel).map(|(c, x)| table[c][usize::from(x)]).collect()
    }

    /// The planes of each square of `patch` × `patch` pixels, in raster order, normalised as in [`Self::planes`]. Pixels to the right and
    /// at the bottom that fill no square are left out. [patches, 3, patch, patch]
    pub fn patches(&self, patch: u32, mean: &[f32; 3], std: &[f32; 3]) -> Vec<f32> {
        let table = normalised(mean, std);
        let (across, down, side) = (self.width / patch, self.height / patch, patch as usize);
        let mut values = Vec::with_capacity(3 * side * side * (across * down) as usize);
        for (row, column) in (0..down).flat_map(|row| (0..across).map(move |column| (row, column))) {
            let columns = 3 * column as usize * side..3 * (column as usize + 1) * side;
            for (c, table) in table.iter().enumerate() {
                for y in row * patch..(row + 1) * patch {
                    values.extend(self.row(y)[columns.clone()].iter().skip(c).step_by(3).map(|&x| table[usize::from(x)]));
                }
            }
        }
        values
    }
}

/// The value of each sample in each channel.
fn normalised(mean: &[f32; 3], std: &[f32; 3]) -> [[f32; 256]; 3] {
    std::array::from_fn(|c| std::array::from_fn(|x| (x as f32 / 255.0 - mean[c]) / std[c]))
}

impl fmt::Debug for Rgb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} × {} pixels, CRC-32 {:08x}", self.width, self.height, self.crc32())
    }
}
