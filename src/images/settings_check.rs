//! Whether the numbers of a file fit each other. What this refuses could not be cut into tiles, or would make tiles without bound.

use crate::{Family, PictureSettings};

impl PictureSettings {
    /// Checks the numbers against each other.
    ///
    /// # Errors
    /// Names the setting that is wrong, by its key in the file.
    pub fn check(&self) -> Result<(), String> {
        const MOST: u32 = 1 << 14;
        let number = |key: &str, value: u32| match value {
            1..=MOST => Ok(()),
            _ => Err(format!("{key} is {value}, expected 1 to {MOST}")),
        };
        number("patch_size", self.patch_size)?;
        number("spatial_merge_size or projector.scale_factor", self.merge)?;
        number("patch_size times the merge", self.patch_size.saturating_mul(self.merge))?;
        if self.is_of_fixed_tiles() {
            number("image_size", self.image_size)?;
            let cell = if self.family == Family::MiniCpmV { self.patch_size } else { self.cell() };
            if self.family != Family::Gemma3n && !self.image_size.is_multiple_of(cell) {
                return Err(format!("image_size is {}, expected a multiple of {cell}, the side of a row's pixels", self.image_size));
            }
        }
        self.check_family()?;
        match self.std.iter().chain(&self.mean).all(|x| x.is_finite()) && self.std.iter().all(|&x| x > 0.0) {
            true => Ok(()),
            false => Err(format!("image_std is {:?}, expected numbers above 0, and image_mean finite ones", self.std)),
        }
    }

    fn check_family(&self) -> Result<(), String> {
        const MOST_TILES: u32 = 64;
        match self.family {
            Family::Qwen2Vl | Family::Qwen25Vl | Family::Qwen3Vl | Family::Glm4v | Family::Gemma4 | Family::Lfm2 | Family::KimiVl => {
                let most = 1 << 30;
                if self.max_pixels < u64::from(self.cell()).pow(2) || self.max_pixels > most || self.min_pixels > self.max_pixels {
                    let (min, max) = (self.min_pixels, self.max_pixels);
                    return Err(format!("image_min_pixels to image_max_pixels is {min} to {max}, expected a range up to {most}"));
                }
            }
            Family::Idefics3 if self.longest_side == 0 || self.longest_side > 1 << 14 => {
                return Err(format!("preproc_image_size is {}, expected 1 to {}", self.longest_side, 1 << 14));
            }
            Family::Pixtral if self.image_size < self.cell() || self.image_size > 1 << 14 => {
                return Err(format!("image_size is {}, expected {} to {}", self.image_size, self.cell(), 1 << 14));
            }
            Family::LlavaNext if !self.pinpoints.iter().all(|&(w, h)| self.is_grid(w) && self.is_grid(h)) || self.pinpoints.is_empty() => {
                let (pinpoints, side) = (&self.pinpoints, self.image_size);
                return Err(format!("image_grid_pinpoints is {pinpoints:?}, expected pairs of multiples of {side}, at most 16 each"));
            }
            _ => {}
        }
        if self.family == Family::Lfm2 && (self.tile_size == 0 || !self.tile_size.is_multiple_of(self.cell())) {
            return Err(format!("patch_size times the merge is {}, expected a divisor of a tile's side ({})", self.cell(), self.tile_size));
        }
        if self.min_tiles == 0 || self.max_tiles < self.min_tiles || self.max_tiles > MOST_TILES {
            let (min, max) = (self.min_tiles, self.max_tiles);
            return Err(format!("preproc_min_tiles to preproc_max_tiles is {min} to {max}, expected a range within 1 to {MOST_TILES}"));
        }
        if matches!(self.family, Family::MiniCpmV | Family::Gemma3n) && !(1..=4096).contains(&self.query_rows) {
            return Err(format!("minicpmv_query_num is {}, expected 1 to 4096", self.query_rows));
        }
        Ok(())
    }

    fn is_grid(&self, side: u32) -> bool {
        side.is_multiple_of(self.image_size) && (1..=16).contains(&(side / self.image_size))
    }

    /// Whether `image_size` is the side of each tile.
    fn is_of_fixed_tiles(&self) -> bool {
        use Family::{Gemma3, Gemma3n, Idefics3, InternVl, Llama4, Llava, LlavaNext, MiniCpmV};
        matches!(self.family, Gemma3 | Gemma3n | Idefics3 | InternVl | Llama4 | Llava | LlavaNext | MiniCpmV)
    }
}
