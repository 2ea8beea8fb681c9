//! The field schema of a request: the fields that its type documents, and those that are known without documentation.

use std::sync::LazyLock;

use super::super::types::request::MessagesRequest;
use super::tools::HOSTED;
use http::field_schema::{FieldSchema, SilentField};

const REQUEST: &str = "MessagesRequest";
const BLOCK: &str = "InputBlock";
const RESULT: &str = "ResultBlock";
const SOURCE: &str = "MessagesDocumentSource";
const TOOL: &str = "MessagesTool";
/// The reason why the fields of other kinds of document are known.
const OTHER_SOURCE: &str = "its `type` is refused, or left out of a result";

/// Fields that are known but not documented. Each has its reason: the field has no effect here, or something else reads or refuses it.
#[rustfmt::skip]
const SILENT: &[SilentField] = &[
    SilentField { schema: REQUEST, field: "output_format", reason: "honoured: the older name of output_config.format" },
    SilentField { schema: REQUEST, field: "inference_geo", reason: "there is one place" },
    SilentField { schema: REQUEST, field: "speed", reason: "refused unless it is `standard`" },
    SilentField { schema: REQUEST, field: "container", reason: "refused: no code is run here" },
    SilentField { schema: REQUEST, field: "mcp_servers", reason: "refused unless there are none" },
    SilentField { schema: REQUEST, field: "anthropic_version", reason: "other clouds' place for the header" },
    SilentField { schema: REQUEST, field: "anthropic_beta", reason: "other clouds' place for the header" },
    SilentField { schema: REQUEST, field: "diagnostics", reason: "it asks for nothing that changes an answer" },
    SilentField { schema: REQUEST, field: "thread", reason: "refused: no conversation is kept here" },
    SilentField { schema: REQUEST, field: "user_profile_id", reason: "it changes no answer" },
    SilentField { schema: REQUEST, field: "workspace_id", reason: "it changes no answer" },
    SilentField { schema: REQUEST, field: "fallbacks", reason: "there are no other models to go on with" },
    SilentField { schema: REQUEST, field: "fallback_credit_token", reason: "there are no other models to go on with" },
    SilentField { schema: REQUEST, field: "billing_policy", reason: "nothing is billed" },
    SilentField { schema: REQUEST, field: "compaction", reason: "refused: the server writes no summaries" },
    SilentField { schema: "MessagesInputMessage", field: "context", reason: "what another server had found for an earlier answer" },
    SilentField { schema: "MessagesThinking", field: "block_binding", reason: "reasoning is bound to nothing" },
    SilentField { schema: "OutputConfig", field: "task_budget", reason: "a session's budget is the client's to keep" },
    SilentField { schema: "CacheControl", field: "scope", reason: "every prompt is cached by itself" },
    SilentField { schema: "SystemBlock", field: "citations", reason: "citations of an earlier answer" },
    SilentField { schema: BLOCK, field: "citations", reason: "refused if they are enabled" },
    SilentField { schema: BLOCK, field: "cache_control", reason: "every prompt is cached by itself" },
    SilentField { schema: BLOCK, field: "caller", reason: "only the model itself calls tools" },
    SilentField { schema: BLOCK, field: "toolset_name", reason: "tools are known by their names" },
    SilentField { schema: RESULT, field: "citations", reason: "refused if they are enabled" },
    SilentField { schema: RESULT, field: "cache_control", reason: "every prompt is cached by itself" },
    SilentField { schema: RESULT, field: "title", reason: "honoured: the title of a document" },
    SilentField { schema: RESULT, field: "context", reason: "honoured: what a document is about" },
    SilentField { schema: SOURCE, field: "media_type", reason: OTHER_SOURCE },
    SilentField { schema: SOURCE, field: "url", reason: OTHER_SOURCE },
    SilentField { schema: SOURCE, field: "file_id", reason: OTHER_SOURCE },
    SilentField { schema: TOOL, field: "input_examples", reason: "honoured: the description has them" },
    SilentField { schema: TOOL, field: "defer_loading", reason: "the model is told of all tools at once" },
    SilentField { schema: TOOL, field: "eager_input_streaming", reason: "arguments are always streamed" },
    SilentField { schema: TOOL, field: "allowed_callers", reason: "refused unless it is the model" },
];

/// The field schema of requests to answer and to count.
pub static MESSAGES: LazyLock<FieldSchema> = LazyLock::new(|| FieldSchema::of::<MessagesRequest>(SILENT).passing("tools", &HOSTED));
