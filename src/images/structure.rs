//! What a file's structure tells before the decoder sees it: the size that it claims, and how long it must be for that.
//!
//! The decoders believe headers. JPEG's fills a truncated picture with grey, and WebP's takes memory for the size in a frame's own header
//! before it compares that with the canvas.

use crate::{DecodeError, Format};

/// The claim of a file.
pub struct Claim {
    /// Width and height in pixels, if they are known without the decoder.
    pub size: Option<(u32, u32)>,
    /// Fewest bytes that a file of this size has.
    pub least_bytes: u64,
    /// Memory that the decoder takes besides its result [bytes per pixel].
    pub scratch_per_pixel: u64,
}

/// Checks a file's structure.
///
/// # Errors
/// The file is truncated, or its parts do not fit each other.
pub fn check(format: Format, bytes: &[u8]) -> Result<Claim, DecodeError> {
    match format {
        Format::Png => png(bytes),
        Format::Jpeg => jpeg(bytes),
        Format::WebP => webp(bytes),
        Format::Gif => Ok(Claim { size: gif_size(bytes), least_bytes: 0, scratch_per_pixel: 4 }),
    }
}

fn truncated(format: Format, bytes: &[u8]) -> DecodeError {
    DecodeError::Truncated { format, bytes: bytes.len() }
}

fn damaged(format: Format, reason: &str) -> DecodeError {
    DecodeError::Damaged { format, reason: reason.to_owned() }
}

fn u16_be(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?)))
}

fn u16_le(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?)))
}

fn u32_le(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The size of the logical screen.
fn gif_size(bytes: &[u8]) -> Option<(u32, u32)> {
    Some((u16_le(bytes, 6)?, u16_le(bytes, 8)?))
}

/// Deflate shrinks to no less than a 1032nd.
const DEFLATE_RATIO: u64 = 1032;

fn png(bytes: &[u8]) -> Result<Claim, DecodeError> {
    let field = |at: usize| Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
    let sizes = || Some((field(16)?, field(20)?, *bytes.get(24)?, *bytes.get(25)?));
    let (width, height, depth, colour) = sizes().ok_or_else(|| truncated(Format::Png, bytes))?;
    let samples = match colour {
        2 => 3,
        4 => 2,
        6 => 4,
        _ => 1,
    };
    let row = (u64::from(width) * samples * u64::from(depth)).div_ceil(8);
    let least_bytes = (row.saturating_mul(u64::from(height))) / DEFLATE_RATIO;
    Ok(Claim { size: Some((width, height)), least_bytes, scratch_per_pixel: 0 })
}

/// Most scans of a JPEG. Encoders make about ten. Each one passes over the whole picture, so a file of nothing but scans takes hours.
const MAX_SCANS: usize = 100;
/// A block of 8 × 8 pixels takes at least a bit.
const PIXELS_PER_BYTE: u64 = 512;

fn jpeg(bytes: &[u8]) -> Result<Claim, DecodeError> {
    let (mut at, mut size, mut scans, mut is_progressive) = (2, None, 0, false);
    loop {
        at += bytes[at.min(bytes.len())..].iter().position(|&b| b == 0xff).ok_or_else(|| truncated(Format::Jpeg, bytes))?;
        let marker = *bytes.get(at + 1).ok_or_else(|| truncated(Format::Jpeg, bytes))?;
        match marker {
            0xff => at += 1,
            0x00 | 0x01 | 0xd0..=0xd8 => at += 2,
            0xd9 => break,
            _ => {
                let length = u16_be(bytes, at + 2).ok_or_else(|| truncated(Format::Jpeg, bytes))?;
                if matches!(marker, 0xc0..=0xcf) && !matches!(marker, 0xc4 | 0xc8 | 0xcc) {
                    size = u16_be(bytes, at + 7).zip(u16_be(bytes, at + 5));
                    is_progressive = marker == 0xc2;
                }
                // The data after a scan's header has no markers but restarts, which are passed over like any byte.
                scans += usize::from(marker == 0xda);
                at += 2 + length as usize;
            }
        }
        if scans > MAX_SCANS {
            return Err(damaged(Format::Jpeg, "it has more than 100 scans"));
        }
    }
    let size = size.ok_or_else(|| damaged(Format::Jpeg, "it has no frame"))?;
    if scans == 0 {
        return Err(truncated(Format::Jpeg, bytes));
    }
    let least_bytes = u64::from(size.0) * u64::from(size.1) / PIXELS_PER_BYTE;
    // A progressive picture's coefficients are kept until the last scan: up to four components of 16 bits.
    Ok(Claim { size: Some(size), least_bytes, scratch_per_pixel: if is_progressive { 10 } else { 2 } })
}

fn webp(bytes: &[u8]) -> Result<Claim, DecodeError> {
    let length = u32_le(bytes, 4).map_or(0, |length| length as usize + 8);
    let mut chunks = Chunks { bytes: &bytes[..bytes.len().min(length)], at: 12 };
    let (mut canvas, mut is_animated, mut frames) = (None, false, Vec::new());
    // All chunks, because the decoder takes memory for a chunk's claimed length.
    while let Some((name, data)) = chunks.next()? {
        match name {
            b"VP8X" => {
                is_animated = data.first().is_some_and(|flags| flags & 2 != 0);
                canvas = canvas_size(data);
            }
            b"ANMF" => {
                let mut inner = Chunks { bytes: data.get(16..).unwrap_or_default(), at: 0 };
                while let Some((name, data)) = inner.next()? {
                    frames.extend(frame_size(name, data));
                }
            }
            _ => frames.extend(frame_size(name, data)),
        }
    }
    let first = *frames.first().ok_or_else(|| truncated(Format::WebP, bytes))?;
    let canvas = canvas.unwrap_or(first);
    let fits = |&(width, height): &(u32, u32)| width <= canvas.0 && height <= canvas.1 && (is_animated || (width, height) == canvas);
    if !frames.iter().all(fits) {
        return Err(damaged(Format::WebP, "a frame has another size than the canvas"));
    }
    Ok(Claim { size: Some(canvas), least_bytes: 0, scratch_per_pixel: if is_animated { 12 } else { 8 } })
}

fn canvas_size(data: &[u8]) -> Option<(u32, u32)> {
    let side = |at: usize| Some((u32_le(data, at)? & 0xff_ffff) + 1);
    // The height ends with the chunk.
    let height = u32::from_le_bytes([*data.get(7)?, *data.get(8)?, *data.get(9)?, 0]) + 1;
    Some((side(4)?, height))
}

/// The size in the header of a frame's data.
fn frame_size(name: &[u8; 4], data: &[u8]) -> Option<(u32, u32)> {
    match name {
        b"VP8 " => Some((u16_le(data, 6)? & 0x3fff, u16_le(data, 8)? & 0x3fff)),
        b"VP8L" => {
            let sides = u32_le(data, 1)?;
            Some(((sides & 0x3fff) + 1, (sides >> 14 & 0x3fff) + 1))
        }
        _ => None,
    }
}

/// A chunk's name and data.
type Chunk<'a> = (&'a [u8; 4], &'a [u8]);

/// The chunks of a RIFF file.
struct Chunks<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Chunks<'a> {
    fn next(&mut self) -> Result<Option<Chunk<'a>>, DecodeError> {
        let rest = &self.bytes[self.at.min(self.bytes.len())..];
        let Some(name) = rest.first_chunk() else { return Ok(None) };
        let length = u32_le(rest, 4).ok_or_else(|| truncated(Format::WebP, self.bytes))? as usize;
        let data = rest[8..].get(..length).ok_or_else(|| truncated(Format::WebP, self.bytes))?;
        self.at += 8 + length + length % 2;
        Ok(Some((name, data)))
    }
}
