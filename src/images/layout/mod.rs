//! The size rules: from a picture's size to tiles, rows and text.
//!
//! Each rule is that of the model's own image processor, with its arithmetic (float64, ties to even, float32 in Llama 4), because one pixel
//! more in a size moves every patch.

mod error;
mod fixed;
mod grid;
mod idefics3;
mod lfm2;
mod llama4;
mod llama_cpp;
mod llava_next;
mod minicpmv;
mod single;
mod size;

pub use error::LayoutError;
pub use idefics3::MAX_SIDE;

use crate::{Cutting, Family, PicturePlan, PictureSettings};

/// Most times that one side may be longer than the other. The Qwen models' own limit; beyond it, sides round to nothing in most rules.
pub const MAX_ASPECT: u32 = 200;

impl PictureSettings {
    /// What becomes of a picture of this size. `picture` is its number in the prompt, from 0 on.
    ///
    /// # Errors
    /// The model reads no picture of this size.
    pub fn plan(&self, width: u32, height: u32, picture: usize) -> Result<PicturePlan, LayoutError> {
        if width == 0 || height == 0 {
            return Err(LayoutError::Empty);
        }
        if width.max(height).div_ceil(width.min(height)) > MAX_ASPECT {
            return Err(LayoutError::TooNarrow { width, height });
        }
        let size = (width, height);
        let is_llama_cpp = self.cutting == Cutting::LlamaCpp;
        let mut plan = PicturePlan::new();
        let (before, after) = self.brackets();
        plan.text(before);
        match self.family {
            Family::Gemma3 | Family::Gemma3n => fixed::stretched(self, &mut plan),
            Family::Llava => fixed::padded(self, size, &mut plan),
            Family::Gemma4 => single::gemma4(self, size, &mut plan),
            Family::Qwen2Vl | Family::Qwen25Vl | Family::Qwen3Vl | Family::Glm4v => single::smart(self, size, &mut plan),
            Family::Pixtral => single::pixtral(self, size, &mut plan)?,
            Family::KimiVl => single::kimi(self, size, &mut plan)?,
            Family::Idefics3 => idefics3::layout(self, size, &mut plan),
            Family::InternVl => grid::internvl(self, size, &mut plan),
            Family::Lfm2 => lfm2::layout(self, size, &mut plan),
            Family::LlavaNext if is_llama_cpp => llama_cpp::llava_next(self, size, &mut plan),
            Family::LlavaNext => llava_next::layout(self, size, &mut plan),
            Family::MiniCpmV if is_llama_cpp => llama_cpp::minicpmv(self, size, &mut plan),
            Family::MiniCpmV => minicpmv::layout(self, size, picture, &mut plan),
            Family::Llama4 if is_llama_cpp => llama_cpp::llama4(self, size, &mut plan),
            Family::Llama4 => llama4::layout(self, size, &mut plan),
        }
        plan.text(after);
        Ok(plan)
    }

    /// The text before and after a picture of any size.
    fn brackets(&self) -> (&'static str, &'static str) {
        match self.family {
            Family::Gemma3 | Family::Gemma3n => ("<start_of_image>", "<end_of_image>"),
            Family::Gemma4 => ("<|image>", "<image|>"),
            Family::Qwen2Vl | Family::Qwen25Vl | Family::Qwen3Vl => ("<|vision_start|>", "<|vision_end|>"),
            Family::Glm4v => ("<|begin_of_image|>", "<|end_of_image|>"),
            Family::Pixtral => ("", "[IMG_END]"),
            Family::InternVl => ("<img>", "</img>"),
            Family::Llama4 | Family::Lfm2 => ("<|image_start|>", "<|image_end|>"),
            Family::KimiVl => ("<|media_start|>", "<|media_end|>"),
            Family::Idefics3 | Family::Llava | Family::LlavaNext | Family::MiniCpmV => ("", ""),
        }
    }
}
