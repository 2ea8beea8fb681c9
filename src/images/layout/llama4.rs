//! Llama 4: the picture keeps its shape on a canvas of tiles; the whole picture follows if there is more than one.

use super::grid::cells;
use super::size::area;
use crate::plan::{Place, Step};
use crate::resize::Mount;
use crate::{Filter, PicturePlan, PictureSettings};

pub fn layout(settings: &PictureSettings, size: (u32, u32), plan: &mut PicturePlan) {
    let side = settings.image_size;
    let (columns, rows) = best_canvas(size, side, settings.max_tiles);
    let canvas_size = (columns * side, rows * side);
    // A picture that is smaller than its canvas grows no further than a tile.
    let room = (size.0.max(side).min(canvas_size.0), size.1.max(side).min(canvas_size.1));
    let mount = Mount { width: canvas_size.0, height: canvas_size.1, left: 0, top: 0, colour: [0; 3] };
    let canvas = plan.canvas(None, vec![Step::resize(fitted(size, room), Filter::Bilinear), Step::Mount(mount)]);
    let separator = |text| if settings.markers.tile_separators { text } else { "" };
    if columns * rows == 1 {
        plan.text(separator("<|image|>"));
        plan.rows(settings, Place::whole(canvas, canvas_size));
        return;
    }
    for (column, row) in cells(columns, rows) {
        plan.rows(settings, Place { canvas, left: column * side, top: row * side, width: side, height: side });
        plan.text(separator(if column + 1 < columns { "<|tile_x_separator|>" } else { "<|tile_y_separator|>" }));
    }
    let whole = plan.canvas(None, vec![Step::resize((side, side), Filter::Bilinear)]);
    plan.text(separator("<|image|>"));
    plan.rows(settings, Place::whole(whole, (side, side)));
}

/// The columns and rows, at most `most` tiles in all, on which the picture grows least, or shrinks least if it fits on none. Of several,
/// the one with the fewest tiles. Scales are float32, and only equal ones tie.
fn best_canvas((width, height): (u32, u32), side: u32, most: u32) -> (u32, u32) {
    let scale = |(columns, rows): (u32, u32)| {
        let (across, down) = ((columns * side) as f32 / width as f32, (rows * side) as f32 / height as f32);
        across.min(down)
    };
    let grids = (1..=most).flat_map(|columns| (1..=most / columns).map(move |rows| (columns, rows)));
    let order = |grid: &(u32, u32)| {
        let scale = scale(*grid);
        // Growing before shrinking, then the nearest to 1.
        (scale < 1.0, if scale < 1.0 { -scale } else { scale }, area(*grid))
    };
    grids.min_by(|a, b| order(a).partial_cmp(&order(b)).expect("scales are numbers")).expect("a tile is a grid")
}

/// The largest size of the same shape within `room`.
fn fitted((width, height): (u32, u32), room: (u32, u32)) -> (u32, u32) {
    let (across, down) = (f64::from(room.0) / f64::from(width), f64::from(room.1) / f64::from(height));
    let (width, height) = if across < down {
        (room.0, ((f64::from(height) * across).floor() as u32).min(room.1))
    } else {
        (((f64::from(width) * down).floor() as u32).min(room.0), room.1)
    };
    (width.max(1), height.max(1))
}
