//! MiniCPM-V: the whole picture, then up to nine slices of about a tile's area, in the picture's shape.

use super::grid::cells;
use super::size::{area, aspect};
use crate::plan::{Place, Step};
use crate::{Filter, PicturePlan, PictureSettings};

pub fn layout(settings: &PictureSettings, size: (u32, u32), picture: usize, plan: &mut PicturePlan) {
    if settings.markers.image_ids {
        plan.text(&format!("<image_id>{picture}</image_id>"));
    }
    let grid = grid(size, settings.image_size, settings.max_tiles);
    let whole = best_size((f64::from(size.0), f64::from(size.1)), settings, grid.is_none());
    let slices = grid.map(|grid| {
        let size = slice_size(size, grid, settings);
        Slices { grid, size, steps: vec![Step::resize((size.0 * grid.0, size.1 * grid.1), Filter::Bicubic)] }
    });
    write(settings, whole, vec![Step::resize(whole, Filter::Bicubic)], slices, plan);
}

/// What the slices are cut from.
pub struct Slices {
    /// Columns and rows.
    pub grid: (u32, u32),
    /// Size of each slice.
    pub size: (u32, u32),
    pub steps: Vec<Step>,
}

/// Writes the whole picture, of a size, and the slices.
pub fn write(settings: &PictureSettings, whole: (u32, u32), steps: Vec<Step>, slices: Option<Slices>, plan: &mut PicturePlan) {
    let canvas = plan.canvas(None, steps);
    plan.text("<image>");
    plan.rows(settings, Place::whole(canvas, whole));
    plan.text("</image>");
    let Some(Slices { grid, size: (width, height), steps }) = slices else { return };
    let canvas = plan.canvas(None, steps);
    for (column, row) in cells(grid.0, grid.1) {
        if column == 0 && row > 0 {
            plan.text("\n");
        }
        plan.text("<slice>");
        plan.rows(settings, Place { canvas, left: column * width, top: row * height, width, height });
        plan.text("</slice>");
    }
}

/// The columns and rows of the slices: about one per tile's area, in the grid whose aspect is nearest. `None` for a picture of up to a
/// tile's area.
fn grid(size: (u32, u32), side: u32, most: u32) -> Option<(u32, u32)> {
    let tiles = area(size).div_ceil(u64::from(side).pow(2));
    (tiles > 1 && most > 1).then(|| nearest_by_log(size, tiles.min(u64::from(most)) as u32, most))
}

/// The grid of `tiles`, one fewer or one more whose aspect's logarithm is nearest.
pub fn nearest_by_log(size: (u32, u32), tiles: u32, most: u32) -> (u32, u32) {
    let (mut best, mut least) = ((1, 1), f64::INFINITY);
    for tiles in (tiles.saturating_sub(1)..=tiles + 1).filter(|&tiles| tiles > 1 && tiles <= most) {
        for columns in (1..=tiles).filter(|columns| tiles.is_multiple_of(*columns)) {
            let grid = (columns, tiles / columns);
            let difference = (aspect(size).ln() - aspect(grid).ln()).abs();
            if difference < least {
                (best, least) = (grid, difference);
            }
        }
    }
    best
}

/// A size of about a tile's area in a shape, with sides that are multiples of a patch. A smaller one keeps its size unless it `grows`.
pub fn best_size((mut width, mut height): (f64, f64), settings: &PictureSettings, grows: bool) -> (u32, u32) {
    let side = f64::from(settings.image_size);
    if width * height > side * side || grows {
        let aspect = width / height;
        height = (side / aspect.sqrt()).floor();
        width = (height * aspect).floor();
    }
    (rounded(width, settings.patch_size), rounded(height, settings.patch_size))
}

/// The size of each slice.
pub fn slice_size(size: (u32, u32), (columns, rows): (u32, u32), settings: &PictureSettings) -> (u32, u32) {
    let part = |side: u32, parts: u32| f64::from(rounded(f64::from(side), parts)) / f64::from(parts);
    best_size((part(size.0, columns), part(size.1, rows)), settings, true)
}

/// A length rounded to a multiple of `step` (ties to even), at least one.
fn rounded(length: f64, step: u32) -> u32 {
    ((length / f64::from(step)).round_ties_even() as u32 * step).max(step)
}
