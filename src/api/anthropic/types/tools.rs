//! `tools` and `tool_choice`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::blocks::CacheControl;

/// A tool that the client runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MessagesTool {
    /// Absent or `custom`, because the server runs no tools itself.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<CustomTool>,
    #[schema(pattern = "^[a-zA-Z0-9_.-]{1,128}$", example = "get_weather")]
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// A JSON schema of the input.
    #[schema(value_type = Object)]
    pub input_schema: Map<String, Value>,
    /// Calls follow the schema either way. If true, a schema that the server cannot follow is refused. Otherwise, calls follow the parts
    /// that the server supports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_control: Option<CacheControl>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum CustomTool {
    Custom,
}

/// Whether the model calls a tool. `any` and `tool` need `tools`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum MessagesToolChoice {
    Auto {
        #[serde(skip_serializing_if = "Option::is_none")]
        disable_parallel_tool_use: Option<bool>,
    },
    Any {
        #[serde(skip_serializing_if = "Option::is_none")]
        disable_parallel_tool_use: Option<bool>,
    },
    Tool {
        name: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        disable_parallel_tool_use: Option<bool>,
    },
    None,
}
