//! `response_format`.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// What the answer must look like. It is followed to the letter, token by token, unless `max_tokens` cuts it; what cannot be is refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ResponseFormat {
    Text,
    /// Any JSON object, or one that `schema` describes.
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
    /// In Lark's syntax.
    Grammar {
        grammar: String,
    },
    Choice {
        choice: Vec<String>,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NamedSchema {
    #[schema(pattern = "^[a-zA-Z0-9_-]{1,64}$")]
    pub name: String,
    pub description: Option<String>,
    /// A JSON schema. Absent: any object.
    #[schema(value_type = Option<Object>)]
    pub schema: Option<Value>,
    /// Schemas are always followed strictly.
    pub strict: Option<bool>,
}
