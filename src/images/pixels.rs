//! Samples of any colour type into RGB, in the buffer that they were decoded into.

use image::metadata::Orientation;
use image::{ColorType, DynamicImage, ImageBuffer, ImageDecoder, ImageResult};

use crate::Rgb;

/// Decodes into RGB pixels: alpha is composited onto white, and 16 bits are cut to 8.
pub fn into_rgb(decoder: impl ImageDecoder, colour: ColorType) -> ImageResult<Vec<u8>> {
    let total = decoder.total_bytes() as usize;
    let size = usize::from(colour.bytes_per_pixel());
    let length = 3 * (total / size);
    let mut buffer = vec![0; total.max(length)];
    // A smaller pixel stands so far behind its place that the pixels before it, written from the front, end where it begins.
    let start = length.saturating_sub(total);
    decoder.read_image(&mut buffer[start..start + total])?;
    match colour {
        ColorType::L8 => convert(&mut buffer, start, |[l]: [u8; 1]| [l; 3]),
        ColorType::La8 => convert(&mut buffer, start, |[l, a]: [u8; 2]| on_white([l; 3], a)),
        ColorType::Rgba8 => convert(&mut buffer, start, |[r, g, b, a]: [u8; 4]| on_white([r, g, b], a)),
        ColorType::L16 => convert(&mut buffer, start, |l: [u8; 2]| [cut(l, 0); 3]),
        ColorType::La16 => convert(&mut buffer, start, |la: [u8; 4]| on_white([cut(la, 0); 3], cut(la, 1))),
        ColorType::Rgb16 => convert(&mut buffer, start, |rgb: [u8; 6]| [cut(rgb, 0), cut(rgb, 1), cut(rgb, 2)]),
        ColorType::Rgba16 => convert(&mut buffer, start, |p: [u8; 8]| on_white([cut(p, 0), cut(p, 1), cut(p, 2)], cut(p, 3))),
        // RGB already; the decoders of the four formats give no other type.
        _ => {}
    }
    buffer.truncate(length);
    buffer.shrink_to_fit();
    Ok(buffer)
}

/// Replaces pixels of `N` bytes, which lie from `start` on, by RGB pixels from the front.
fn convert<const N: usize>(buffer: &mut [u8], start: usize, rgb: impl Fn([u8; N]) -> [u8; 3]) {
    for i in 0..(buffer.len() - start) / N {
        let from = start + N * i;
        let pixel = std::array::from_fn(|k| buffer[from + k]);
        buffer[3 * i..3 * i + 3].copy_from_slice(&rgb(pixel));
    }
}

/// The upper 8 bits of the `i`-th sample of 16 bits, which are in the machine's order.
fn cut<const N: usize>(pixel: [u8; N], i: usize) -> u8 {
    (u16::from_ne_bytes([pixel[2 * i], pixel[2 * i + 1]]) >> 8) as u8
}

/// A pixel of some alpha over white.
fn on_white(rgb: [u8; 3], alpha: u8) -> [u8; 3] {
    let alpha = u32::from(alpha);
    rgb.map(|x| ((u32::from(x) * alpha + 255 * (255 - alpha) + 127) / 255) as u8)
}

/// Turns a picture as its EXIF orientation says.
pub fn turned(picture: Rgb, orientation: Orientation) -> Rgb {
    if orientation == Orientation::NoTransforms {
        return picture;
    }
    let Rgb { width, height, pixels } = picture;
    let buffer = ImageBuffer::from_raw(width, height, pixels).expect("a picture has its pixels");
    let mut image = DynamicImage::ImageRgb8(buffer);
    image.apply_orientation(orientation);
    let (width, height) = (image.width(), image.height());
    Rgb { width, height, pixels: image.into_rgb8().into_raw() }
}
