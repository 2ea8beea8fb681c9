//! The answer of `/v1/messages`, and the counts of `/v1/messages/count_tokens`.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MessagesAnswer {
    #[schema(example = "msg_6f1b0a9c4f5e4d0c8f3f5a3f0d1c2b4a")]
    pub id: String,
    /// `message`
    #[serde(rename = "type")]
    #[schema(example = "message")]
    pub kind: String,
    /// `assistant`
    #[schema(example = "assistant")]
    pub role: String,
    pub model: String,
    pub content: Vec<AnswerBlock>,
    /// `end_turn`, `max_tokens`, `stop_sequence`, `tool_use` or `model_context_window_exceeded`. Null at the beginning of a stream.
    #[schema(required = true, example = "end_turn")]
    pub stop_reason: Option<String>,
    /// The text of `stop_sequences` that ended the answer.
    #[schema(required = true)]
    pub stop_sequence: Option<String>,
    pub usage: MessagesUsage,
}

/// A block of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum AnswerBlock {
    Text {
        text: String,
    },
    /// The model's reasoning, if the request asks for `thinking`.
    Thinking {
        thinking: String,
        /// Opaque. With `display: omitted` it carries the reasoning, for the next request.
        signature: String,
    },
    ToolUse {
        id: String,
        name: String,
        #[schema(value_type = Object)]
        #[serde(serialize_with = "http::integers::write_input")]
        input: Value,
    },
}

/// What a request has cost. The prompt has `input_tokens` and `cache_read_input_tokens` together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MessagesUsage {
    /// Tokens of the prompt that were computed: those that the cache did not hold.
    pub input_tokens: u32,
    /// Always 0: every prompt is cached by itself, and none costs more for it.
    pub cache_creation_input_tokens: u32,
    /// Tokens of the prompt that the prefix cache held.
    pub cache_read_input_tokens: u32,
    /// Tokens that the model wrote, those of its reasoning included.
    pub output_tokens: u32,
    pub output_tokens_details: ThinkingCount,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ThinkingCount {
    /// Tokens of the reasoning, whether it is shown or not.
    pub thinking_tokens: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MessagesCount {
    /// Tokens of the whole prompt: system, messages and tools, as the model's chat template writes them.
    pub input_tokens: usize,
}
