//! The resize against Pillow's (`resizes.jsonl.gz`).

use proptest::prelude::*;
use serde_json::Value;

use crate::resize::{Mount, resize_mounted};
use crate::test_picture::picture;
use crate::{Filter, Rgb, resize};

const FILTERS: [Filter; 3] = [Filter::Bilinear, Filter::Bicubic, Filter::Lanczos];

#[test]
fn pixels_equal_pillows() {
    let lines = fixtures::packed_text("images/resizes.jsonl.gz");
    let mut wrong = Vec::new();
    for line in lines.lines() {
        let case: Vec<Value> = serde_json::from_str(line).expect("JSON");
        let side = |i: usize| case[i].as_u64().expect("a number") as u32;
        let filter = FILTERS[side(0) as usize];
        let resized = resize(&picture(side(1), side(2)), side(3), side(4), filter);
        if case[5] != format!("{:08x}", resized.crc32()) {
            wrong.push(line);
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), lines.lines().count(), wrong.join("\n"));
}

/// A canvas in memory.
fn mounted(picture: &Rgb, mount: &Mount) -> Rgb {
    let mut canvas = Rgb::filled(mount.width, mount.height, mount.colour);
    for y in 0..picture.height {
        let start = 3 * ((mount.top + y) * mount.width + mount.left) as usize;
        canvas.pixels[start..start + 3 * picture.width as usize].copy_from_slice(picture.row(y));
    }
    canvas
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_mounted_picture_is_resized_as_its_canvas(
        (width, height) in (1u32..40, 1u32..40),
        (right, bottom, left, top) in (0u32..30, 0u32..30, 0u32..30, 0u32..30),
        (across, down) in (1u32..60, 1u32..60),
        filter in prop::sample::select(&FILTERS),
        colour in any::<[u8; 3]>(),
    ) {
        let source = picture(width, height);
        let mount = Mount { width: left + width + right, height: top + height + bottom, left, top, colour };
        let expected = resize(&mounted(&source, &mount), across, down, filter);
        prop_assert_eq!(resize_mounted(&source, &mount, across, down, filter), expected);
    }
}
