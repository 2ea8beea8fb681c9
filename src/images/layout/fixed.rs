//! Families that see one square of a fixed size.

use crate::plan::{Place, Step};
use crate::resize::Mount;
use crate::{Filter, PicturePlan, PictureSettings};

/// Gemma 3 and 3n: stretched.
pub fn stretched(settings: &PictureSettings, plan: &mut PicturePlan) {
    let size = (settings.image_size, settings.image_size);
    let canvas = plan.canvas(None, vec![Step::resize(size, Filter::Bilinear)]);
    plan.rows(settings, Place::whole(canvas, size));
}

/// LLaVA 1.5: padded to a square of the mean colour, then resized.
pub fn padded(settings: &PictureSettings, size: (u32, u32), plan: &mut PicturePlan) {
    let colour = settings.mean.map(|mean| (f64::from(mean) * 255.0) as u8);
    let side = settings.image_size;
    let step = Step::ResizeMounted { mount: square(size, colour), width: side, height: side, filter: Filter::Bicubic };
    let canvas = plan.canvas(None, vec![step]);
    plan.rows(settings, Place::whole(canvas, (side, side)));
}

/// A picture in the middle of the smallest square that holds it.
fn square((width, height): (u32, u32), colour: [u8; 3]) -> Mount {
    let side = width.max(height);
    Mount { width: side, height: side, left: (side - width) / 2, top: (side - height) / 2, colour }
}
