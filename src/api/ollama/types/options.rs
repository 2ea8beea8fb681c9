//! `options`: how to sample, and how Ollama would load a model.

use serde::Serialize;
use utoipa::ToSchema;

/// What a request leaves open has the model's own default. Options of how a model is loaded (`num_gpu`, `main_gpu`, `num_thread`,
/// `num_batch`, `use_mmap`, `use_mlock`, `numa`, `low_vram`, `f16_kv`, `num_keep`) are known and change nothing: the server's
/// configuration says how models are loaded.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
#[schema(as = OllamaOptions)]
pub struct Options {
    /// The largest number of tokens to generate. 0 and less: as many as the context has left.
    pub num_predict: Option<i32>,
    /// Changes nothing: a model has the context that it is served with.
    pub num_ctx: Option<u32>,
    #[schema(minimum = 0, maximum = 1000)]
    pub temperature: Option<f32>,
    /// 0 and -1: off.
    #[schema(minimum = -1)]
    pub top_k: Option<i32>,
    #[schema(minimum = 0, maximum = 1)]
    pub top_p: Option<f32>,
    #[schema(minimum = 0, maximum = 1)]
    pub min_p: Option<f32>,
    /// Only 1, which is off.
    pub typical_p: Option<f32>,
    #[schema(exclusive_minimum = 0, maximum = 10)]
    pub repeat_penalty: Option<f32>,
    /// 0: no penalties. Otherwise they see the whole text.
    #[schema(minimum = -1)]
    pub repeat_last_n: Option<i32>,
    #[schema(minimum = -2, maximum = 2)]
    pub presence_penalty: Option<f32>,
    #[schema(minimum = -2, maximum = 2)]
    pub frequency_penalty: Option<f32>,
    /// Texts that end the answer.
    pub stop: Option<Vec<String>>,
    /// -1: any.
    pub seed: Option<i64>,
}
