//! Writes texts in Lark's syntax.

use serde_json::Value;

/// A text as a string literal in Lark's syntax.
pub fn lark_string(text: &str) -> String {
    Value::from(text).to_string()
}
