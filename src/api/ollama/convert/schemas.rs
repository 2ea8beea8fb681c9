//! The field schemas of each body: the fields that its type documents, and those that are known without documentation.

use std::sync::LazyLock;

use super::super::types::{chat, embed, generate, models};
use http::field_schema::{FieldSchema, SilentField};

const CHAT: &str = "OllamaChatRequest";
const GENERATE: &str = "OllamaGenerateRequest";
const SHOW: &str = "OllamaShowRequest";
const PULL: &str = "OllamaPullRequest";
const MESSAGE: &str = "OllamaMessage";
const OPTIONS: &str = "OllamaOptions";
/// The reason why options of loading have no effect.
const LOADING: &str = "the configuration says how models are loaded";

/// Fields that are known but not documented. Each has its reason: the field has no effect here, or something else reads or refuses it.
#[rustfmt::skip]
const SILENT: &[SilentField] = &[
    SilentField { schema: CHAT, field: "truncate", reason: "a prompt that does not fit is refused" },
    SilentField { schema: CHAT, field: "shift", reason: "nothing is moved out of the context" },
    SilentField { schema: CHAT, field: "_debug_render_only", reason: "refused unless it is false" },
    SilentField { schema: GENERATE, field: "truncate", reason: "a prompt that does not fit is refused" },
    SilentField { schema: GENERATE, field: "shift", reason: "nothing is moved out of the context" },
    SilentField { schema: GENERATE, field: "_debug_render_only", reason: "refused unless it is false" },
    SilentField { schema: GENERATE, field: "images", reason: "refused unless there are none" },
    SilentField { schema: GENERATE, field: "width", reason: "refused: no model here makes images" },
    SilentField { schema: GENERATE, field: "height", reason: "refused: no model here makes images" },
    SilentField { schema: GENERATE, field: "steps", reason: "refused: no model here makes images" },
    SilentField { schema: SHOW, field: "name", reason: "honoured: the older name of `model`" },
    SilentField { schema: SHOW, field: "system", reason: "refused unless it is empty" },
    SilentField { schema: SHOW, field: "template", reason: "refused unless it is empty" },
    SilentField { schema: SHOW, field: "options", reason: "refused unless it is empty" },
    SilentField { schema: PULL, field: "name", reason: "honoured: the older name of `model`" },
    SilentField { schema: PULL, field: "insecure", reason: "certificates are checked either way" },
    SilentField { schema: PULL, field: "username", reason: "refused unless it is empty" },
    SilentField { schema: PULL, field: "password", reason: "refused unless it is empty" },
    SilentField { schema: MESSAGE, field: "context", reason: "what another server had found for an earlier answer" },
    SilentField { schema: MESSAGE, field: "images", reason: "refused unless there are none" },
    SilentField { schema: MESSAGE, field: "name", reason: "honoured: who speaks, or the function of a result" },
    SilentField { schema: "OllamaToolFunction", field: "strict", reason: "calls follow what can be followed of a schema" },
    SilentField { schema: "OllamaToolCall", field: "type", reason: "all calls are of functions" },
    SilentField { schema: OPTIONS, field: "num_gpu", reason: LOADING },
    SilentField { schema: OPTIONS, field: "main_gpu", reason: LOADING },
    SilentField { schema: OPTIONS, field: "num_thread", reason: LOADING },
    SilentField { schema: OPTIONS, field: "num_batch", reason: LOADING },
    SilentField { schema: OPTIONS, field: "num_keep", reason: "nothing is moved out of the context" },
    SilentField { schema: OPTIONS, field: "use_mmap", reason: LOADING },
    SilentField { schema: OPTIONS, field: "use_mlock", reason: LOADING },
    SilentField { schema: OPTIONS, field: "numa", reason: LOADING },
    SilentField { schema: OPTIONS, field: "low_vram", reason: LOADING },
    SilentField { schema: OPTIONS, field: "f16_kv", reason: LOADING },
    SilentField { schema: OPTIONS, field: "tfs_z", reason: "refused unless it is off" },
    SilentField { schema: OPTIONS, field: "mirostat", reason: "refused unless it is off" },
    SilentField { schema: OPTIONS, field: "mirostat_tau", reason: "it means something with `mirostat` alone" },
    SilentField { schema: OPTIONS, field: "mirostat_eta", reason: "it means something with `mirostat` alone" },
    SilentField { schema: OPTIONS, field: "penalize_newline", reason: "refused unless it asks for nothing" },
    SilentField { schema: OPTIONS, field: "logits_all", reason: "refused unless it is false" },
    SilentField { schema: OPTIONS, field: "vocab_only", reason: "refused unless it is false" },
    SilentField { schema: OPTIONS, field: "embedding_only", reason: "refused unless it is false" },
];

type Schema = LazyLock<FieldSchema>;

pub static CHATS: Schema = LazyLock::new(|| FieldSchema::of::<chat::ChatRequest>(SILENT));
pub static GENERATES: Schema = LazyLock::new(|| FieldSchema::of::<generate::GenerateRequest>(SILENT));
pub static EMBEDS: Schema = LazyLock::new(|| FieldSchema::of::<embed::EmbedRequest>(SILENT));
pub static OLDER_EMBEDS: Schema = LazyLock::new(|| FieldSchema::of::<embed::EmbeddingsRequest>(SILENT));
pub static SHOWS: Schema = LazyLock::new(|| FieldSchema::of::<models::ShowRequest>(SILENT));
pub static PULLS: Schema = LazyLock::new(|| FieldSchema::of::<models::PullRequest>(SILENT));
/// The schema of a request to delete a model, which names the model like a request to describe one.
pub static DELETES: Schema = LazyLock::new(|| FieldSchema::of::<models::ShowRequest>(SILENT));
