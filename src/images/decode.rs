//! Bytes of a file into pixels, within limits.
//!
//! A header says how many pixels a file claims, and the limits are checked before memory for them is taken. A file that is too short for
//! its claim is refused as truncated, also before that (`structure.rs`), so few bytes cannot take much memory by lying.

use std::io::{Cursor, ErrorKind};

use image::metadata::Orientation;
use image::{ImageDecoder, ImageError, ImageReader, Limits};

use crate::pixels::{into_rgb, turned};
use crate::sniff::format_of;
use crate::{DecodeError, Format, Rgb, structure};

/// Memory for what a file holds besides its pixels: tables, texts, profiles [bytes].
const METADATA: u64 = 8 << 20;
/// Longest reason of the decoder that an error repeats [characters].
const MAX_REASON: usize = 120;

/// Limits of one picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeLimits {
    pub max_pixels: u64,
}

impl Default for DecodeLimits {
    /// 8000 × 8000 pixels, as Anthropic's API allows.
    fn default() -> Self {
        Self { max_pixels: 64_000_000 }
    }
}

/// What is known of a picture before its pixels are decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PictureHeader {
    pub format: Format,
    /// As decoded: after the orientation has been applied.
    pub width: u32,
    pub height: u32,
    memory: u64,
}

impl PictureHeader {
    /// Most memory that [`decode`] takes at any time, the result included [bytes].
    pub fn memory(&self) -> u64 {
        self.memory
    }
}

/// Reads a picture's format and size. Takes little memory, whatever the file claims.
///
/// # Errors
/// The file is of another type, truncated or damaged, or it has too many pixels.
pub fn read_header(bytes: &[u8], limits: &DecodeLimits) -> Result<PictureHeader, DecodeError> {
    open(bytes, limits).map(|(header, ..)| header)
}

/// Decodes a picture: the first frame, turned as its EXIF orientation says, composited onto white, 16 bits cut to 8.
///
/// # Errors
/// As in [`read_header`].
pub fn decode(bytes: &[u8], limits: &DecodeLimits) -> Result<Rgb, DecodeError> {
    let (header, orientation, decoder) = open(bytes, limits)?;
    let ((width, height), colour) = (decoder.dimensions(), decoder.color_type());
    let pixels = into_rgb(decoder, colour).map_err(|error| refusal(header.format, bytes.len(), &error))?;
    Ok(turned(Rgb { width, height, pixels }, orientation))
}

fn open<'a>(bytes: &'a [u8], limits: &DecodeLimits) -> Result<(PictureHeader, Orientation, impl ImageDecoder + use<'a>), DecodeError> {
    let format = format_of(bytes)?;
    let claim = structure::check(format, bytes)?;
    if let Some((width, height)) = claim.size {
        check_size(format, (width, height), limits)?;
    }
    if claim.least_bytes > bytes.len() as u64 {
        return Err(DecodeError::Truncated { format, bytes: bytes.len() });
    }
    let refusal = |error: ImageError| refusal(format, bytes.len(), &error);
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format.of_library());
    let mut library = Limits::no_limits();
    library.max_alloc = Some(METADATA + if format == Format::Gif { 4 * limits.max_pixels } else { 0 });
    reader.limits(library);
    let mut decoder = reader.into_decoder().map_err(refusal)?;
    let (width, height) = decoder.dimensions();
    check_size(format, (width, height), limits)?;
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let (swaps, pixels) = (swaps_sides(orientation), u64::from(width) * u64::from(height));
    let turning = if swaps { 3 * pixels } else { 0 };
    let decoding = decoder.total_bytes().max(3 * pixels) + claim.scratch_per_pixel * pixels;
    let memory = decoding.max(3 * pixels + turning) + bytes.len() as u64 + METADATA;
    let (width, height) = if swaps { (height, width) } else { (width, height) };
    Ok((PictureHeader { format, width, height, memory }, orientation, decoder))
}

fn check_size(format: Format, (width, height): (u32, u32), limits: &DecodeLimits) -> Result<(), DecodeError> {
    let max_pixels = limits.max_pixels;
    if u64::from(width) * u64::from(height) > max_pixels {
        return Err(DecodeError::TooManyPixels { format, width, height, max_pixels, side: max_pixels.isqrt() });
    }
    Ok(())
}

/// Whether the picture stands on its side in the file.
fn swaps_sides(orientation: Orientation) -> bool {
    use Orientation::{Rotate90, Rotate90FlipH, Rotate270, Rotate270FlipH};
    matches!(orientation, Rotate90 | Rotate270 | Rotate90FlipH | Rotate270FlipH)
}

/// What a client is told of an error of the library.
fn refusal(format: Format, bytes: usize, error: &ImageError) -> DecodeError {
    if let ImageError::Limits(_) = error {
        return DecodeError::TooMuchMemory { format };
    }
    let reason = error.to_string();
    let ends_early = ["unexpected end", "eof", "end of file", "fill whole buffer", "no more bytes"];
    if is_end_of_file(error) || ends_early.iter().any(|text| reason.to_lowercase().contains(text)) {
        return DecodeError::Truncated { format, bytes };
    }
    let line = reason.lines().next().unwrap_or_default();
    DecodeError::Damaged { format, reason: line.chars().take(MAX_REASON).collect() }
}

fn is_end_of_file(error: &ImageError) -> bool {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = source {
        if error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::UnexpectedEof) {
            return true;
        }
        source = error.source();
    }
    false
}
