//! Conversion of `metadata`, which clients attach to stored objects.

use serde_json::{Map, Value};

use http::error::ApiError;
use http::fields::Fields;

const MAX_METADATA: usize = 16;
const MAX_KEY: usize = 64;
/// The longest text that a client attaches and the server returns [characters].
pub const MAX_VALUE: usize = 512;

/// Reads up to 16 short texts.
pub fn metadata(fields: &Fields) -> Result<Map<String, Value>, ApiError> {
    let Some(map) = fields.object("metadata")? else { return Ok(Map::new()) };
    let fits = |(key, value): (&String, &Value)| {
        key.chars().count() <= MAX_KEY && value.as_str().is_some_and(|value| value.chars().count() <= MAX_VALUE)
    };
    if map.len() > MAX_METADATA || !map.iter().all(fits) {
        let bounds = format_args!("must be up to {MAX_METADATA} texts of {MAX_VALUE} characters, their keys of {MAX_KEY}").to_string();
        return Err(fields.invalid("metadata", bounds));
    }
    Ok(map.clone())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn metadata_is_bounded() {
        for value in [json!({"a": 1}), json!({"a": "x".repeat(513)}), json!({"k".repeat(65): ""}), json!([])] {
            let body = json!({ "metadata": value });
            assert_eq!(metadata(&Fields::root(&body).unwrap()).unwrap_err().param.as_deref(), Some("metadata"));
        }
    }
}
