//! [`CacheType`]: the setting `engine.cache_type`.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How keys and values are stored in the KV cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", try_from = "String")]
pub enum CacheType {
    /// As the device does by itself: `f32` on the CPU, `f16` on a GPU.
    #[default]
    Auto,
    F32,
    F16,
    /// 8 bits per element, and a float16 scale for each 32 elements of a head.
    Q8,
}

impl CacheType {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Q8 => "q8",
        }
    }
}

impl FromStr for CacheType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::Auto, Self::F32, Self::F16, Self::Q8];
        all.into_iter()
            .find(|known| known.name() == text)
            .ok_or_else(|| format!("`{}` is no type of KV cache: choose auto, f32, f16 or q8", text.escape_debug()))
    }
}

impl TryFrom<String> for CacheType {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}
