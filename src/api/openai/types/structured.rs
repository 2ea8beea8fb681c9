//! `response_format`.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// The format of the answer. The answer follows the format token by token, unless `max_tokens` cuts it. The server refuses a format that
/// it cannot follow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ResponseFormat {
    Text,
    /// A JSON object that follows `schema`. Without `schema`, any JSON object.
    JsonObject {
        #[schema(value_type = Option<Object>)]
        schema: Option<Value>,
    },
    JsonSchema {
        json_schema: NamedSchema,
    },
    Regex {
        regex: String,
    },
    /// A grammar in Lark's syntax.
    Grammar {
        grammar: String,
    },
    Choice {
        choice: Vec<String>,
    },
}

/// The form of the answer as clients of vLLM ask for it. Exactly one of its fields may ask.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StructuredOutputs {
    /// A JSON schema, also as text.
    #[schema(value_type = Option<Object>)]
    pub json: Option<Value>,
    pub regex: Option<String>,
    pub choice: Option<Vec<String>>,
    /// A grammar in Lark's syntax.
    pub grammar: Option<String>,
    pub json_object: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NamedSchema {
    /// Nothing shows it.
    #[schema(pattern = "^[a-zA-Z0-9_-]{1,64}$")]
    pub name: Option<String>,
    pub description: Option<String>,
    /// A JSON schema. Absent: any object.
    #[schema(value_type = Option<Object>)]
    pub schema: Option<Value>,
    /// Has no effect: answers always follow the schema strictly.
    pub strict: Option<bool>,
}
