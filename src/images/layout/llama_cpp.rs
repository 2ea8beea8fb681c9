//! The tiles that llama.cpp cuts where it departs from the models' own rule, for comparisons with it. Scales are float32, the pass across
//! is always first, and what is refined keeps its shape on black.

use super::grid::cells;
use super::llava_next::best_size;
use super::minicpmv::{self, Slices};
use super::size::area;
use crate::plan::{Place, Step};
use crate::resize::Mount;
use crate::{Filter, PicturePlan, PictureSettings};

/// Tiles of the best size, then the whole picture, without newline rows. A picture that fits in a tile is one tile. Of the file's pairs,
/// the first is taken for the width.
pub fn llava_next(settings: &PictureSettings, size: (u32, u32), plan: &mut PicturePlan) {
    let sizes: Vec<_> = settings.pinpoints.iter().map(|&(width, height)| (height, width)).collect();
    tiles_then_whole(settings, size, &sizes, plan);
}

/// The same over all grids of tiles.
pub fn llama4(settings: &PictureSettings, size: (u32, u32), plan: &mut PicturePlan) {
    let (side, most) = (settings.image_size, settings.max_tiles);
    let grids = (1..=most).flat_map(|columns| (1..=most / columns).map(move |rows| (columns, rows)));
    let sizes: Vec<_> = grids.map(|(columns, rows)| (columns * side, rows * side)).collect();
    tiles_then_whole(settings, size, &sizes, plan);
}

fn tiles_then_whole(settings: &PictureSettings, size: (u32, u32), sizes: &[(u32, u32)], plan: &mut PicturePlan) {
    let side = settings.image_size;
    if size.0 > side || size.1 > side {
        let scaled = |target| {
            let scale = scale(size, target);
            ((size.0 as f32 * scale) as u32, (size.1 as f32 * scale) as u32)
        };
        let target = best_size(size, sizes, scaled);
        let canvas = plan.canvas(None, on_black(size, target));
        for (column, row) in cells(target.0 / side, target.1 / side) {
            plan.rows(settings, Place { canvas, left: column * side, top: row * side, width: side, height: side });
        }
    }
    let whole = plan.canvas(None, across_first(size, (side, side)));
    plan.rows(settings, Place::whole(whole, (side, side)));
}

/// Slices from the first side on that is longer than a tile's. A picture that fits in a tile is stretched to one.
pub fn minicpmv(settings: &PictureSettings, size: (u32, u32), plan: &mut PicturePlan) {
    let side = settings.image_size;
    if size.0 <= side && size.1 <= side {
        return minicpmv::write(settings, (side, side), across_first(size, (side, side)), None, plan);
    }
    let tiles = area(size).div_ceil(u64::from(side).pow(2)).min(u64::from(settings.max_tiles)) as u32;
    let grid = minicpmv::nearest_by_log(size, tiles, settings.max_tiles);
    let whole = minicpmv::best_size((f64::from(size.0), f64::from(size.1)), settings, false);
    let slice = minicpmv::slice_size(size, grid, settings);
    let steps = on_black(size, (grid.0 * slice.0, grid.1 * slice.1));
    minicpmv::write(settings, whole, across_first(size, whole), Some(Slices { grid, size: slice, steps }), plan);
}

fn scale(size: (u32, u32), target: (u32, u32)) -> f32 {
    (target.0 as f32 / size.0 as f32).min(target.1 as f32 / size.1 as f32)
}

/// Resizes in two steps, which have one pass each.
fn across_first(size: (u32, u32), target: (u32, u32)) -> Vec<Step> {
    vec![Step::resize((target.0, size.1), Filter::Bicubic), Step::resize(target, Filter::Bicubic)]
}

/// The picture in its shape in the middle of `target`.
fn on_black(size: (u32, u32), target: (u32, u32)) -> Vec<Step> {
    let scale = scale(size, target);
    let scaled = |side: u32, most: u32| ((side as f32 * scale).ceil() as u32).min(most);
    let fitted = (scaled(size.0, target.0), scaled(size.1, target.1));
    let mut steps = if size == target { Vec::new() } else { across_first(size, fitted) };
    let (left, top) = ((target.0 - fitted.0) / 2, (target.1 - fitted.1) / 2);
    steps.push(Step::Mount(Mount { width: target.0, height: target.1, left, top, colour: [0; 3] }));
    steps
}
