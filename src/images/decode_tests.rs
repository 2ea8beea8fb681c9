//! Decoding against Pillow's pixels (`decoding.json.gz`), and files that lie, end early or are damaged.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;
use serde_json::Value;

use crate::{DecodeError, DecodeLimits, Format, decode, read_header};

/// Limits that keep damaged files quick.
const SMALL: DecodeLimits = DecodeLimits { max_pixels: 1 << 16 };

struct File {
    name: String,
    bytes: Vec<u8>,
    case: Value,
}

fn files() -> Vec<File> {
    let data: Value = serde_json::from_str(&fixtures::packed_text("images/decoding.json.gz")).expect("JSON");
    let file = |case: &Value| {
        let bytes = STANDARD.decode(case["file"].as_str().expect("a file")).expect("base64");
        File { name: case["name"].as_str().expect("a name").to_owned(), bytes, case: case.clone() }
    };
    data["files"].as_array().expect("files").iter().map(file).collect()
}

fn file(name: &str) -> Vec<u8> {
    files().into_iter().find(|file| file.name == name).expect("a file of this name").bytes
}

/// The reason as the reference data words it.
fn reason(error: &DecodeError) -> &'static str {
    match error {
        DecodeError::TooManyPixels { .. } | DecodeError::TooMuchMemory { .. } => "too many pixels",
        DecodeError::Truncated { .. } => "truncated",
        DecodeError::Unknown => "unknown type",
        DecodeError::Unsupported(_) => "unsupported type; the message names the four that are read",
        DecodeError::Empty | DecodeError::Damaged { .. } => "damaged",
    }
}

/// What is wrong with the result of a file.
fn fault(file: &File) -> Option<String> {
    let File { bytes, case, .. } = file;
    let picture = match decode(bytes, &DecodeLimits::default()) {
        Err(error) if case["error"] == reason(&error) => return None,
        Err(error) => return Some(error.to_string()),
        Ok(_) if !case["error"].is_null() => return Some("is decoded".to_owned()),
        Ok(picture) => picture,
    };
    if (case["width"].as_u64(), case["height"].as_u64()) != (Some(picture.width.into()), Some(picture.height.into())) {
        return Some(format!("{picture:?}"));
    }
    let expected = STANDARD.decode(case["rgb"].as_str().expect("pixels")).expect("base64");
    let differences: Vec<u8> = picture.pixels.iter().zip(&expected).map(|(a, b)| a.abs_diff(*b)).collect();
    let most = u64::from(*differences.iter().max().expect("a sample"));
    let mean = differences.iter().map(|&x| f64::from(x)).sum::<f64>() / differences.len() as f64;
    let is_near = Some(most) <= case["max_difference"].as_u64() && Some(mean) <= case["max_mean_difference"].as_f64();
    (!is_near || picture.pixels.len() != expected.len()).then(|| format!("differs by {most}, {mean} on average"))
}

#[test]
fn files_give_pillows_pixels_or_the_error_due() {
    let wrong: Vec<String> = files().iter().filter_map(|file| fault(file).map(|fault| format!("{}: {fault}", file.name))).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn headers_tell_the_size_that_decoding_gives() {
    for File { name, bytes, .. } in files() {
        let (header, picture) = (read_header(&bytes, &SMALL), decode(&bytes, &SMALL));
        match (header, picture) {
            (Ok(header), Ok(picture)) => assert_eq!((header.width, header.height), (picture.width, picture.height), "{name}"),
            (_, Err(_)) => {}
            (Err(error), Ok(_)) => panic!("{name}: only the header fails: {error}"),
        }
    }
}

#[test]
fn every_beginning_of_a_file_is_refused_or_decoded() {
    // An animation's first frame is whole long before the file ends.
    let is_still = |file: &&File| file.case["error"].is_null() && !file.name.contains("animated");
    for File { name, bytes, .. } in files().iter().filter(is_still) {
        let mut refused = 0;
        for end in 0..bytes.len() {
            match decode(&bytes[..end], &SMALL) {
                Ok(picture) => assert!(picture.pixels.len() <= 3 << 16, "{name}"),
                Err(error) => refused += usize::from(!error.is_too_large()),
            }
        }
        // The last bytes of some files are checksums and trailers, which no decoder needs.
        assert!(refused * 20 >= bytes.len() * 17, "{name}: {refused} of {} are refused", bytes.len());
    }
}

#[test]
fn half_a_file_is_truncated() {
    // half of a still picture, and half of an animation's first frame of three
    let files = [("png-rgb", 2), ("jpeg-444", 2), ("jpeg-progressive", 2), ("webp-lossless-alpha", 2), ("gif-animated-first-frame", 6)];
    for (name, part) in files {
        let bytes = file(name);
        let refused = decode(&bytes[..bytes.len() / part], &SMALL).expect_err(name);
        assert!(matches!(refused, DecodeError::Truncated { .. }), "{name}: {refused}");
    }
}

/// A PNG of a size without data.
fn hollow_png(width: u32, height: u32) -> Vec<u8> {
    let mut bytes = file("png-rgb");
    bytes[16..20].copy_from_slice(&width.to_be_bytes());
    bytes[20..24].copy_from_slice(&height.to_be_bytes());
    let mut crc = flate2::Crc::new();
    crc.update(&bytes[12..29]);
    bytes[29..33].copy_from_slice(&crc.sum().to_be_bytes());
    bytes
}

#[test]
fn claims_are_checked_before_memory_is_taken() {
    let limits = DecodeLimits::default();
    let refused = decode(&hollow_png(100_000, 100_000), &limits).expect_err("a bomb");
    assert!(refused.is_too_large());
    assert_eq!(
        refused.to_string(),
        "the PNG picture is 100000 × 100000 pixels, which are too many: send at most 64000000, for example 8000 × 8000"
    );
    // within the limit, but more than the file can hold
    assert!(matches!(decode(&hollow_png(8000, 8000), &limits), Err(DecodeError::Truncated { .. })));

    let mut jpeg = file("jpeg-444");
    let frame = jpeg.windows(2).position(|marker| marker == [0xff, 0xc0]).expect("a frame");
    jpeg[frame + 5..frame + 9].copy_from_slice(&[0x1f, 0x40, 0x1f, 0x40]);
    assert!(matches!(decode(&jpeg, &limits), Err(DecodeError::Truncated { .. })));
}

#[test]
fn a_webp_frame_of_another_size_than_the_canvas_is_damaged() {
    let mut bytes = file("webp-orientation-8");
    // the canvas of 24 × 16 pixels, one wider
    let canvas = bytes.windows(4).position(|name| name == b"VP8X").expect("a canvas") + 8;
    bytes[canvas + 4] += 1;
    assert!(matches!(decode(&bytes, &SMALL), Err(DecodeError::Damaged { format: Format::WebP, .. })));
}

#[test]
fn a_jpeg_of_many_scans_is_refused() {
    let bytes = file("jpeg-progressive");
    let scan = bytes.windows(2).position(|marker| marker == [0xff, 0xda]).expect("a scan");
    let mut many = bytes[..scan].to_vec();
    for _ in 0..200 {
        many.extend(&bytes[scan..bytes.len() - 2]);
    }
    many.extend([0xff, 0xd9]);
    let refused = decode(&many, &SMALL).expect_err("too many scans");
    assert_eq!(refused.to_string(), "the JPEG picture is damaged (it has more than 100 scans): save it again");
}

#[test]
fn other_types_are_refused_by_name() {
    let named: [(&[u8], &str); 8] = [
        (b"<?xml version='1.0'?>\n<svg xmlns='http://www.w3.org/2000/svg'/>", "an SVG drawing"),
        (b"\xef\xbb\xbf  <SVG width='1'>", "an SVG drawing"),
        (b"BM\0\0\0\0", "a BMP picture"),
        (b"\0\0\0\x18ftypavif", "an AVIF picture"),
        (b"\0\0\0\x18ftypisom", "an MP4 video"),
        (b"\x1aE\xdf\xa3\0\0", "a WebM or Matroska video"),
        (b"RIFF\0\0\0\0AVI LIST", "an AVI video"),
        (b"%PDF-1.7", "a PDF file"),
    ];
    for (bytes, name) in named {
        assert_eq!(decode(bytes, &SMALL), Err(DecodeError::Unsupported(name)));
    }
    assert_eq!(decode(b"", &SMALL), Err(DecodeError::Empty));
    assert_eq!(decode(b"<html>", &SMALL), Err(DecodeError::Unknown));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn damaged_files_are_refused_or_decoded_within_the_limits(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        end in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let files = files();
        let mut bytes = files[which.index(files.len())].bytes.clone();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(end) = end {
            bytes.truncate(end.index(bytes.len()));
        }
        if let Ok(picture) = decode(&bytes, &SMALL) {
            prop_assert!(u64::from(picture.width) * u64::from(picture.height) <= SMALL.max_pixels);
            prop_assert_eq!(picture.pixels.len(), 3 * (picture.width * picture.height) as usize);
        }
    }
}
