//! Messages and the blocks in their content.

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
    /// A system message. It stays in its place, but is never put between a call and its result.
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

/// A block in a message. `tool_use`, `thinking` and `redacted_thinking` belong to the assistant, `tool_result` to the user. A text
/// `document` and a `search_result` are read as their text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum InputBlock {
    Text {
        text: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        cache_control: Option<CacheControl>,
    },
    /// A picture for a model with the capability `vision`. Only the user's messages may hold it.
    Image {
        source: ImageSource,
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
    /// Accepted, but not shown to the model.
    RedactedThinking {
        data: String,
    },
    Document(InputDocument),
    SearchResult(SearchResult),
}

/// A text document.
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

/// A result of a search that the client has made.
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
    /// A tool that a search has found. It must be one of `tools`.
    ToolReference {
        tool_name: String,
    },
    /// A picture. A model without the capability `vision` gets a text in its place.
    Image {
        source: ImageSource,
    },
    /// Replaced by a text unless it is a text document.
    Document {
        #[schema(value_type = Object)]
        source: Value,
    },
    SearchResult(SearchResult),
}

/// A picture in base64, or its address if `server.picture_hosts` has the host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = MessagesImageSource)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ImageSource {
    Base64 {
        /// The bytes tell the type, whatever this says.
        #[serde(skip_serializing_if = "Option::is_none")]
        media_type: Option<String>,
        data: String,
    },
    Url {
        url: String,
    },
}

/// Accepted wherever Anthropic accepts it. Every prompt is cached anyway.
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
