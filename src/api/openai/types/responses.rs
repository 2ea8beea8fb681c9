//! `/v1/responses`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::response_items::{InputItem, OutputItem};
use super::structured::NamedSchema;
use super::tools::{FunctionDefinition, TextGrammar};
use super::usage::Usage;
use logits::SamplingParams;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"model": "smollm2:135m", "input": "Name three rivers.", "max_output_tokens": 40}))]
pub struct ResponseRequest {
    pub model: String,
    /// A text, or a list of items. It may be absent if the request continues a response or a conversation, or has instructions.
    pub input: Option<ResponseInput>,
    /// Instructions before the conversation. They do not carry over to the next response.
    pub instructions: Option<String>,
    /// A stored response that this one continues.
    pub previous_response_id: Option<String>,
    /// Store the response, so that another one can continue it. The default is true. The server stores a bounded number in memory.
    pub store: Option<bool>,
    /// Send the answer piece by piece as server-sent events.
    pub stream: Option<bool>,
    /// The largest number of tokens to generate. If absent or -1, up to the end of the context.
    #[schema(minimum = -1)]
    pub max_output_tokens: Option<i64>,
    /// Tools that the model may call.
    pub tools: Option<Vec<ResponseTool>>,
    pub tool_choice: Option<ResponseToolChoice>,
    /// Whether one answer may make several calls. The default is true.
    pub parallel_tool_calls: Option<bool>,
    /// How much the model reasons before it answers. A chat template without levels takes every value.
    pub reasoning: Option<ReasoningSettings>,
    /// The conversation that the response belongs to. Its items precede the input, and the input and the output are added to it at the end.
    #[schema(value_type = Option<ConversationChoice>)]
    pub conversation: Option<Value>,
    /// Answer at once and continue in the background. The client polls the response with GET until it has ended. Needs `store`.
    pub background: Option<bool>,
    /// `disabled` or `auto`. With `auto`, the oldest turns of a conversation longer than the context are left out.
    pub truncation: Option<String>,
    /// Only with `stream`.
    pub stream_options: Option<ResponseStreamOptions>,
    /// Has no effect: it bounds the calls of built-in tools, and there are none here.
    #[schema(minimum = 1)]
    pub max_tool_calls: Option<u32>,
    /// Has no effect except that the response repeats it, because the server finds common prefixes by itself.
    #[schema(max_length = 512)]
    pub prompt_cache_key: Option<String>,
    /// Identifies the end user, as `user` does.
    #[schema(max_length = 512)]
    pub safety_identifier: Option<String>,
    /// The format of the answer.
    pub text: Option<TextSettings>,
    /// Additional output. `message.output_text.logprobs` adds log-probabilities to the text.
    pub include: Option<Vec<String>>,
    /// The number of likeliest tokens to return at each position, with their log-probabilities.
    #[schema(minimum = 0, maximum = 20)]
    pub top_logprobs: Option<u8>,
    /// Up to 16 texts, which the response returns unchanged.
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Map<String, Value>>,
    #[serde(flatten)]
    pub sampling: super::common::Sampling,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ResponseStreamOptions {
    /// Pad each delta with a random `obfuscation`, so that the sizes of events do not reveal their content. The default is false.
    pub include_obfuscation: Option<bool>,
}

/// The id of a conversation, or an object with it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum ConversationChoice {
    Id(String),
    Object(ConversationRef),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ConversationRef {
    #[schema(example = "conv_6f1b0a9c4f5e4d0c8f3f5a3f0d1c2b4a")]
    pub id: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum ResponseInput {
    Text(String),
    Items(Vec<InputItem>),
}

/// A function, a tool that takes a text, a namespace of such tools, or a tool that only OpenAI's servers or models know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum ResponseTool {
    Namespace(ResponseNamespace),
    Custom(ResponseCustomTool),
    Function(ResponseFunctionTool),
    Hosted(HostedTool),
}

/// Tools that share a namespace. A call names both the namespace and the tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ResponseNamespace {
    #[serde(rename = "type")]
    #[schema(pattern = "^namespace$", example = "namespace")]
    pub kind: String,
    #[schema(pattern = "^[a-zA-Z0-9_.-]{1,64}$", example = "crm")]
    pub name: String,
    /// The purpose of the tools. The model sees it before the description of the first tool.
    pub description: Option<String>,
    pub tools: Vec<NamespaceMember>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum NamespaceMember {
    Custom(ResponseCustomTool),
    Function(ResponseFunctionTool),
}

/// A tool such as `web_search`, which is not offered to the model because nothing here can run it. The request needs other tools as well.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HostedTool {
    #[serde(rename = "type")]
    #[schema(example = "web_search")]
    pub kind: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ResponseFunctionTool {
    /// `function` or absent.
    #[serde(rename = "type")]
    #[schema(pattern = "^function$", example = "function")]
    pub kind: Option<String>,
    #[serde(flatten)]
    pub function: FunctionDefinition,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ResponseCustomTool {
    #[serde(rename = "type")]
    #[schema(pattern = "^custom$", example = "custom")]
    pub kind: String,
    #[schema(pattern = "^[a-zA-Z0-9_.-]{1,64}$", example = "run_sql")]
    pub name: String,
    pub description: Option<String>,
    /// The format of the text. If absent, any text.
    pub format: Option<ResponseCustomFormat>,
}

/// Any text, or one that follows a grammar.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ResponseCustomFormat {
    Text,
    Grammar(TextGrammar),
}

/// `none`, `auto` (the model decides), `required` (at least one call), the tool to call, or the tools that may be called.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum ResponseToolChoice {
    Mode(String),
    Named(ResponseNamedTool),
    Allowed(ResponseAllowedTools),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ResponseNamedTool {
    /// `function` (or absent), or `custom`
    #[serde(rename = "type")]
    #[schema(pattern = "^(function|custom)$", example = "function")]
    pub kind: Option<String>,
    /// The namespace of the tool, if it is in one.
    pub namespace: Option<String>,
    pub name: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ResponseAllowedTools {
    #[serde(rename = "type")]
    #[schema(pattern = "^allowed_tools$", example = "allowed_tools")]
    pub kind: String,
    /// `auto`, or `required` for at least one call.
    #[schema(pattern = "^(auto|required)$", example = "auto")]
    pub mode: String,
    /// The tools that may be called. The model sees the others as well.
    pub tools: Vec<ResponseNamedTool>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReasoningSettings {
    /// `none`, `minimal`, `low`, `medium`, `high` or `xhigh`
    pub effort: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TextSettings {
    pub format: Option<TextFormat>,
}

/// The format of the answer, which the answer follows token by token unless `max_output_tokens` cuts it. A format that the server cannot
/// follow is refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum TextFormat {
    Text,
    JsonObject,
    JsonSchema(NamedSchema),
}

/// A response, complete or in progress.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ResponseObject {
    #[schema(example = "resp_6f1b0a9c4f5e4d0c8f3f5a3f0d1c2b4a")]
    pub id: String,
    #[schema(example = "response")]
    pub object: String,
    /// The time of creation [Unix seconds].
    pub created_at: u64,
    /// `queued`, `in_progress`, `completed`, `incomplete`, `cancelled` or `failed`
    #[schema(example = "completed")]
    pub status: String,
    #[schema(required = true)]
    pub error: Option<ResponseError>,
    #[schema(required = true)]
    pub incomplete_details: Option<IncompleteDetails>,
    pub model: String,
    pub output: Vec<OutputItem>,
    /// Null until the response has ended.
    #[schema(required = true)]
    pub usage: Option<ResponseUsage>,
    #[serde(flatten)]
    pub settings: Settings,
}

/// The request's settings, which the response repeats.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Settings {
    #[schema(required = true)]
    pub instructions: Option<String>,
    #[schema(required = true)]
    pub max_output_tokens: Option<u32>,
    #[schema(value_type = Object)]
    pub metadata: Map<String, Value>,
    pub parallel_tool_calls: bool,
    #[schema(required = true)]
    pub previous_response_id: Option<String>,
    #[schema(value_type = Object)]
    pub reasoning: Value,
    pub store: bool,
    pub temperature: f64,
    #[schema(value_type = Object)]
    pub text: Value,
    #[schema(value_type = ResponseToolChoice)]
    pub tool_choice: Value,
    #[schema(value_type = Vec<Object>)]
    pub tools: Vec<Value>,
    pub top_logprobs: u8,
    pub top_p: f64,
    #[schema(example = "disabled")]
    pub truncation: String,
    #[schema(required = true)]
    pub user: Option<String>,
    pub background: bool,
    #[schema(example = "default")]
    pub service_tier: String,
    #[schema(required = true)]
    pub conversation: Option<ConversationRef>,
    #[schema(required = true)]
    pub max_tool_calls: Option<u32>,
    #[schema(required = true)]
    pub prompt_cache_key: Option<String>,
    #[schema(required = true)]
    pub safety_identifier: Option<String>,
}

impl Settings {
    /// Returns the settings with the values that the model's defaults have filled in.
    pub fn sampled_with(self, params: &SamplingParams) -> Self {
        // Shows the float32 as people write it: 0.7, not 0.699999988079071.
        let shown = |value: f32| value.to_string().parse().unwrap_or(f64::from(value));
        Self { temperature: shown(params.temperature), top_p: shown(params.top_p), ..self }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ResponseError {
    pub code: String,
    pub message: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct IncompleteDetails {
    #[schema(example = "max_output_tokens")]
    pub reason: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ResponseUsage {
    pub input_tokens: u32,
    pub input_tokens_details: InputTokensDetails,
    pub output_tokens: u32,
    pub output_tokens_details: OutputTokensDetails,
    pub total_tokens: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InputTokensDetails {
    pub cached_tokens: u32,
    /// Always 0, because the server does not charge for cache writes.
    pub cache_write_tokens: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OutputTokensDetails {
    pub reasoning_tokens: u32,
}

impl From<Usage> for ResponseUsage {
    fn from(usage: Usage) -> Self {
        Self {
            input_tokens: usage.prompt_tokens,
            input_tokens_details: InputTokensDetails { cached_tokens: usage.prompt_tokens_details.cached_tokens, cache_write_tokens: 0 },
            output_tokens: usage.completion_tokens,
            output_tokens_details: OutputTokensDetails { reasoning_tokens: usage.completion_tokens_details.reasoning_tokens },
            total_tokens: usage.total_tokens,
        }
    }
}

/// One server-sent event of a streamed response. Its other fields depend on its type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ResponseEvent {
    /// The type. A response begins with `response.created` and `response.in_progress`. Each item has `response.output_item.added`, the
    /// events of its content, and `response.output_item.done`. The last event is `response.completed`, `response.incomplete` or
    /// `response.failed`. The content of a message or of reasoning is `response.content_part.added`, then `response.output_text.delta` and
    /// `.done` or `response.reasoning_text.delta` and `.done`, then `response.content_part.done`. The content of a call is
    /// `response.function_call_arguments.delta` and `.done`, or `response.custom_tool_call_input.delta` and `.done`.
    #[serde(rename = "type")]
    pub kind: String,
    pub sequence_number: u64,
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub fields: Map<String, Value>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeletedResponse {
    pub id: String,
    #[schema(example = "response")]
    pub object: String,
    pub deleted: bool,
}

/// The length of a prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InputTokens {
    #[schema(example = "response.input_tokens")]
    pub object: String,
    /// The number of tokens in the request's prompt.
    pub input_tokens: usize,
}
