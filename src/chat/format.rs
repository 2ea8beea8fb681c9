//! [`Format`]: the form that an answer must have, as a grammar.

use serde_json::{Value, json};

use grammar::{GrammarError, Source, lark_string};

#[derive(Clone, Debug, PartialEq)]
pub enum Format {
    /// Any JSON object.
    JsonObject,
    /// JSON that matches this schema.
    JsonSchema(Value),
    Regex(String),
    /// A grammar in Lark's syntax.
    Lark(String),
    /// A grammar in GBNF.
    Gbnf(String),
    /// One of these texts.
    Choice(Vec<String>),
}

impl Format {
    /// A grammar in GBNF or in Lark's syntax, told apart by its text.
    pub fn grammar(text: String) -> Self {
        if grammar::is_gbnf(&text) { Self::Gbnf(text) } else { Self::Lark(text) }
    }

    /// Adds this format to `source` under the name `answer`.
    pub fn add_to(&self, source: Source) -> Result<Source, GrammarError> {
        match self {
            Self::JsonObject => source.with_schema("answer", &json!({"type": "object"})),
            Self::JsonSchema(schema) => source.with_schema("answer", schema),
            Self::Regex(regex) => source.with_regex("answer", regex),
            Self::Lark(lark) => source.with_lark("answer", lark),
            Self::Gbnf(gbnf) => source.with_gbnf("answer", gbnf),
            Self::Choice(texts) => {
                // Measured before anything is written: escaping may make a text six times as long.
                let source = source.with_room_for(texts.iter().map(String::len).sum())?;
                let texts: Vec<String> = texts.iter().map(|text| lark_string(text)).collect();
                source.with_lark("answer", &format!("start: {}", texts.join(" | ")))
            }
        }
    }
}
