//! `/v1/chat/completions`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::common::Generation;
use super::logprobs::ChatLogprobs;
use super::usage::Usage;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"model": "smollm2:135m", "messages": [{"role": "user", "content": "Name three rivers."}], "max_tokens": 40}))]
pub struct ChatRequest {
    pub model: String,
    pub messages: Vec<Message>,
    /// At most this many tokens are generated. Absent: up to the end of the context.
    #[schema(minimum = 1)]
    pub max_completion_tokens: Option<u32>,
    /// As `max_completion_tokens`, which wins.
    #[schema(minimum = 1)]
    pub max_tokens: Option<u32>,
    /// Functions that the model may call.
    pub tools: Option<Vec<ToolDefinition>>,
    pub tool_choice: Option<ToolChoice>,
    /// May one answer make several calls (true unless said otherwise)?
    pub parallel_tool_calls: Option<bool>,
    /// Let the template open the assistant's turn (true unless said otherwise).
    pub add_generation_prompt: Option<bool>,
    /// Go on with the last message, which is the assistant's, instead of answering it.
    pub continue_final_message: Option<bool>,
    /// `none`, `minimal`, `low`, `medium`, `high` or `xhigh`: how much to think before the answer, where the model's template knows levels.
    pub reasoning_effort: Option<String>,
    /// Further variables for the model's chat template.
    #[schema(value_type = Option<Object>)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Tell how likely each token of the answer was.
    pub logprobs: Option<bool>,
    /// And the likeliest tokens in its place; only with `logprobs`.
    #[schema(minimum = 0, maximum = 20)]
    pub top_logprobs: Option<u8>,
    #[serde(flatten)]
    pub generation: Generation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    System,
    /// Read as `system`.
    Developer,
    User,
    Assistant,
    Tool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Message {
    pub role: Role,
    pub content: Option<Content>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Of an assistant's message: the calls that it made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCall>>,
    /// Of an assistant's message: what it thought before it answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Of the last message, an assistant's: as `continue_final_message`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ToolDefinition {
    /// `function`, where it is given.
    #[serde(rename = "type")]
    #[schema(example = "function")]
    pub kind: Option<String>,
    pub function: FunctionDefinition,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FunctionDefinition {
    #[schema(pattern = "^[a-zA-Z0-9_.-]{1,64}$", example = "get_weather")]
    pub name: String,
    pub description: Option<String>,
    /// A JSON schema, which the arguments of a call always follow. Absent: any object.
    #[schema(value_type = Option<Object>)]
    pub parameters: Option<Value>,
    /// Schemas are always followed strictly.
    pub strict: Option<bool>,
}

/// `none`, `auto` (the model decides), `required` (one call at least), or the function to call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum ToolChoice {
    Mode(String),
    Named(NamedTool),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NamedTool {
    /// `function`, where it is given.
    #[serde(rename = "type")]
    #[schema(example = "function")]
    pub kind: Option<String>,
    pub function: NamedFunction,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NamedFunction {
    pub name: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ToolCall {
    #[schema(example = "call_9f2c1e0d4b5a46c7a8b9c0d1e2f3a4b5")]
    pub id: String,
    #[serde(rename = "type")]
    #[schema(example = "function")]
    pub kind: String,
    pub function: FunctionCall,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FunctionCall {
    pub name: String,
    /// A JSON object, as text.
    #[schema(example = "{\"city\": \"Oslo\"}")]
    pub arguments: String,
}

/// A text, or parts that are joined with line breaks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Part {
    /// `text`
    #[serde(rename = "type")]
    pub kind: String,
    pub text: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatCompletion {
    #[schema(example = "chatcmpl-6f1b0a9c4f5e4d0c8f3f5a3f0d1c2b4a")]
    pub id: String,
    #[schema(example = "chat.completion")]
    pub object: String,
    /// Unix seconds.
    pub created: u64,
    pub model: String,
    pub choices: Vec<ChatChoice>,
    /// The build, the model's digest and the backend: while it is the same, so are seeded answers.
    #[schema(example = "fp_0.1.0_5f3a0c9d1b2e_cpu")]
    pub system_fingerprint: String,
    pub usage: Usage,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatChoice {
    pub index: usize,
    pub message: AssistantMessage,
    /// Null unless they were asked for.
    #[schema(required = true)]
    pub logprobs: Option<ChatLogprobs>,
    /// `stop`, `length` or `tool_calls`
    pub finish_reason: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AssistantMessage {
    #[schema(example = "assistant")]
    pub role: String,
    /// Null where there are calls and no text.
    #[schema(required = true)]
    pub content: Option<String>,
    /// What the model thought before it answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCall>>,
    /// Always null.
    #[schema(required = true)]
    pub refusal: Option<String>,
}

/// One server-sent event of a streamed answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatChunk {
    pub id: String,
    #[schema(example = "chat.completion.chunk")]
    pub object: String,
    pub created: u64,
    pub model: String,
    pub choices: Vec<ChatChunkChoice>,
    pub system_fingerprint: String,
    /// Only with `stream_options.include_usage`: null but on the last chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Usage>)]
    pub usage: Option<Option<Usage>>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatChunkChoice {
    pub index: usize,
    pub delta: Delta,
    /// Of the tokens that begin in what is shown so far.
    #[schema(required = true)]
    pub logprobs: Option<ChatLogprobs>,
    #[schema(required = true)]
    pub finish_reason: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCallDelta>>,
}

/// A piece of a call: the first of a call has id, type and name; the arguments of all of them concatenate to JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ToolCallDelta {
    pub index: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    pub function: FunctionDelta,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FunctionDelta {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub arguments: String,
}
