//! Idefics3 and SmolVLM: labelled tiles, then the whole picture.

use super::grid::cells;
use super::size::aspect;
use crate::plan::{Place, Step};
use crate::{Filter, PicturePlan, PictureSettings};

/// Longest side, whatever the settings say [pixels].
pub const MAX_SIDE: u32 = 4096;
const FAKE: &str = "<fake_token_around_image>";

pub fn layout(settings: &PictureSettings, size: (u32, u32), plan: &mut PicturePlan) {
    let side = settings.image_size;
    let long = below(longest(size, settings.longest_side));
    let refined = whole_tiles(long, side);
    let steps = vec![Step::resize(long, Filter::Lanczos), Step::resize(refined, Filter::Lanczos)];
    let canvas = plan.canvas(None, steps);
    let (columns, rows) = (refined.0 / side, refined.1 / side);
    if columns * rows == 1 {
        plan.text(&format!("{FAKE}<global-img>"));
        plan.rows(settings, Place::whole(canvas, refined));
        plan.text(FAKE);
        return;
    }
    for (column, row) in cells(columns, rows) {
        plan.text(&format!("{FAKE}<row_{}_col_{}>", row + 1, column + 1));
        plan.rows(settings, Place { canvas, left: column * side, top: row * side, width: side, height: side });
        if column + 1 == columns {
            plan.text("\n");
        }
    }
    let whole = plan.canvas(Some(canvas), vec![Step::resize((side, side), Filter::Lanczos)]);
    plan.text(&format!("\n{FAKE}<global-img>"));
    plan.rows(settings, Place::whole(whole, (side, side)));
    plan.text(FAKE);
}

/// The longer side becomes `most`, and the shorter one even.
fn longest(size: (u32, u32), most: u32) -> (u32, u32) {
    let short = |short: f64| ((short as u32).next_multiple_of(2)).max(1);
    match size.0 >= size.1 {
        true => (most, short(f64::from(most) / aspect(size))),
        false => (short(f64::from(most) * aspect(size)), most),
    }
}

/// Neither side is longer than `MAX_SIDE`.
fn below(size: (u32, u32)) -> (u32, u32) {
    let short = |short: f64| (short as u32).max(1);
    match size {
        (width, height) if width >= height && width > MAX_SIDE => (MAX_SIDE, short(f64::from(MAX_SIDE) / aspect(size))),
        (width, height) if height > width && height > MAX_SIDE => (short(f64::from(MAX_SIDE) * aspect(size)), MAX_SIDE),
        _ => size,
    }
}

/// Both sides up to multiples of a tile's. The shorter one is first scaled like the longer one.
fn whole_tiles(size: (u32, u32), side: u32) -> (u32, u32) {
    let up = |length: u32| length.max(1).next_multiple_of(side);
    if size.0 >= size.1 {
        let width = up(size.0);
        (width, up((f64::from(width) / aspect(size)) as u32))
    } else {
        let height = up(size.1);
        (up((f64::from(height) * aspect(size)) as u32), height)
    }
}
