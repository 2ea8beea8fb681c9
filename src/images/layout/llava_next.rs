//! LLaVA 1.6: the whole picture first, then tiles of the best size without the rows of their padding, with a newline row after each row.

use super::grid::cells;
use super::size::area;
use crate::plan::{Place, Step};
use crate::resize::Mount;
use crate::{Filter, PickedRow, PicturePlan, PictureSettings};

pub fn layout(settings: &PictureSettings, size: (u32, u32), plan: &mut PicturePlan) {
    let side = settings.image_size;
    let target = best_size(size, &settings.pinpoints, |target| scaled(size, target));
    let whole = plan.canvas(None, vec![Step::resize((side, side), Filter::Bicubic)]);
    let base = plan.tile(settings, Place::whole(whole, (side, side)));
    let canvas = plan.canvas(None, padded_steps(size, target));
    let (columns, rows) = (target.0 / side, target.1 / side);
    let tiles = cells(columns, rows).map(|(column, row)| Place { canvas, left: column * side, top: row * side, width: side, height: side });
    let first = plan.tiles.len() as u32;
    for place in tiles {
        plan.tile(settings, place);
    }
    let across = side / settings.cell();
    let mut picked: Vec<PickedRow> = (0..plan.tiles[base].rows as u32).map(|row| PickedRow::Encoded { tile: base as u32, row }).collect();
    let (left, top) = padding(size, (columns * across, rows * across));
    for y in top..rows * across - top {
        picked.extend((left..columns * across - left).map(|x| {
            let tile = first + y / across * columns + x / across;
            PickedRow::Encoded { tile, row: y % across * across + x % across }
        }));
        picked.push(PickedRow::Newline);
    }
    plan.picked(base..plan.tiles.len(), picked);
}

/// The size that keeps most of the picture's pixels, and of several the one that wastes least. `scaled`: the picture's size within another.
pub fn best_size(size: (u32, u32), sizes: &[(u32, u32)], scaled: impl Fn((u32, u32)) -> (u32, u32)) -> (u32, u32) {
    let (mut best, mut most, mut least) = (sizes[0], 0, u64::MAX);
    for &target in sizes {
        let kept = area(scaled(target)).min(area(size));
        let wasted = area(target) - kept;
        if kept > most || (kept == most && wasted < least) {
            (best, most, least) = (target, kept, wasted);
        }
    }
    best
}

fn scaled(size: (u32, u32), target: (u32, u32)) -> (u32, u32) {
    let scale = (f64::from(target.0) / f64::from(size.0)).min(f64::from(target.1) / f64::from(size.1));
    ((f64::from(size.0) * scale) as u32, (f64::from(size.1) * scale) as u32)
}

/// Resizes the picture in its shape into the middle of `target`, on black.
fn padded_steps((width, height): (u32, u32), target: (u32, u32)) -> Vec<Step> {
    let (across, down) = (f64::from(target.0) / f64::from(width), f64::from(target.1) / f64::from(height));
    let size = if across < down {
        (target.0, ((f64::from(height) * across).ceil() as u32).min(target.1))
    } else {
        (((f64::from(width) * down).ceil() as u32).min(target.0), target.1)
    };
    let (left, top) = ((target.0 - size.0) / 2, (target.1 - size.1) / 2);
    vec![Step::resize(size, Filter::Bicubic), Step::Mount(Mount { width: target.0, height: target.1, left, top, colour: [0; 3] })]
}

/// Columns of rows on each side and lines of rows at the top and the bottom that show padding alone.
fn padding((width, height): (u32, u32), grid: (u32, u32)) -> (u32, u32) {
    // The reference rounds to seven digits before it cuts, so that 9.9999999 is 10.
    let cut = |x: f64| ((x * 1e7).round_ties_even() / 1e7) as u32;
    let (width, height, across, down) = (f64::from(width), f64::from(height), f64::from(grid.0), f64::from(grid.1));
    if width / height > across / down {
        (0, (grid.1 - cut(height * (across / width))) / 2)
    } else {
        ((grid.0 - cut(width * (down / height))) / 2, 0)
    }
}
