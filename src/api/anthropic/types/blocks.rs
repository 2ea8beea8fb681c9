//! Messages and the blocks of their content.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = MessagesInputMessage)]
pub struct InputMessage {
    pub role: InputRole,
    pub content: InputContent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum InputRole {
    User,
    Assistant,
    /// It stays in its place, but never between a call and its result.
    System,
    /// Read as `user`.
    Ctx,
    /// Read as `user`.
    Msg,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = MessagesInputContent)]
#[serde(untagged)]
pub enum InputContent {
    Text(String),
    Blocks(Vec<InputBlock>),
}

/// A block of a message. `tool_use`, `thinking` and `redacted_thinking` are the assistant's, `tool_result` is the user's. A
/// `document` of text and a `search_result` are read as their text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum InputBlock {
    Text {
        text: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        cache_control: Option<CacheControl>,
    },
    ToolUse {
        id: String,
        name: String,
        #[schema(value_type = Object)]
        input: Map<String, Value>,
        #[serde(skip_serializing_if = "Option::is_none")]
        cache_control: Option<CacheControl>,
    },
    ToolResult {
        /// The `id` of an earlier `tool_use`.
        tool_use_id: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        content: Option<ResultContent>,
        #[serde(skip_serializing_if = "Option::is_none")]
        is_error: Option<bool>,
        #[serde(skip_serializing_if = "Option::is_none")]
        cache_control: Option<CacheControl>,
    },
    Thinking {
        thinking: String,
        signature: String,
    },
    /// It is accepted, and says nothing to a model here.
    RedactedThinking {
        data: String,
    },
    Document(InputDocument),
    SearchResult(SearchResult),
}

/// A document of text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = MessagesInputDocument)]
pub struct InputDocument {
    pub source: DocumentSource,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_control: Option<CacheControl>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = MessagesDocumentSource)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum DocumentSource {
    Text { data: String },
    Content { content: ResultContent },
}

/// What a search of the client's has found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = MessagesSearchResult)]
pub struct SearchResult {
    pub title: String,
    pub source: String,
    #[schema(no_recursion)]
    pub content: ResultContent,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_control: Option<CacheControl>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum ResultContent {
    Text(String),
    Blocks(Vec<ResultBlock>),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ResultBlock {
    Text {
        text: String,
    },
    /// A tool that a search has found. It must be among `tools`.
    ToolReference {
        tool_name: String,
    },
    /// A text stands in its place.
    Image {
        #[schema(value_type = Object)]
        source: Value,
    },
    /// Where the document is not of text, a text stands in its place.
    Document {
        #[schema(value_type = Object)]
        source: Value,
    },
    SearchResult(SearchResult),
}

/// Accepted wherever Anthropic has it. Every prompt is cached by itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CacheControl {
    #[serde(rename = "type")]
    pub kind: CacheKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl: Option<CacheTtl>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum CacheKind {
    Ephemeral,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub enum CacheTtl {
    #[serde(rename = "5m")]
    Minutes,
    #[serde(rename = "1h")]
    Hour,
}
