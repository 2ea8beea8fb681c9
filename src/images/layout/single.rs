//! Families that see one picture whose size follows the client's.

use super::error::LayoutError;
use super::size::area;
use crate::plan::{Place, Step};
use crate::resize::Mount;
use crate::{Filter, PicturePlan, PictureSettings};

/// Most patches in a row or column of Kimi-VL's table of positions.
const KIMI_SIDE: u32 = 512;

/// The Qwen models and GLM: stretched to multiples of a cell, within bounds of the area.
pub fn smart(settings: &PictureSettings, size: (u32, u32), plan: &mut PicturePlan) {
    let size = smart_size(size, settings.cell(), settings.min_pixels, settings.max_pixels);
    stretch(settings, size, Filter::Bicubic, plan);
}

/// Both sides rounded to multiples of `cell` (ties to even). Outside of the bounds, scaled first: floored to be smaller, ceiled to be
/// larger.
pub fn smart_size((width, height): (u32, u32), cell: u32, min: u64, max: u64) -> (u32, u32) {
    let step = f64::from(cell);
    let round = |side: u32| ((f64::from(side) / step).round_ties_even() as u32 * cell).max(cell);
    let rounded = (round(width), round(height));
    let given = area((width, height)) as f64;
    if area(rounded) > max {
        let shrink = (given / max as f64).sqrt();
        let floor = |side: u32| ((f64::from(side) / shrink / step).floor() as u32 * cell).max(cell);
        (floor(width), floor(height))
    } else if area(rounded) < min {
        let growth = (min as f64 / given).sqrt();
        let ceil = |side: u32| (f64::from(side) * growth / step).ceil() as u32 * cell;
        (ceil(width), ceil(height))
    } else {
        rounded
    }
}

/// Gemma 4: as large as the number of rows allows, whatever the size.
pub fn gemma4(settings: &PictureSettings, (width, height): (u32, u32), plan: &mut PicturePlan) {
    let (cell, most) = (settings.cell(), settings.max_pixels as f64);
    let scale = (most / area((width, height)) as f64).sqrt();
    let cells = |side: u32| (scale * f64::from(side) / f64::from(cell)).floor() as u32;
    let (mut across, mut down) = (cells(width), cells(height));
    let most = (settings.max_pixels / u64::from(cell).pow(2)) as u32;
    if down == 0 {
        (across, down) = (((width / height).max(1)).min(most), 1);
    } else if across == 0 {
        (across, down) = (1, (height / width).max(1).min(most));
    }
    stretch(settings, (across * cell, down * cell), Filter::Bicubic, plan);
}

/// Pixtral: shrunk into a square of `image_size`, then stretched up to multiples of a cell.
pub fn pixtral(settings: &PictureSettings, (width, height): (u32, u32), plan: &mut PicturePlan) -> Result<(), LayoutError> {
    let most = f64::from(settings.image_size);
    let ratio = (f64::from(height) / most).max(f64::from(width) / most);
    let shrink = |side: u32| if ratio > 1.0 { (f64::from(side) / ratio).floor() as u32 } else { side };
    let sides = (shrink(width), shrink(height));
    if sides.0 == 0 || sides.1 == 0 {
        return Err(LayoutError::TooNarrow { width, height });
    }
    let up = |side: u32| side.next_multiple_of(settings.cell());
    stretch(settings, (up(sides.0), up(sides.1)), Filter::Bicubic, plan);
    Ok(())
}

/// Kimi-VL: shrunk only above a number of patches, then padded with black on the right and at the bottom.
pub fn kimi(settings: &PictureSettings, (width, height): (u32, u32), plan: &mut PicturePlan) -> Result<(), LayoutError> {
    let patch = settings.patch_size;
    let patches = u64::from(width / patch) * u64::from(height / patch);
    let most = settings.max_pixels / u64::from(patch).pow(2);
    let mut size = (width, height);
    if patches > most {
        let scale = (most as f64 / patches as f64).sqrt();
        let shrink = |side: u32| ((f64::from(side) * scale) as u32).max(1);
        size = (shrink(width), shrink(height));
    }
    let (across, down) = (size.0.next_multiple_of(settings.cell()), size.1.next_multiple_of(settings.cell()));
    if across.max(down) / patch >= KIMI_SIDE {
        return Err(LayoutError::TooLong { width, height, most: KIMI_SIDE * patch - 1 });
    }
    let mount = Mount { width: across, height: down, left: 0, top: 0, colour: [0; 3] };
    let canvas = plan.canvas(None, vec![Step::resize(size, Filter::Bicubic), Step::Mount(mount)]);
    plan.rows(settings, Place::whole(canvas, (across, down)));
    Ok(())
}

/// The whole picture, stretched to a size.
fn stretch(settings: &PictureSettings, size: (u32, u32), filter: Filter, plan: &mut PicturePlan) {
    let canvas = plan.canvas(None, vec![Step::resize(size, filter)]);
    plan.rows(settings, Place::whole(canvas, size));
}
