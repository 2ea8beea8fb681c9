//! `response_format`.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// The format of the answer, which the answer follows token by token unless `max_tokens` cuts it. A format that the server cannot follow is
/// refused.
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

/// The format of the answer, as vLLM's clients request it. Exactly one field may be set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StructuredOutputs {
    /// A JSON schema, which may be given as text.
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
    /// A name, which has no effect.
    #[schema(pattern = "^[a-zA-Z0-9_-]{1,64}$")]
    pub name: Option<String>,
    pub description: Option<String>,
    /// A JSON schema. If absent, any object.
    #[schema(value_type = Option<Object>)]
    pub schema: Option<Value>,
    /// Has no effect: answers always follow the schema strictly.
    pub strict: Option<bool>,
}
