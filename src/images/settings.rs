//! What a vision model's file says about pictures.

use std::hash::{Hash, Hasher};

use crate::Family;

/// Whose tiles LLaVA 1.6, MiniCPM-V and Llama 4 get. All other families have one rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Cutting {
    /// As the models were trained.
    #[default]
    Reference,
    /// As llama.cpp cuts them, for comparisons with it.
    LlamaCpp,
}

/// Text around tiles that only some vocabularies have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Markers {
    /// `<image_id>N</image_id>` before a picture of MiniCPM-V.
    pub image_ids: bool,
    /// `<|tile_x_separator|>`, `<|tile_y_separator|>` and `<|image|>` of Llama 4.
    pub tile_separators: bool,
}

/// How a model's pictures are cut, resized and normalised. [`PictureSettings::of`] has a family's defaults, which the keys of the file
/// replace.
#[derive(Clone, Debug, PartialEq)]
pub struct PictureSettings {
    pub family: Family,
    /// Side of a tile, and Pixtral's longest side [pixels].
    pub image_size: u32,
    pub patch_size: u32,
    /// Side of the square of patches that becomes a row [patches].
    pub merge: u32,
    /// Longest side that Idefics3 resizes to [pixels].
    pub longest_side: u32,
    /// Side of the tiles that LFM2 cuts large pictures into [pixels].
    pub tile_size: u32,
    pub min_tiles: u32,
    pub max_tiles: u32,
    /// Bounds of a picture's size after it has been resized, for families without tiles.
    pub min_pixels: u64,
    pub max_pixels: u64,
    /// Sizes that LLaVA 1.6 resizes to: width and height.
    pub pinpoints: Vec<(u32, u32)>,
    /// Rows per tile of MiniCPM-V and Gemma 3n.
    pub query_rows: u32,
    pub mean: [f32; 3],
    pub std: [f32; 3],
    pub markers: Markers,
    pub cutting: Cutting,
}

const HALF: [f32; 3] = [0.5; 3];
const CLIP_MEAN: [f32; 3] = [0.481_454_66, 0.457_827_5, 0.408_210_73];
const CLIP_STD: [f32; 3] = [0.268_629_54, 0.261_302_6, 0.275_777_1];
const IMAGENET_MEAN: [f32; 3] = [0.485, 0.456, 0.406];
const IMAGENET_STD: [f32; 3] = [0.229, 0.224, 0.225];

impl PictureSettings {
    /// A family's defaults.
    pub fn of(family: Family) -> Self {
        let base = Self {
            family,
            image_size: 448,
            patch_size: 14,
            merge: 2,
            longest_side: 0,
            tile_size: 0,
            min_tiles: 1,
            max_tiles: 1,
            min_pixels: 0,
            max_pixels: 0,
            pinpoints: Vec::new(),
            query_rows: 0,
            mean: HALF,
            std: HALF,
            markers: Markers { image_ids: true, tile_separators: true },
            cutting: Cutting::Reference,
        };
        let clip = Self { mean: CLIP_MEAN, std: CLIP_STD, ..base.clone() };
        match family {
            Family::Gemma3 => Self { image_size: 896, merge: 4, ..base },
            Family::Gemma3n => Self { image_size: 768, merge: 1, query_rows: 256, ..base },
            Family::Gemma4 => Self { patch_size: 16, merge: 3, mean: [0.0; 3], std: [1.0; 3], ..base },
            Family::Qwen2Vl | Family::Qwen25Vl | Family::Glm4v => clip,
            Family::Qwen3Vl => Self { patch_size: 16, ..base },
            Family::Idefics3 => Self { image_size: 512, patch_size: 16, merge: 4, longest_side: 2048, ..base },
            Family::Pixtral => Self { image_size: 1024, patch_size: 16, merge: 1, ..clip },
            Family::Llava => Self { image_size: 336, merge: 1, ..clip },
            Family::LlavaNext => {
                let pinpoints = vec![(672, 336), (336, 672), (672, 672), (336, 1008), (1008, 336)];
                Self { image_size: 336, merge: 1, pinpoints, ..clip }
            }
            Family::InternVl => Self { max_tiles: 12, mean: IMAGENET_MEAN, std: IMAGENET_STD, ..base },
            Family::MiniCpmV => Self { merge: 1, max_tiles: 9, query_rows: 64, ..base },
            Family::Llama4 => Self { image_size: 336, max_tiles: 16, ..base },
            Family::Lfm2 => Self { image_size: 256, patch_size: 16, tile_size: 512, min_tiles: 2, max_tiles: 10, ..base },
            Family::KimiVl => base,
        }
        .with_default_bounds()
    }

    /// Sets the bounds of the resized size to the family's numbers of rows. Call it again when `patch_size` or `merge` changes and the file
    /// has no bounds of its own.
    #[must_use]
    pub fn with_default_bounds(self) -> Self {
        let area = u64::from(self.cell()).pow(2);
        let (min, max) = match self.family {
            Family::Qwen2Vl | Family::Qwen25Vl | Family::Qwen3Vl | Family::Glm4v => (8, 4096),
            Family::Gemma4 => (0, 280),
            Family::Lfm2 => (64, 256),
            // 4,096 patches
            Family::KimiVl => return Self { max_pixels: 4096 * u64::from(self.patch_size).pow(2), ..self },
            _ => (0, 0),
        };
        Self { min_pixels: min * area, max_pixels: max * area, ..self }
    }

    /// Leaves out optional markers that the vocabulary lacks. `has`: whether it has a control token of that text.
    #[must_use]
    pub fn with_vocabulary(self, has: impl Fn(&str) -> bool) -> Self {
        let image_ids = has("<image_id>") && has("</image_id>");
        let tile_separators = ["<|tile_x_separator|>", "<|tile_y_separator|>", "<|image|>"].into_iter().all(has);
        Self { markers: Markers { image_ids, tile_separators }, ..self }
    }

    /// Side of the square of pixels that becomes a row.
    pub fn cell(&self) -> u32 {
        self.patch_size * self.merge
    }
}

/// Floats are compared by their bits, so equal settings have equal hashes.
impl Hash for PictureSettings {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { family, image_size, patch_size, merge, longest_side, tile_size, min_tiles, max_tiles, .. } = self;
        (family, image_size, patch_size, merge, longest_side, tile_size, min_tiles, max_tiles).hash(state);
        let Self { min_pixels, max_pixels, pinpoints, query_rows, mean, std, markers, cutting, .. } = self;
        (min_pixels, max_pixels, pinpoints, query_rows, mean.map(f32::to_bits), std.map(f32::to_bits), markers, cutting).hash(state);
    }
}
