//! Conversion of `prompt` and `input`: one or several prompts, as text or as token ids.

use serde_json::Value;

use http::error::ApiError;
use http::fields::{Fields, token_ids, wrong_type};
use serving::Prompt;

/// Reads at most `most` prompts from a field.
pub fn read(fields: &Fields, field: &str, most: usize) -> Result<Vec<Prompt>, ApiError> {
    match fields.required(field, fields.get(field))? {
        Value::String(text) => Ok(vec![Prompt::Text(text.clone())]),
        Value::Array(items) if items.first().is_some_and(Value::is_number) => {
            Ok(vec![Prompt::Ids(token_ids(items).map_err(|problem| fields.invalid(field, problem))?)])
        }
        Value::Array(items) => {
            if items.len() > most {
                return Err(fields.invalid(field, format_args!("holds {} prompts, and {most} are allowed", items.len())));
            }
            items.iter().map(|item| prompt(fields, field, item)).collect()
        }
        other => Err(wrong_type(&fields.path(field), "a string, a list of strings or token ids", other)),
    }
}

fn prompt(fields: &Fields, field: &str, value: &Value) -> Result<Prompt, ApiError> {
    match value {
        Value::String(text) => Ok(Prompt::Text(text.clone())),
        Value::Array(ids) => token_ids(ids).map(Prompt::Ids).map_err(|problem| fields.invalid(field, problem)),
        other => Err(wrong_type(&fields.path(field), "a list of strings or of lists of token ids", other)),
    }
}

/// Checks that there is at least one prompt, and that none is empty.
pub fn check(fields: &Fields, field: &str, prompts: &[Prompt]) -> Result<(), ApiError> {
    let is_empty = |prompt: &Prompt| match prompt {
        Prompt::Text(text) => text.is_empty(),
        Prompt::Ids(ids) => ids.is_empty(),
        Prompt::Chat(_) | Prompt::Infill { .. } => false,
    };
    if prompts.is_empty() || prompts.iter().any(is_empty) {
        return Err(fields.invalid(field, "must not be empty"));
    }
    Ok(())
}
