//! Tools that a model may call, the choice among them, and calls.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// A function, or a tool that takes a text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum ToolDefinition {
    Function(FunctionTool),
    Custom(CustomTool),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FunctionTool {
    /// `function` or absent.
    #[serde(rename = "type")]
    #[schema(pattern = "^function$", example = "function")]
    pub kind: Option<String>,
    pub function: FunctionDefinition,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CustomTool {
    #[serde(rename = "type")]
    #[schema(pattern = "^custom$", example = "custom")]
    pub kind: String,
    pub custom: CustomDefinition,
}

/// A tool that takes a text in place of arguments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CustomDefinition {
    #[schema(pattern = "^[a-zA-Z0-9_.-]{1,64}$", example = "run_sql")]
    pub name: String,
    pub description: Option<String>,
    /// The format of the text. If absent, any text.
    pub format: Option<CustomFormat>,
}

/// Any text, or one that follows a grammar.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum CustomFormat {
    Text,
    Grammar { grammar: TextGrammar },
}

/// A grammar that every call's text follows, token by token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TextGrammar {
    /// `regex` (a regular expression that matches the whole text) or `lark` (a grammar in Lark's syntax). Models whose calls are not JSON
    /// accept only `regex`.
    #[schema(pattern = "^(lark|regex)$", example = "regex")]
    pub syntax: String,
    pub definition: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FunctionDefinition {
    #[schema(pattern = "^[a-zA-Z0-9_.-]{1,64}$", example = "get_weather")]
    pub name: String,
    pub description: Option<String>,
    /// A JSON schema for the arguments. If absent, any object.
    #[schema(value_type = Option<Object>)]
    pub parameters: Option<Value>,
    /// Calls follow the schema either way. If true, a schema that the server cannot follow is refused. Otherwise, calls follow the parts
    /// that the server supports.
    pub strict: Option<bool>,
}

/// `none`, `auto` (the model decides), `required` (at least one call), the function to call, or the functions that may be called.
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
    /// The tools that may be called. The model sees the others as well.
    pub tools: Vec<NamedTool>,
}

/// A function, or a tool that takes a text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum NamedTool {
    Function(NamedFunctionTool),
    Custom(NamedCustomTool),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NamedFunctionTool {
    /// `function` or absent.
    #[serde(rename = "type")]
    #[schema(pattern = "^function$", example = "function")]
    pub kind: Option<String>,
    pub function: NamedFunction,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NamedCustomTool {
    #[serde(rename = "type")]
    #[schema(pattern = "^custom$", example = "custom")]
    pub kind: String,
    pub custom: NamedFunction,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NamedFunction {
    pub name: String,
}

/// A call of a function, or of a tool that takes a text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum ToolCall {
    Function(FunctionToolCall),
    Custom(CustomToolCall),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FunctionToolCall {
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
    /// A JSON object as text.
    #[schema(example = "{\"city\": \"Oslo\"}")]
    pub arguments: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CustomToolCall {
    #[schema(example = "call_9f2c1e0d4b5a46c7a8b9c0d1e2f3a4b5")]
    pub id: String,
    #[serde(rename = "type")]
    #[schema(example = "custom")]
    pub kind: String,
    pub custom: CustomCall,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CustomCall {
    pub name: String,
    pub input: String,
}

/// A piece of a call. The first piece of each call has the id, the type and the name. The arguments of all pieces concatenate to JSON, and
/// the inputs to the text.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ToolCallDelta {
    pub index: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<FunctionDelta>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub custom: Option<CustomDelta>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FunctionDelta {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub arguments: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CustomDelta {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub input: String,
}

impl ToolCallDelta {
    /// The total length of the delta's texts [bytes].
    pub fn num_bytes(&self) -> usize {
        let arguments = self.function.as_ref().map_or(0, |function| function.arguments.len());
        arguments + self.custom.as_ref().map_or(0, |custom| custom.input.len())
    }
}
