//! Decodes a picture and cuts it into the tiles of a model.

use std::hint::black_box;

use images::{DecodeLimits, Family, PictureSettings, decode, read_header};

const LIMITS: DecodeLimits = DecodeLimits { max_pixels: 1 << 18 };
/// Largest picture of which tiles are made [pixels].
const MAX_PREPARED: u64 = 1 << 12;

/// The input: a file. Its length chooses the model.
pub fn body(input: &[u8]) {
    let header = read_header(input, &LIMITS);
    let Ok(picture) = decode(input, &LIMITS) else { return };
    let header = header.expect("a picture that is decoded has a header");
    assert_eq!((header.width, header.height), (picture.width, picture.height), "the header tells the size");
    let pixels = u64::from(picture.width) * u64::from(picture.height);
    assert!(pixels <= LIMITS.max_pixels && picture.pixels.len() as u64 == 3 * pixels, "{picture:?} is within the limits");
    let settings = PictureSettings::of(Family::ALL[input.len() % Family::ALL.len()]);
    let Ok(plan) = settings.plan(picture.width, picture.height, 0) else { return };
    if pixels > MAX_PREPARED {
        return;
    }
    for (tile, made) in plan.tiles.iter().zip(plan.prepare(&picture)) {
        assert_eq!((tile.width, tile.height), (made.width, made.height), "a tile has the size of its plan");
        black_box(made);
    }
}
