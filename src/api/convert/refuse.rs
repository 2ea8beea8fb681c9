//! Fields that are known and cannot be honoured: refused unless they carry the value that changes nothing.

use serde_json::Value;

use super::super::error::ApiError;
use super::super::fields::Fields;

/// The value of a field that asks for nothing, so that it may be there.
enum Neutral {
    Nothing,
    False,
    True,
    Empty,
    Number(f64),
    Texts(&'static [&'static str]),
    /// `["text"]`
    TextOnly,
}

use Neutral::*;

const BOTH: &[(&str, Neutral)] = &[
    ("use_beam_search", False),
    ("length_penalty", Number(1.0)),
    ("include_stop_str_in_output", False),
    ("skip_special_tokens", True),
    ("spaces_between_special_tokens", True),
    ("bad_words", Empty),
    ("allowed_token_ids", Empty),
    ("truncate_prompt_tokens", Nothing),
    ("prompt_logprobs", Nothing),
    ("return_token_ids", False),
    ("logits_processors", Empty),
    ("json_schema", Nothing),
];

const CHAT: &[(&str, Neutral)] = &[
    ("functions", Empty),
    ("function_call", Texts(&["none", "auto"])),
    ("best_of", Number(1.0)),
    ("suffix", Texts(&[""])),
    ("audio", Nothing),
    ("modalities", TextOnly),
    ("prediction", Nothing),
    ("web_search_options", Nothing),
    ("reasoning_effort", Nothing),
    ("verbosity", Nothing),
    ("store", False),
    ("service_tier", Texts(&["auto", "default"])),
    ("echo", False),
    ("chat_template", Nothing),
    ("documents", Empty),
    ("add_special_tokens", False),
];

const COMPLETIONS: &[(&str, Neutral)] = &[("add_special_tokens", True), ("prompt_embeds", Nothing), ("top_logprobs", Nothing)];

fn is_neutral(value: &Value, neutral: &Neutral) -> bool {
    match neutral {
        Nothing => false,
        False => value == &Value::Bool(false),
        True => value == &Value::Bool(true),
        Empty => value.as_array().is_some_and(Vec::is_empty),
        Number(number) => value.as_f64() == Some(*number),
        Texts(texts) => value.as_str().is_some_and(|text| texts.contains(&text)),
        TextOnly => value == &serde_json::json!(["text"]),
    }
}

fn refuse(fields: &Fields, table: &[(&str, Neutral)]) -> Result<(), ApiError> {
    for (name, neutral) in table {
        if fields.get(name).is_some_and(|value| !is_neutral(value, neutral)) {
            return Err(ApiError::unsupported(name, format!("`{name}` is not supported yet")));
        }
    }
    Ok(())
}

pub fn chat(fields: &Fields) -> Result<(), ApiError> {
    // Out of range is another error than not built.
    fields.integer("best_of", 1..=16)?;
    refuse(fields, BOTH)?;
    refuse(fields, CHAT)
}

pub fn completions(fields: &Fields) -> Result<(), ApiError> {
    refuse(fields, BOTH)?;
    refuse(fields, COMPLETIONS)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn param_of(result: Result<(), ApiError>) -> Option<String> {
        result.err().and_then(|error| error.param)
    }

    #[test]
    fn what_asks_for_nothing_passes() {
        let value = json!({"tools": [], "tool_choice": "auto", "n": 1, "logprobs": false, "top_logprobs": null, "modalities": ["text"],
            "parallel_tool_calls": false, "best_of": 1, "unheard_of": 3});
        assert_eq!(param_of(chat(&Fields::root(&value).unwrap())), None);
    }

    #[test]
    fn each_field_is_named() {
        for (field, value) in [
            ("functions", json!([{"name": "f"}])),
            ("suffix", json!("x")),
            ("best_of", json!(-1)),
            ("best_of", json!(2)),
            ("audio", json!({})),
            ("chat_template", json!("{{ 1 }}")),
        ] {
            let body = json!({ field: value });
            assert_eq!(param_of(chat(&Fields::root(&body).unwrap())).as_deref(), Some(field), "{body}");
        }
        for (field, value) in [("prompt_logprobs", json!(3)), ("top_logprobs", json!(3)), ("prompt_embeds", json!("x"))] {
            let body = json!({ field: value });
            assert_eq!(param_of(completions(&Fields::root(&body).unwrap())).as_deref(), Some(field), "{body}");
        }
    }
}
