//! The field schemas of each body: the fields that its type documents, and those that are known without documentation.

use super::super::types::{chat, embed, generate, make, models};
use http::field_schema::SilentFields;

const CHAT: &str = "OllamaChatRequest";
const GENERATE: &str = "OllamaGenerateRequest";
const SHOW: &str = "OllamaShowRequest";
const PULL: &str = "OllamaPullRequest";
const CREATE: &str = "OllamaCreateRequest";
const MESSAGE: &str = "OllamaMessage";
const OPTIONS: &str = "OllamaOptions";
/// The reason why options of loading have no effect.
const LOADING: &str = "the configuration says how models are loaded";

/// Fields that are known but not documented. A field has no effect here, or something else reads or refuses it, as its reason says.
#[rustfmt::skip]
const SILENT: &[SilentFields] = &[
    (&[CHAT, GENERATE], &["truncate"], "a prompt that does not fit is refused"),
    (&[CHAT, GENERATE], &["shift"], "nothing is moved out of the context"),
    (&[OPTIONS], &["num_keep"], "nothing is moved out of the context"),
    (&[CHAT, GENERATE], &["_debug_render_only"], "refused unless it is false"),
    (&[OPTIONS], &["logits_all", "vocab_only", "embedding_only"], "refused unless it is false"),
    (&[GENERATE], &["width", "height", "steps"], "refused: no model here makes images"),
    (&[SHOW, PULL, CREATE], &["name"], "honoured: the older name of `model`"),
    (&[SHOW], &["system", "template", "options"], "refused unless it is empty"),
    (&[CREATE], &["modelfile", "path"], "refused unless it is empty"),
    (&[CREATE], &["quantization"], "honoured: the older name of `quantize`"),
    (&[CREATE], &["renderer", "parser", "requires", "info"], "the chat template says how prompts and answers are written"),
    (&["OllamaExampleMessage"], &["images", "tool_calls"], "refused unless there are none"),
    (&["OllamaExampleMessage"], &["thinking", "tool_name"], "an example is a text"),
    (&[PULL], &["username", "password"], "refused unless it is empty"),
    (&[PULL], &["insecure"], "certificates are checked either way"),
    (&[MESSAGE], &["context"], "what another server had found for an earlier answer"),
    (&[MESSAGE], &["name"], "honoured: who speaks, or the function of a result"),
    (&["OllamaToolFunction"], &["strict"], "calls follow what can be followed of a schema"),
    (&["OllamaToolCall"], &["type"], "all calls are of functions"),
    (&[OPTIONS], &["num_gpu", "main_gpu", "num_thread", "num_batch", "use_mmap", "use_mlock", "numa", "low_vram", "f16_kv"], LOADING),
    (&[OPTIONS], &["tfs_z", "mirostat"], "refused unless it is off"),
    (&[OPTIONS], &["mirostat_tau", "mirostat_eta"], "it means something with `mirostat` alone"),
    (&[OPTIONS], &["penalize_newline"], "refused unless it asks for nothing"),
];

http::field_schemas! { SILENT;
    CHATS: chat::ChatRequest;
    GENERATES: generate::GenerateRequest;
    EMBEDS: embed::EmbedRequest;
    OLDER_EMBEDS: embed::EmbeddingsRequest;
    SHOWS: models::ShowRequest;
    PULLS: models::PullRequest;
    CREATES: make::CreateRequest;
    COPIES: make::CopyRequest;
    /// The schema of a request to delete a model, which names the model like a request to describe one.
    DELETES: models::ShowRequest;
}
