//! `/v1/chat/completions`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::common::{Generation, StopReason};
use super::logprobs::{ChatLogprobs, PromptLogprobs};
use super::template::TemplateFields;
use super::tools::{FunctionCall, FunctionDefinition, FunctionDelta, NamedFunction, ToolCall, ToolCallDelta};
use super::usage::Usage;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"model": "smollm2:135m", "messages": [{"role": "user", "content": "Name three rivers."}], "max_tokens": 40}))]
pub struct ChatRequest {
    pub model: String,
    pub messages: Vec<Message>,
    /// The largest number of tokens to generate. If absent or -1, up to the end of the context.
    #[schema(minimum = -1)]
    pub max_completion_tokens: Option<i64>,
    /// The older name of `max_completion_tokens`, which takes precedence.
    #[schema(minimum = -1)]
    pub max_tokens: Option<i64>,
    /// The older form of `tools`. If it is used, calls are returned in the older form, too.
    pub functions: Option<Vec<FunctionDefinition>>,
    /// The older form of `tool_choice`: `none`, `auto`, or the function to call.
    pub function_call: Option<FunctionChoice>,
    /// Whether one answer may make several calls. The default is true.
    pub parallel_tool_calls: Option<bool>,
    /// How much the model reasons before it answers: `none`, `minimal`, `low`, `medium`, `high`, `xhigh` or `max`. A chat template that
    /// does not know the level gets the nearest one that it knows. Templates without levels accept every value.
    pub reasoning_effort: Option<String>,
    /// OpenRouter's form of `reasoning_effort`.
    pub reasoning: Option<ChatReasoning>,
    /// vLLM's name for the most reasoning tokens before the answer. -1 means no bound.
    #[schema(minimum = -1)]
    pub thinking_token_budget: Option<i64>,
    /// `low`, `medium` or `high`. Has no effect, because no model here varies the length of its answers.
    pub verbosity: Option<String>,
    /// Return the log-probability of each token of the answer.
    pub logprobs: Option<bool>,
    /// The number of likeliest tokens to return at each position. Only with `logprobs`.
    #[schema(minimum = 0, maximum = 20)]
    pub top_logprobs: Option<u8>,
    /// vLLM's field: begin the answer with the text of the last message, if that is the assistant's. Has no effect otherwise.
    pub echo: Option<bool>,
    /// The text that the client expects as the answer. Tokens that come as predicted are generated several per step. Never changes the
    /// answer.
    pub prediction: Option<Prediction>,
    /// Store the answer, so that it can be retrieved later. The server stores a bounded number in memory.
    pub store: Option<bool>,
    #[serde(flatten)]
    pub template: TemplateFields,
    #[serde(flatten)]
    pub generation: Generation,
}

/// A text that the client expects as the answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Prediction {
    #[serde(rename = "type")]
    #[schema(example = "content")]
    pub kind: String,
    pub content: Content,
}

/// How much the model reasons, in the form that OpenRouter's clients use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatReasoning {
    /// A level, as in `reasoning_effort`.
    pub effort: Option<String>,
    /// The most tokens of reasoning, as in `thinking_token_budget`.
    #[schema(minimum = 1)]
    pub max_tokens: Option<u32>,
    /// False switches reasoning off.
    pub enabled: Option<bool>,
    /// Only false is allowed: reasoning is returned apart from the answer.
    pub exclude: Option<bool>,
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
    /// The older form of `tool`.
    Function,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Message {
    /// `system`, `developer` (read as `system`), `user`, `assistant`, `tool` or `function` (the older form of `tool`). Another role is
    /// accepted if the model's chat template shows it.
    #[schema(min_length = 1, max_length = 64, example = "user")]
    pub role: String,
    pub content: Option<Content>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// The calls in an assistant's message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCall>>,
    /// The reasoning of an assistant's message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Another name of `reasoning_content`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// The text with which the assistant refused. It counts as the message's text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
    /// The call in an assistant's message, in the older form.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function_call: Option<FunctionCall>,
    /// In the last message, if it is the assistant's: the same as `continue_final_message`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix: Option<bool>,
}

/// A text, or parts that the server joins with line breaks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Part {
    /// `text`, `image_url` in a message of the user or in the result of a tool, or `refusal` in a message of the assistant.
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
    /// A picture for a model with the capability `vision`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_url: Option<ImageUrl>,
}

/// A picture: its bytes in a `data:` URL, or its address if `server.picture_hosts` has the host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ImageUrl {
    #[schema(example = "data:image/png;base64,iVBORw0KGgo=")]
    pub url: String,
    /// `auto`, `low`, `high` or `original`. Has no effect: pictures are read in the size that the model was trained with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// `none`, `auto`, or the function to call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum FunctionChoice {
    Mode(String),
    Named(NamedFunction),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatCompletion {
    #[schema(example = "chatcmpl-6f1b0a9c4f5e4d0c8f3f5a3f0d1c2b4a")]
    pub id: String,
    #[schema(example = "chat.completion")]
    pub object: String,
    /// The time of creation [Unix seconds].
    pub created: u64,
    pub model: String,
    pub choices: Vec<ChatChoice>,
    /// Identifies the build, the model's digest and the backend. Answers with the same seed and the same fingerprint are the same.
    #[schema(example = "fp_0.1.0_5f3a0c9d1b2e_cpu")]
    pub system_fingerprint: String,
    pub usage: Usage,
    /// The tokens of the prompt. Only with `return_token_ids`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
    /// Only with `prompt_logprobs`. For each token of the prompt except the first, which has null: the likeliest tokens at its position and
    /// the token itself, by their ids. Each has `logprob`, `rank` and `decoded_token`. The rank is null for a prompt token that is not
    /// among the likeliest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Option<Object>>>)]
    pub prompt_logprobs: Option<PromptLogprobs>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatChoice {
    pub index: usize,
    pub message: AssistantMessage,
    /// Null unless the request asks for log-probabilities.
    #[schema(required = true)]
    pub logprobs: Option<ChatLogprobs>,
    /// `stop`, `length` or `tool_calls`. If the request has `functions`, `function_call` replaces `tool_calls`
    pub finish_reason: String,
    /// The stop text or the id in `stop_token_ids` that ended the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<StopReason>,
    /// The tokens of the answer. Only with `return_token_ids`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AssistantMessage {
    #[schema(example = "assistant")]
    pub role: String,
    /// Null if the message has calls and no text.
    #[schema(required = true)]
    pub content: Option<String>,
    /// The model's reasoning before the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCall>>,
    /// The call, if the request has `functions`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function_call: Option<FunctionCall>,
    /// Always null.
    #[schema(required = true)]
    pub refusal: Option<String>,
}

/// One server-sent event of a streamed answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatChunk {
    pub id: String,
    #[schema(example = "chat.completion.chunk")]
    pub object: String,
    pub created: u64,
    pub model: String,
    pub choices: Vec<ChatChunkChoice>,
    pub system_fingerprint: String,
    /// Only with `stream_options.include_usage`. Null on every chunk except the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Usage>)]
    pub usage: Option<Option<Usage>>,
    /// Only with `stream_options.include_progress` or `return_progress`, in chunks without choices before the first token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_progress: Option<PromptProgress>,
    /// The tokens of the prompt, in the first chunk. Only with `return_token_ids`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
    /// Random characters. Only with `stream_options.include_obfuscation`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub obfuscation: Option<String>,
}

/// The progress of the prompt [tokens].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PromptProgress {
    pub total: u32,
    /// Tokens that were found in the prefix cache.
    pub cached: u32,
    /// llama.cpp's name of `cached`.
    pub cache: u32,
    /// Tokens that have been processed, including `cached`.
    pub processed: u32,
    /// The time since the answer was begun [ms].
    pub time_ms: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatChunkChoice {
    pub index: usize,
    pub delta: Delta,
    /// The log-probabilities of the tokens whose text starts in this chunk.
    #[schema(required = true)]
    pub logprobs: Option<ChatLogprobs>,
    #[schema(required = true)]
    pub finish_reason: Option<String>,
    /// The stop text or the id in `stop_token_ids` that ended the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<StopReason>,
    /// The tokens of the answer. Only with `return_token_ids`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
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
    /// A piece of the call, if the request has `functions`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function_call: Option<FunctionDelta>,
}

impl Delta {
    /// The total length of the delta's texts [bytes].
    pub fn num_bytes(&self) -> usize {
        let texts = [&self.content, &self.reasoning_content].into_iter().flatten().map(String::len).sum::<usize>();
        let calls = self.tool_calls.iter().flatten().map(ToolCallDelta::num_bytes).sum::<usize>();
        texts + calls + self.function_call.as_ref().map_or(0, |function| function.arguments.len())
    }
}
