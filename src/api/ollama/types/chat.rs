//! `/api/chat`.

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::common::{End, Format, KeepAlive, Logprob, Think};
use super::options::Options;

#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = OllamaChatRequest, example = json!({"model": "smollm2:135m", "stream": false,
    "options": {"num_predict": 16, "temperature": 0}, "messages": [{"role": "user", "content": "What is the capital of France?"}]}))]
pub struct ChatRequest {
    /// An id or an alias, with or without `:latest`.
    pub model: String,
    /// The conversation. If it is empty, the model is loaded, or unloaded with `keep_alive: 0`. If its last message is the assistant's, the
    /// answer continues that message.
    pub messages: Option<Vec<ChatMessage>>,
    pub tools: Option<Vec<Tool>>,
    #[schema(default = true)]
    pub stream: Option<bool>,
    pub format: Option<Format>,
    pub think: Option<Think>,
    pub options: Option<Options>,
    pub keep_alive: Option<KeepAlive>,
    /// Return the log-probability of each token of the answer's text.
    pub logprobs: Option<bool>,
    /// With `logprobs`, also return the log-probabilities of this many of the likeliest tokens at each position.
    #[schema(minimum = 0, maximum = 20)]
    pub top_logprobs: Option<u8>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = OllamaMessage)]
pub struct ChatMessage {
    /// `system`, `user`, `assistant` or `tool`. Any other role counts as `system`.
    #[schema(example = "user")]
    pub role: String,
    pub content: Option<String>,
    /// Pictures in base64, for a model with the capability `vision`.
    pub images: Option<Vec<String>>,
    /// The assistant's reasoning.
    pub thinking: Option<String>,
    pub tool_calls: Option<Vec<ToolCall>>,
    /// In a message of the role `tool`: the function whose result it is.
    pub tool_name: Option<String>,
    /// In a message of the role `tool`: the call whose result it is.
    pub tool_call_id: Option<String>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = OllamaTool)]
pub struct Tool {
    #[serde(rename = "type")]
    #[schema(example = "function")]
    pub kind: Option<String>,
    pub function: ToolFunction,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = OllamaToolFunction)]
pub struct ToolFunction {
    #[schema(pattern = "^[a-zA-Z0-9_.-]{1,64}$", example = "get_weather")]
    pub name: String,
    pub description: Option<String>,
    /// A JSON schema for the arguments, which every call follows.
    #[schema(value_type = Option<Object>)]
    pub parameters: Option<Value>,
}

#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = OllamaToolCall)]
pub struct ToolCall {
    #[schema(required = false)]
    pub id: String,
    pub function: CalledFunction,
}

#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = OllamaCalledFunction)]
pub struct CalledFunction {
    /// The number of the call in its answer, from 0.
    #[schema(required = false)]
    pub index: usize,
    pub name: String,
    #[schema(value_type = Object)]
    #[serde(serialize_with = "http::integers::write_arguments")]
    pub arguments: Map<String, Value>,
}

/// An answer, or a piece of it with `stream`. The last piece has `done`.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = OllamaChat)]
pub struct Chat {
    /// The model's name as the request gives it.
    pub model: String,
    #[schema(example = "2026-11-01T12:00:00.000000001Z")]
    pub created_at: String,
    pub message: AnswerMessage,
    pub done: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Vec<Logprob>>,
    #[serde(flatten)]
    pub end: End,
}

#[derive(Clone, Debug, Default, Serialize, ToSchema)]
#[schema(as = OllamaAnswer)]
pub struct AnswerMessage {
    #[schema(example = "assistant")]
    pub role: String,
    pub content: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub tool_calls: Vec<ToolCall>,
}
