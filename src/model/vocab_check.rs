//! Checks a vocabulary: its arrays must have equal lengths, fit the embedding, and contain the special ids.

use crate::error::{ModelError, ModelFault};
use gguf::{Array, GgufFile, Value};

/// Keys of ids that the tokenizer and the scheduler use.
const SPECIAL_IDS: &[&str] = &["bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id", "unknown_token_id"];

/// Checks a file's vocabulary, if it has one, without comparing it to the embedding.
pub fn check_file(file: &GgufFile) -> Result<(), ModelError> {
    check(file, None).map_err(|fault| ModelError { path: file.path().to_owned(), fault })
}

/// Checks a vocabulary. `rows` is the number of rows of the embedding, which must equal the number of tokens. The tokenizer checks the
/// merges.
pub(super) fn check(file: &GgufFile, rows: Option<usize>) -> Result<(), ModelFault> {
    let fault =
        |name: &str, found: String, expected: String| Err(ModelFault::Metadata { key: format!("tokenizer.ggml.{name}"), found, expected });
    let array_of = |name: &str| file.get(&format!("tokenizer.ggml.{name}"));
    let shown = |value: &Value| match value {
        Value::Array(array) => format!("an array of {} {}", array.len(), array.type_name()),
        other => format!("of type {}", other.type_name()),
    };
    let tokens = match array_of("tokens") {
        None => return Ok(()),
        Some(Value::Array(Array::Strings(tokens))) => tokens.len(),
        Some(other) => return fault("tokens", shown(other), "an array of string".to_owned()),
    };
    if rows.is_some_and(|rows| rows != tokens) {
        let expected = format!("{} (the rows of token_embd.weight)", rows.unwrap_or_default());
        return fault("tokens", format!("an array of {tokens} string"), expected);
    }
    for (name, kind) in [("scores", "f32"), ("token_type", "i32")] {
        let expected = || format!("an array of {tokens} {kind}");
        let Some(value) = array_of(name) else { continue };
        if value.as_array().is_none_or(|array| array.len() != tokens) {
            return fault(name, shown(value), expected());
        }
        match (name, value.floats(), value.as_array().and_then(Array::ints)) {
            ("scores", Err(found), _) => return fault(name, found, expected()),
            ("token_type", _, None) => return fault(name, shown(value), expected()),
            _ => {}
        }
    }
    for name in SPECIAL_IDS {
        let Some(value) = array_of(name) else { continue };
        if !value.as_int().is_some_and(|id| (0..tokens as i128).contains(&id)) {
            let found = value.as_int().map_or_else(|| shown(value), |id| id.to_string());
            return fault(name, found, format!("an id below {tokens}, the size of the vocabulary"));
        }
    }
    Ok(())
}
