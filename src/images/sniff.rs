//! The type of a file, told by its first bytes. A client's `media_type` is not asked, because many clients send a wrong one.

use crate::{DecodeError, Format};

/// First bytes at an offset, and the name of the type that is refused.
const REFUSED: &[(usize, &[u8], &str)] = &[
    (0, b"BM", "a BMP picture"),
    (0, b"II*\0", "a TIFF picture"),
    (0, b"MM\0*", "a TIFF picture"),
    (4, b"ftypheic", "a HEIC picture"),
    (4, b"ftypheix", "a HEIC picture"),
    (4, b"ftyphei", "a HEIF picture"),
    (4, b"ftyphev", "a HEIF picture"),
    (4, b"ftypmif1", "a HEIF picture"),
    (4, b"ftypmsf1", "a HEIF picture"),
    (4, b"ftypavi", "an AVIF picture"),
    (4, b"ftyp", "an MP4 video"),
    (4, b"moov", "a QuickTime video"),
    (0, b"\x1aE\xdf\xa3", "a WebM or Matroska video"),
    (8, b"AVI ", "an AVI video"),
    (0, b"\0\0\x01\xba", "an MPEG video"),
    (0, b"\0\0\x01\xb3", "an MPEG video"),
    (0, b"FLV\x01", "a Flash video"),
    (0, b"OggS", "an Ogg file"),
    (8, b"WAVE", "a WAV file"),
    (0, b"ID3", "an MP3 file"),
    (0, b"\0\0\x01\0", "an icon"),
    (0, b"8BPS", "a Photoshop file"),
    (0, b"\xff\x0a", "a JPEG XL picture"),
    (4, b"JXL \r\n\x87\n", "a JPEG XL picture"),
    (4, b"jP  \r\n\x87\n", "a JPEG 2000 picture"),
    (0, b"qoif", "a QOI picture"),
    (0, b"%PDF-", "a PDF file"),
    (0, b"PK\x03\x04", "a ZIP file"),
    (0, b"\x1f\x8b", "a gzip file"),
];

/// Bytes at the beginning of a text in which a tag of SVG is looked for.
const SVG_HEAD: usize = 1024;

/// The format of a file.
///
/// # Errors
/// The file is empty or of another type, which the error names if it is known.
pub fn format_of(bytes: &[u8]) -> Result<Format, DecodeError> {
    match bytes {
        [] => Err(DecodeError::Empty),
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Ok(Format::Png),
        [0xff, 0xd8, 0xff, ..] => Ok(Format::Jpeg),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Ok(Format::WebP),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Ok(Format::Gif),
        _ => Err(refused(bytes).map_or(DecodeError::Unknown, DecodeError::Unsupported)),
    }
}

fn refused(bytes: &[u8]) -> Option<&'static str> {
    let starts = |&&(offset, magic, _): &&(usize, &[u8], _)| bytes.get(offset..).is_some_and(|rest| rest.starts_with(magic));
    let named = REFUSED.iter().find(starts).map(|&(_, _, name)| name);
    named.or_else(|| is_svg(bytes).then_some("an SVG drawing"))
}

fn is_svg(bytes: &[u8]) -> bool {
    let head = &bytes[..bytes.len().min(SVG_HEAD)];
    let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start();
    head.starts_with(b"<") && head.windows(4).any(|tag| tag.eq_ignore_ascii_case(b"<svg"))
}
