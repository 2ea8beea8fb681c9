//! What an answer must look like, as a grammar.

use serde_json::{Value, json};

use crate::grammar::{GrammarError, Source, lark_string};

#[derive(Clone, Debug, PartialEq)]
pub enum Format {
    /// Any JSON object.
    JsonObject,
    /// JSON that a schema describes.
    JsonSchema(Value),
    Regex(String),
    /// A grammar in Lark's syntax.
    Lark(String),
    /// One of these texts.
    Choice(Vec<String>),
}

/// A format, and the field of the request that asks for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Structure {
    pub format: Format,
    pub field: &'static str,
}

impl Format {
    /// Adds this format to `source` under the name `answer`.
    pub fn add_to(&self, source: Source) -> Result<Source, GrammarError> {
        match self {
            Self::JsonObject => source.with_schema("answer", &json!({"type": "object"})),
            Self::JsonSchema(schema) => source.with_schema("answer", schema),
            Self::Regex(regex) => source.with_regex("answer", regex),
            Self::Lark(lark) => source.with_lark("answer", lark),
            Self::Choice(texts) => {
                let texts: Vec<String> = texts.iter().map(|text| lark_string(text)).collect();
                source.with_lark("answer", &format!("start: {}", texts.join(" | ")))
            }
        }
    }
}
