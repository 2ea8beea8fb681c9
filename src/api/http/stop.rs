//! Stop texts of a request.

use serde_json::Value;

use super::error::{ApiError, quoted};
use super::fields::{Fields, wrong_type};

/// The most stop texts in the dialects other than OpenAI's, unless the configuration allows more. Editors send a dozen.
pub const MOST: usize = 64;
/// The longest stop text [bytes].
const MAX_BYTES: usize = 1024;

/// Reads the stop texts of a field: a list of at most `most` texts, or a single text. An empty single text asks for nothing.
pub fn stop_texts(fields: &Fields, name: &str, most: usize) -> Result<Vec<String>, ApiError> {
    let wrong = |value: &Value| wrong_type(&fields.path(name), "a string or a list of strings", value);
    let texts = match fields.get(name) {
        None => Vec::new(),
        Some(Value::String(text)) if text.is_empty() => Vec::new(),
        Some(Value::String(text)) => vec![text.clone()],
        Some(Value::Array(items)) if items.len() > most => {
            return Err(fields.invalid(name, format_args!("holds {} texts, and {most} are allowed", items.len())));
        }
        Some(Value::Array(items)) => {
            items.iter().map(|item| item.as_str().map(str::to_owned).ok_or_else(|| wrong(item))).collect::<Result<_, _>>()?
        }
        Some(other) => return Err(wrong(other)),
    };
    match texts.iter().find(|text| text.is_empty() || text.len() > MAX_BYTES) {
        Some(text) if text.is_empty() => Err(fields.invalid(name, "must not hold an empty text")),
        Some(text) => {
            let begin = quoted(&text[..text.floor_char_boundary(40)]);
            Err(fields.invalid(name, format_args!("holds `{begin}`, of more than {MAX_BYTES} bytes")))
        }
        None => Ok(texts),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn stop_texts_are_bounded() {
        let read = |value: Value| stop_texts(&Fields::root(&json!({"stop": value})).unwrap(), "stop", MOST).map_err(|error| error.message);
        assert_eq!((read(json!("x")), read(json!("")), read(json!([]))), (Ok(vec!["x".to_owned()]), Ok(Vec::new()), Ok(Vec::new())));
        assert_eq!(read(json!(vec!["x"; 64])).map(|texts| texts.len()), Ok(64));
        for (bad, words) in [
            (json!(vec!["x"; 65]), "holds 65 texts, and 64 are allowed"),
            (json!([""]), "empty"),
            (json!(["x".repeat(1025)]), "more than 1024 bytes"),
            (json!([3]), "must be a string or a list"),
            (json!(3), "must be a string or a list"),
        ] {
            let message = read(bad.clone()).unwrap_err();
            assert!(message.contains(words), "{bad}: {message}");
        }
    }
}
