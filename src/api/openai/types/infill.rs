//! The bodies of requests to `/infill`, in llama.cpp's words.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::native::NativeOptions;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"model": "qwen2.5-coder:0.5b", "input_prefix": "def add(a, b):\n    ", "input_suffix": "\n\nprint(add(1, 2))",
    "n_predict": 16, "temperature": 0}))]
pub struct InfillRequest {
    /// The text before the gap.
    pub input_prefix: Option<String>,
    /// The text after the gap.
    pub input_suffix: Option<String>,
    /// Other files of the same work. If the context has no room for all, the first ones are left out.
    pub input_extra: Option<Vec<InfillFile>>,
    /// The text with which the gap begins. The answer continues it.
    pub prompt: Option<String>,
    #[serde(flatten)]
    pub options: NativeOptions,
}

/// A file that the model sees before the gap.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InfillFile {
    pub filename: Option<String>,
    pub text: String,
}
