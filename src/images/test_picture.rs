//! The pictures of the reference data: any size, by rule.

use crate::Rgb;

/// A gradient with an ellipse, a box and a diagonal.
pub fn picture(width: u32, height: u32) -> Rgb {
    let (w, h) = (i64::from(width), i64::from(height));
    let mut pixels = Vec::with_capacity(3 * (w * h) as usize);
    for (y, x) in (0..h).flat_map(|y| (0..w).map(move |x| (y, x))) {
        let mut rgb = [x * 255 / (w - 1).max(1), y * 255 / (h - 1).max(1), (37 * x + 91 * y) % 256];
        if (4 * x - 2 * w).pow(2) * h * h + (4 * y - 2 * h).pow(2) * w * w < (w * h).pow(2) {
            rgb = [220, 40, 60];
        }
        if w / 8 <= x && x < w / 3 && h / 8 <= y && y < h / 3 {
            rgb = [20, 200, 90];
        }
        if x * h / w == y {
            rgb = [255; 3];
        }
        pixels.extend(rgb.map(|x| x as u8));
    }
    Rgb { width, height, pixels }
}
