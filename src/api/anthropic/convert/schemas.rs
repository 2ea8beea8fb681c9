//! The field schema of a request: the fields that its type documents, and those that are known without documentation.

use super::super::types::request::MessagesRequest;
use super::tools::HOSTED;
use http::field_schema::SilentFields;

const REQUEST: &str = "MessagesRequest";
const BLOCK: &str = "InputBlock";
const RESULT: &str = "ResultBlock";
const SOURCE: &str = "MessagesDocumentSource";
const TOOL: &str = "MessagesTool";
/// The reason why the fields of other kinds of document are known.
const OTHER_SOURCE: &str = "its `type` is refused, or left out of a result";

/// Fields that are known but not documented. A field has no effect here, or something else reads or refuses it, as its reason says.
#[rustfmt::skip]
const SILENT: &[SilentFields] = &[
    (&[REQUEST], &["output_format"], "honoured: the older name of output_config.format"),
    (&[REQUEST], &["inference_geo"], "there is one place"),
    (&[REQUEST], &["speed"], "refused unless it is `standard`"),
    (&[REQUEST], &["container"], "refused: no code is run here"),
    (&[REQUEST], &["mcp_servers"], "refused unless there are none"),
    (&[REQUEST], &["anthropic_version", "anthropic_beta"], "other clouds' place for the header"),
    (&[REQUEST], &["diagnostics"], "it asks for nothing that changes an answer"),
    (&[REQUEST], &["thread"], "refused: no conversation is kept here"),
    (&[REQUEST], &["user_profile_id", "workspace_id"], "it changes no answer"),
    (&[REQUEST], &["fallbacks", "fallback_credit_token"], "there are no other models to go on with"),
    (&[REQUEST], &["billing_policy"], "nothing is billed"),
    (&[REQUEST], &["compaction"], "refused: the server writes no summaries"),
    (&["MessagesInputMessage"], &["context"], "what another server had found for an earlier answer"),
    (&["MessagesThinking"], &["block_binding"], "reasoning is bound to nothing"),
    (&["OutputConfig"], &["task_budget"], "a session's budget is the client's to keep"),
    (&["CacheControl"], &["scope"], "every prompt is cached by itself"),
    (&[BLOCK, RESULT], &["cache_control"], "every prompt is cached by itself"),
    (&["SystemBlock"], &["citations"], "citations of an earlier answer"),
    (&[BLOCK, RESULT], &["citations"], "refused if they are enabled"),
    (&[BLOCK], &["caller"], "only the model itself calls tools"),
    (&[BLOCK], &["toolset_name"], "tools are known by their names"),
    (&[RESULT], &["title"], "honoured: the title of a document"),
    (&[RESULT], &["context"], "honoured: what a document is about"),
    (&[SOURCE], &["media_type", "url", "file_id"], OTHER_SOURCE),
    (&[TOOL], &["input_examples"], "honoured: the description has them"),
    (&[TOOL], &["defer_loading"], "the model is told of all tools at once"),
    (&[TOOL], &["eager_input_streaming"], "arguments are always streamed"),
    (&[TOOL], &["allowed_callers"], "refused unless it is the model"),
];

http::field_schemas! { SILENT;
    /// The field schema of requests to answer and to count.
    MESSAGES: MessagesRequest => .passing("tools", &HOSTED);
}
