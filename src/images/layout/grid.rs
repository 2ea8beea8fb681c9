//! InternVL, and the choice of a grid by its aspect, which LFM2 shares.

use super::size::{area, aspect};
use crate::plan::{Place, Step};
use crate::{Filter, PicturePlan, PictureSettings};

/// InternVL: stretched to the grid of tiles whose aspect is nearest. The whole picture follows if there is more than one tile.
pub fn internvl(settings: &PictureSettings, size: (u32, u32), plan: &mut PicturePlan) {
    let side = settings.image_size;
    let (columns, rows) = nearest_grid(size, side, settings.min_tiles, settings.max_tiles);
    let canvas = plan.canvas(None, vec![Step::resize((columns * side, rows * side), Filter::Bicubic)]);
    for (column, row) in cells(columns, rows) {
        plan.rows(settings, Place { canvas, left: column * side, top: row * side, width: side, height: side });
    }
    if columns * rows > 1 {
        let whole = plan.canvas(None, vec![Step::resize((side, side), Filter::Bicubic)]);
        plan.rows(settings, Place::whole(whole, (side, side)));
    }
}

/// The columns and rows of a grid's cells, row by row.
pub fn cells(columns: u32, rows: u32) -> impl Iterator<Item = (u32, u32)> {
    (0..rows).flat_map(move |row| (0..columns).map(move |column| (column, row)))
}

/// The columns and rows, `min` to `max` tiles in all, whose aspect is nearest to the picture's. Of two that are as near, the one with more
/// tiles is taken if the picture has more than half of its pixels.
pub fn nearest_grid(size: (u32, u32), tile: u32, min: u32, max: u32) -> (u32, u32) {
    let mut grids: Vec<(u32, u32)> = (1..=max).flat_map(|columns| (1..=max).map(move |rows| (columns, rows))).collect();
    grids.retain(|&(columns, rows)| (min..=max).contains(&(columns * rows)));
    grids.sort_by_key(|&(columns, rows)| columns * rows);
    let (mut best, mut least) = ((1, 1), f64::INFINITY);
    for grid in grids {
        let difference = (aspect(size) - aspect(grid)).abs();
        let covered = u64::from(tile).pow(2) * area(grid);
        if difference < least {
            (best, least) = (grid, difference);
        } else if difference == least && 2 * area(size) > covered {
            best = grid;
        }
    }
    best
}
