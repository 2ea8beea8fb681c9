//! [`CacheType`]: how keys and values are stored in the KV cache.

use std::fmt;

/// How an engine stores keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CacheType {
    /// 32 bits per element.
    #[default]
    F32,
    /// 16 bits per element.
    F16,
    /// 8 bits per element, and a float16 scale for each 32 elements of a head.
    Q8,
}

impl CacheType {
    pub const ALL: [Self; 3] = [Self::F32, Self::F16, Self::Q8];

    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Q8 => "q8",
        }
    }
}

impl fmt::Display for CacheType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
