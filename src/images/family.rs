//! The families of vision models.

/// Models whose pictures are cut by one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    Gemma3,
    Gemma3n,
    Gemma4,
    Qwen2Vl,
    Qwen25Vl,
    Qwen3Vl,
    Glm4v,
    /// SmolVLM, too.
    Idefics3,
    /// Mistral Small 3, too.
    Pixtral,
    /// LLaVA 1.5.
    Llava,
    /// LLaVA 1.6.
    LlavaNext,
    InternVl,
    MiniCpmV,
    Llama4,
    Lfm2,
    KimiVl,
}

impl Family {
    /// All families.
    pub const ALL: [Self; 16] = [
        Self::Gemma3,
        Self::Gemma3n,
        Self::Gemma4,
        Self::Qwen2Vl,
        Self::Qwen25Vl,
        Self::Qwen3Vl,
        Self::Glm4v,
        Self::Idefics3,
        Self::Pixtral,
        Self::Llava,
        Self::LlavaNext,
        Self::InternVl,
        Self::MiniCpmV,
        Self::Llama4,
        Self::Lfm2,
        Self::KimiVl,
    ];

    /// The family of a `clip.projector_type`, if it is known. `has_pinpoints`: whether the file has `clip.vision.image_grid_pinpoints`.
    pub fn of_projector(projector: &str, has_pinpoints: bool) -> Option<Self> {
        Some(match projector {
            "gemma3" => Self::Gemma3,
            "gemma3nv" => Self::Gemma3n,
            "gemma4v" | "gemma4uv" => Self::Gemma4,
            "qwen2vl_merger" => Self::Qwen2Vl,
            "qwen2.5vl_merger" => Self::Qwen25Vl,
            "qwen3vl_merger" => Self::Qwen3Vl,
            "glm4v" => Self::Glm4v,
            "idefics3" => Self::Idefics3,
            "pixtral" => Self::Pixtral,
            "mlp" if has_pinpoints => Self::LlavaNext,
            "mlp" => Self::Llava,
            "internvl" => Self::InternVl,
            "resampler" => Self::MiniCpmV,
            "llama4" => Self::Llama4,
            "lfm2" => Self::Lfm2,
            "kimivl" => Self::KimiVl,
            _ => return None,
        })
    }
}
