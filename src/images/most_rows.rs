//! The most rows that a picture can become, whatever its size, and the most patches that an encoder gets at once.

use crate::layout::{MAX_ASPECT, MAX_SIDE};
use crate::{Family, PictureSettings};

impl PictureSettings {
    /// An upper bound of [`PicturePlan::num_rows`](crate::PicturePlan::num_rows) over all sizes of pictures, for the reference's cutting.
    pub fn most_rows(&self) -> usize {
        let cell = self.cell().max(1);
        let square = |side: u32| u64::from(side / cell).pow(2);
        let (tile, tiles) = (square(self.image_size), u64::from(self.max_tiles));
        // The whole picture follows its tiles.
        let cut = |tile: u64| if tiles > 1 { (tiles + 1) * tile } else { tile };
        let rows = match self.family {
            Family::Gemma3 | Family::Llava => tile,
            Family::Gemma3n => u64::from(self.query_rows),
            Family::MiniCpmV => cut(u64::from(self.query_rows)),
            Family::Gemma4 => self.most_cells(),
            Family::Qwen2Vl | Family::Qwen25Vl | Family::Qwen3Vl | Family::Glm4v => self.most_smart(),
            Family::Pixtral => {
                let side = u64::from(self.image_size.div_ceil(cell));
                side * side + side.saturating_sub(1)
            }
            // Padding adds a part of a cell on each side, at most a quarter where a picture is as long as the table of positions.
            Family::KimiVl => self.most_cells().saturating_mul(5) / 4,
            Family::Idefics3 => match u64::from(self.longest_side.min(MAX_SIDE).div_ceil(self.image_size.max(1))) {
                0 | 1 => tile,
                side => (side * side + 1) * tile,
            },
            Family::InternVl | Family::Llama4 => cut(tile),
            Family::Lfm2 if tiles > 1 => tiles * square(self.tile_size) + self.most_smart(),
            Family::Lfm2 => self.most_smart(),
            Family::LlavaNext => tile + self.pinpoints.iter().map(|&size| self.rows_of_pinpoint(size)).max().unwrap_or(0),
        };
        usize::try_from(rows).unwrap_or(usize::MAX)
    }

    /// An upper bound of the patches of one [`Tile`](crate::Tile) over all sizes of pictures, for the reference's cutting.
    pub fn most_patches(&self) -> usize {
        let square = |side: u32| u64::from(side / self.patch_size.max(1)).pow(2);
        let (tile, of_cell) = (square(self.image_size), u64::from(self.merge).pow(2));
        let patches = match self.family {
            Family::Gemma3 | Family::Gemma3n | Family::Llava | Family::LlavaNext => tile,
            Family::InternVl | Family::Llama4 | Family::Idefics3 => tile,
            // About the area of a tile, with both sides rounded to patches.
            Family::MiniCpmV => 2 * tile,
            Family::Lfm2 => square(self.tile_size).max(self.most_smart().saturating_mul(of_cell)),
            Family::Pixtral => u64::from(self.image_size.div_ceil(self.cell().max(1))).pow(2) * of_cell,
            Family::Gemma4 | Family::KimiVl | Family::Qwen2Vl | Family::Qwen25Vl | Family::Qwen3Vl | Family::Glm4v => {
                (self.most_rows() as u64).saturating_mul(of_cell)
            }
        };
        usize::try_from(patches).unwrap_or(usize::MAX)
    }

    /// The cells of the largest area.
    fn most_cells(&self) -> u64 {
        self.max_pixels / u64::from(self.cell()).pow(2).max(1)
    }

    /// The same for sides that are rounded up to one cell: a narrow picture may then have more.
    fn most_smart(&self) -> u64 {
        let cells = self.most_cells();
        cells.max(cells.saturating_mul(u64::from(MAX_ASPECT)).isqrt() + 1)
    }

    /// LLaVA 1.6's rows of a size without padding, with a newline after each line.
    fn rows_of_pinpoint(&self, (width, height): (u32, u32)) -> u64 {
        let across = u64::from(self.image_size / self.cell().max(1));
        let of = |side: u32| u64::from(side / self.image_size.max(1)) * across;
        of(height) * (of(width) + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Sizes of many shapes, from one pixel to 12,000.
    fn sizes() -> impl Iterator<Item = (u32, u32)> {
        let sides = [1, 13, 27, 28, 55, 139, 224, 336, 448, 500, 672, 900, 1024, 1344, 2048, 2999, 4096, 7168, 12_000];
        sides.into_iter().flat_map(move |width| sides.map(|height| (width, height)))
    }

    #[test]
    fn the_bound_is_reached() {
        for family in Family::ALL {
            let settings = PictureSettings::of(family);
            let most = sizes().filter_map(|(width, height)| Some(settings.plan(width, height, 0).ok()?.num_rows())).max().unwrap();
            let bound = settings.most_rows();
            assert!(most <= bound, "{family:?}: {most} of {bound}");
            match family {
                // Few shapes fill it.
                Family::Gemma4 => assert!(most + 5 > bound, "{most} of {bound}"),
                Family::KimiVl => assert!(most > 1024, "{most}"),
                // A picture whose tiles have the fewest pixels is no square.
                Family::Lfm2 => assert!(most > bound * 3 / 4, "{most} of {bound}"),
                _ => assert_eq!(most, bound, "{family:?}"),
            }
        }
    }

    /// The most patches of a plan's tiles.
    fn patches(settings: &PictureSettings, plan: &crate::PicturePlan) -> usize {
        let of = |tile: &crate::Tile| (tile.width / settings.patch_size) as usize * (tile.height / settings.patch_size) as usize;
        plan.tiles.iter().map(of).max().unwrap_or(0)
    }

    #[test]
    fn a_tile_has_no_more_patches_than_the_bound_and_not_far_fewer() {
        for family in Family::ALL {
            let settings = PictureSettings::of(family);
            let most =
                sizes().filter_map(|(width, height)| Some(patches(&settings, &settings.plan(width, height, 0).ok()?))).max().unwrap();
            let bound = settings.most_patches();
            assert!(most <= bound && 3 * most > bound, "{family:?}: {most} of {bound}");
        }
    }

    proptest! {
        #[test]
        fn no_picture_becomes_more_rows(
            family in 0..Family::ALL.len(), width in 1..9000u32, height in 1..9000u32, narrow in 1..60u32, rows in 1..5000u64
        ) {
            let mut settings = PictureSettings::of(Family::ALL[family]);
            for (width, height) in [(width, height), (narrow, height), (width, narrow)] {
                if let Ok(plan) = settings.plan(width, height, 0) {
                    prop_assert!(plan.num_rows() <= settings.most_rows(), "{:?}: {width} x {height}", settings.family);
                    let patches = patches(&settings, &plan);
                    prop_assert!(patches <= settings.most_patches(), "{:?}: {width} x {height}, {patches} patches", settings.family);
                }
            }
            if matches!(settings.family, Family::Qwen2Vl | Family::Qwen3Vl | Family::Glm4v) {
                settings.max_pixels = rows * u64::from(settings.cell()).pow(2);
                settings.min_pixels = settings.min_pixels.min(settings.max_pixels);
                let plan = settings.plan(width, height, 0);
                prop_assert!(plan.map_or(0, |plan| plan.num_rows()) <= settings.most_rows(), "{rows} rows: {width} x {height}");
            }
        }
    }
}
