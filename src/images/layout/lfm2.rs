//! LFM2-VL: one picture of bounded area, or tiles and a thumbnail if it is far larger.

use super::grid::{cells, nearest_grid};
use super::single::smart_size;
use crate::plan::{Place, Step};
use crate::{Filter, PicturePlan, PictureSettings};

/// How many times the largest area a picture may have before it is cut.
const TOLERANCE: u64 = 2;

pub fn layout(settings: &PictureSettings, size: (u32, u32), plan: &mut PicturePlan) {
    let cell = settings.cell();
    let whole = smart_size(size, cell, settings.min_pixels, settings.max_pixels);
    let is_cut = is_large(settings, size) && settings.max_tiles > 1;
    let (columns, rows) = match is_cut {
        true => nearest_grid(size, settings.tile_size, settings.min_tiles, settings.max_tiles),
        false => (1, 1),
    };
    if is_cut {
        let side = settings.tile_size;
        let canvas = plan.canvas(None, vec![Step::resize((columns * side, rows * side), Filter::Bilinear)]);
        for (column, row) in cells(columns, rows) {
            if columns * rows > 1 {
                plan.text(&format!("<|img_row_{}_col_{}|>", row + 1, column + 1));
            }
            plan.rows(settings, Place { canvas, left: column * side, top: row * side, width: side, height: side });
        }
        if columns * rows == 1 {
            return;
        }
        plan.text("<|img_thumbnail|>");
    }
    let canvas = plan.canvas(None, vec![Step::resize(whole, Filter::Bilinear)]);
    plan.rows(settings, Place::whole(canvas, whole));
}

/// Whether the picture's area, with sides rounded to multiples of a cell (but at least a patch), is far above the bound.
fn is_large(settings: &PictureSettings, (width, height): (u32, u32)) -> bool {
    let cell = settings.cell();
    let round = |side: u32| {
        let rounded = (f64::from(side) / f64::from(cell)).round_ties_even() as u64 * u64::from(cell);
        rounded.max(u64::from(settings.patch_size))
    };
    round(width) * round(height) > TOLERANCE * settings.max_pixels
}
