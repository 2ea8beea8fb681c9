//! The response of `/v1/messages`, and the counts of `/v1/messages/count_tokens`.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MessagesAnswer {
    #[schema(example = "msg_6f1b0a9c4f5e4d0c8f3f5a3f0d1c2b4a")]
    pub id: String,
    /// Always `message`
    #[serde(rename = "type")]
    #[schema(example = "message")]
    pub kind: String,
    /// Always `assistant`
    #[schema(example = "assistant")]
    pub role: String,
    pub model: String,
    pub content: Vec<AnswerBlock>,
    /// `end_turn`, `max_tokens`, `stop_sequence`, `tool_use` or `model_context_window_exceeded`. Null at the start of a stream.
    #[schema(required = true, example = "end_turn")]
    pub stop_reason: Option<String>,
    /// The stop sequence that ended the answer.
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
        /// An opaque text. With `display: omitted`, it carries the reasoning for the next request.
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

/// The tokens of a request. Those of the prompt are `input_tokens` plus `cache_read_input_tokens`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MessagesUsage {
    /// Tokens of the prompt that were computed because the prefix cache did not hold them.
    pub input_tokens: u32,
    /// Always 0. Every prompt is cached without being asked, at no extra cost.
    pub cache_creation_input_tokens: u32,
    /// Tokens of the prompt that were found in the prefix cache.
    pub cache_read_input_tokens: u32,
    /// Generated tokens, including those of the reasoning.
    pub output_tokens: u32,
    pub output_tokens_details: ThinkingCount,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ThinkingCount {
    /// Tokens of the reasoning, shown or not.
    pub thinking_tokens: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MessagesCount {
    /// Tokens of the whole prompt, with system prompt, messages and tools as the model's chat template writes them.
    pub input_tokens: usize,
}
