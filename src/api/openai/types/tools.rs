//! Functions that a model may call, and which of them it has to.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ToolDefinition {
    /// `function` or absent.
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
    /// A JSON schema for the arguments. Absent: any object.
    #[schema(value_type = Option<Object>)]
    pub parameters: Option<Value>,
    /// Calls follow the schema either way. With `true`, a schema that the server cannot follow is refused; otherwise calls follow what it
    /// can follow of it.
    pub strict: Option<bool>,
}

/// `none`, `auto` (the model decides), `required` (at least one call), the function to call, or those that may be called.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum ToolChoice {
    Mode(String),
    Named(NamedTool),
    Allowed(AllowedToolChoice),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AllowedToolChoice {
    #[serde(rename = "type")]
    #[schema(pattern = "^allowed_tools$", example = "allowed_tools")]
    pub kind: String,
    pub allowed_tools: AllowedTools,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AllowedTools {
    /// `auto`, or `required` for at least one call.
    #[schema(pattern = "^(auto|required)$", example = "auto")]
    pub mode: String,
    /// The tools that may be called. The model sees the others too.
    pub tools: Vec<NamedTool>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NamedTool {
    /// `function` or absent.
    #[serde(rename = "type")]
    #[schema(example = "function")]
    pub kind: Option<String>,
    pub function: NamedFunction,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NamedFunction {
    pub name: String,
}
