//! The memory that decoding takes, each file in a process of its own: what the process holds at most while it decodes, less what it held
//! before and less the pixels.

use std::path::Path;
use std::process::{Command, ExitCode};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use penstock_images::{DecodeLimits, decode, read_header};
use serde_json::Value;

/// Most memory beyond the pixels [bytes].
const MOST: u64 = 16 << 20;

fn main() -> ExitCode {
    match std::env::var_os("PENSTOCK_TEST_PICTURE") {
        Some(path) => child(Path::new(&path)),
        None => parent(),
    }
}

/// A value of this process's status [bytes].
fn status(key: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("the status of this process");
    let line = status.lines().find(|line| line.starts_with(key)).expect("a value");
    line.split_whitespace().nth(1).and_then(|kilobytes| kilobytes.parse::<u64>().ok()).expect("kilobytes") << 10
}

fn child(path: &Path) -> ExitCode {
    let bytes = std::fs::read(path).expect("a file");
    let promised = read_header(&bytes, &DecodeLimits::default()).map_or(0, |header| header.memory());
    std::fs::write("/proc/self/clear_refs", "5").expect("the peak is reset");
    let before = status("VmRSS");
    let pixels = decode(&bytes, &DecodeLimits::default()).map_or(0, |picture| picture.pixels.len());
    println!("{} {pixels} {promised}", status("VmHWM").saturating_sub(before));
    ExitCode::SUCCESS
}

fn parent() -> ExitCode {
    let folder = tempfile::tempdir().expect("a folder");
    let mut wrong = 0;
    for (name, bytes) in fixtures_of_decoding().into_iter().chain(large()) {
        let path = folder.path().join(&name);
        std::fs::write(&path, &bytes).expect("a file");
        let program = std::env::current_exe().expect("this program");
        let output = Command::new(program).env("PENSTOCK_TEST_PICTURE", &path).output().expect("a child");
        let text = String::from_utf8(output.stdout).expect("text");
        let numbers: Vec<u64> = text.split_whitespace().map(|number| number.parse().expect("a number")).collect();
        let &[peak, pixels, promised] = &numbers[..] else { panic!("{name}: {text}{:?}", output.stderr) };
        let is_large = pixels > MOST;
        let is_fine = if is_large { peak <= promised } else { peak <= pixels + MOST };
        println!("{name}: {} kB beyond {} kB of pixels, {} kB promised", peak.saturating_sub(pixels) >> 10, pixels >> 10, promised >> 10);
        if !is_fine {
            wrong += 1;
            println!("{name} takes too much memory");
        }
    }
    ExitCode::from(u8::from(wrong > 0))
}

/// The files of the reference data.
fn fixtures_of_decoding() -> Vec<(String, Vec<u8>)> {
    let data: Value = serde_json::from_str(&fixtures::packed_text("images/decoding.json.gz")).expect("JSON");
    let file = |case: &Value| {
        let bytes = STANDARD.decode(case["file"].as_str().expect("a file")).expect("base64");
        (case["name"].as_str().expect("a name").to_owned(), bytes)
    };
    data["files"].as_array().expect("files").iter().map(file).collect()
}

/// Pictures of 4000 × 3000 pixels of several colour types, for the memory that a header promises.
fn large() -> Vec<(String, Vec<u8>)> {
    use image::{DynamicImage, ImageFormat};
    let image = DynamicImage::ImageRgba16(image::ImageBuffer::from_fn(4000, 3000, |x, y| {
        image::Rgba([(x * 16) as u16, (y * 20) as u16, (x * y) as u16, 50_000])
    }));
    let encode = |image: &DynamicImage, format: ImageFormat| {
        let mut bytes = std::io::Cursor::new(Vec::new());
        image.write_to(&mut bytes, format).expect("an encoder");
        bytes.into_inner()
    };
    let rgb = DynamicImage::ImageRgb8(image.to_rgb8());
    let rgba = DynamicImage::ImageRgba8(image.to_rgba8());
    vec![
        ("large-rgba16.png".to_owned(), encode(&image, ImageFormat::Png)),
        ("large-rgba8.png".to_owned(), encode(&rgba, ImageFormat::Png)),
        ("large-grey.png".to_owned(), encode(&DynamicImage::ImageLuma8(image.to_luma8()), ImageFormat::Png)),
        ("large.jpg".to_owned(), encode(&rgb, ImageFormat::Jpeg)),
        ("large-rgb.webp".to_owned(), encode(&rgb, ImageFormat::WebP)),
        ("large-rgba.webp".to_owned(), encode(&rgba, ImageFormat::WebP)),
    ]
}
