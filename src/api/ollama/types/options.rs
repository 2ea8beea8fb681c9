//! `options`: how to sample. Options for loading a model are known, too.

use serde::Serialize;
use utoipa::ToSchema;

/// Options of a generation. Those that a request omits have the model's own defaults. Options for loading a model (`num_gpu`, `main_gpu`,
/// `num_thread`, `num_batch`, `use_mmap`, `use_mlock`, `numa`, `low_vram`, `f16_kv`, `num_keep`) are known but have no effect: the server's
/// configuration decides how models are loaded.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
#[schema(as = OllamaOptions)]
pub struct Options {
    /// The most tokens to generate. With 0 or less, as many as the context has left.
    pub num_predict: Option<i32>,
    /// Has no effect, because a model has the context that it is served with.
    pub num_ctx: Option<u32>,
    #[schema(minimum = 0, maximum = 1000)]
    pub temperature: Option<f32>,
    /// 0 and -1 switch this off.
    #[schema(minimum = -1)]
    pub top_k: Option<i32>,
    #[schema(minimum = 0, maximum = 1)]
    pub top_p: Option<f32>,
    #[schema(minimum = 0, maximum = 1)]
    pub min_p: Option<f32>,
    /// Only 1 is allowed, which switches this off.
    pub typical_p: Option<f32>,
    #[schema(exclusive_minimum = 0, maximum = 10)]
    pub repeat_penalty: Option<f32>,
    /// 0 switches all penalties off. With any other value, they see the whole text.
    #[schema(minimum = -1)]
    pub repeat_last_n: Option<i32>,
    #[schema(minimum = -2, maximum = 2)]
    pub presence_penalty: Option<f32>,
    #[schema(minimum = -2, maximum = 2)]
    pub frequency_penalty: Option<f32>,
    /// Texts that end the answer.
    pub stop: Option<Vec<String>>,
    /// -1 means a random seed.
    pub seed: Option<i64>,
}
