//! Fields that are known but not supported. They are refused unless their value asks for nothing.

use serde_json::Value;

use crate::http::error::ApiError;
use crate::http::fields::Fields;

/// The value with which a field asks for nothing, so that it is accepted.
enum Neutral {
    Nothing,
    False,
    True,
    Empty,
    Number(f64),
    Texts(&'static [&'static str]),
    /// `["text"]`
    TextOnly,
    /// An object of nulls.
    Nulls,
}

use Neutral::*;

const BOTH: &[(&str, Neutral)] = &[
    ("use_beam_search", False),
    ("length_penalty", Number(1.0)),
    ("spaces_between_special_tokens", True),
    ("logits_processors", Empty),
    ("return_tokens_as_token_ids", False),
    ("priority", Number(0.0)),
    ("include_reasoning", True),
    // what the routers of other servers fill in
    ("no_stop_trim", False),
    ("return_hidden_states", False),
    ("separate_reasoning", True),
    ("stream_reasoning", True),
];

const CHAT: &[(&str, Neutral)] = &[
    ("background", False),
    ("truncation", Texts(&["disabled"])),
    ("best_of", Number(1.0)),
    ("suffix", Texts(&[""])),
    ("audio", Nothing),
    ("modalities", TextOnly),
    ("web_search_options", Nothing),
    ("echo", False),
    ("documents", Empty),
    ("add_special_tokens", False),
    ("max_output_tokens", Nothing),
    ("include", Empty),
    ("instructions", Nothing),
    ("previous_response_id", Nothing),
    ("encoding_format", Nothing),
    ("dimensions", Nothing),
    ("text", Nothing),
    ("reasoning", Nulls),
];

const COMPLETIONS: &[(&str, Neutral)] = &[
    ("background", False),
    ("truncation", Texts(&["disabled"])),
    ("add_special_tokens", True),
    ("prompt_embeds", Nothing),
    ("top_logprobs", Nothing),
    ("max_completion_tokens", Nothing),
    ("max_output_tokens", Nothing),
    ("tools", Empty),
    ("tool_choice", Texts(&["none", "auto"])),
    ("parallel_tool_calls", Nothing),
    ("add_generation_prompt", Nothing),
    ("continue_final_message", False),
    ("thinking_token_budget", Number(-1.0)),
    ("chat_template", Nothing),
    ("chat_template_kwargs", Nothing),
    ("include", Empty),
    ("instructions", Nothing),
    ("previous_response_id", Nothing),
    ("store", False),
    ("encoding_format", Nothing),
    ("dimensions", Nothing),
    ("text", Nothing),
    ("reasoning", Nulls),
    ("reasoning_effort", Nothing),
    ("functions", Empty),
    ("function_call", Texts(&["none", "auto"])),
    ("verbosity", Texts(&["medium"])),
];

/// vLLM's fields that chat and text completions honour.
const OF_CHOICES: &[(&str, Neutral)] = &[
    ("include_stop_str_in_output", False),
    ("skip_special_tokens", True),
    ("truncate_prompt_tokens", Nothing),
    ("return_token_ids", False),
    ("allowed_token_ids", Empty),
    ("bad_words", Empty),
];

/// Fields of other endpoints, and fields of this one that are not supported.
const RESPONSES: &[(&str, Neutral)] = &[
    ("n", Number(1.0)),
    ("best_of", Number(1.0)),
    ("logprobs", False),
    ("echo", False),
    ("suffix", Nothing),
    ("max_tokens", Nothing),
    ("max_completion_tokens", Nothing),
    ("messages", Nothing),
    ("prompt", Nothing),
    ("add_generation_prompt", True),
    ("continue_final_message", False),
    ("chat_template", Nothing),
    ("thinking_token_budget", Number(-1.0)),
    ("prompt_logprobs", Nothing),
    ("context_management", Nothing),
    ("service_tier", Texts(&["auto", "default", "flex", "scale", "priority"])),
    ("moderation", Nothing),
    ("encoding_format", Nothing),
    ("dimensions", Nothing),
    ("reasoning_effort", Nothing),
];

/// Fields about generation, which mean nothing for an embedding.
const EMBEDDINGS: &[(&str, Neutral)] = &[
    ("background", False),
    ("truncation", Texts(&["disabled"])),
    ("stream_options", Nothing),
    ("stream", False),
    ("n", Number(1.0)),
    ("best_of", Number(1.0)),
    ("logprobs", False),
    ("top_logprobs", Nothing),
    ("echo", False),
    ("suffix", Nothing),
    ("stop", Nothing),
    ("seed", Nothing),
    ("temperature", Nothing),
    ("top_p", Nothing),
    ("top_k", Nothing),
    ("min_p", Nothing),
    ("presence_penalty", Nothing),
    ("frequency_penalty", Nothing),
    ("repetition_penalty", Nothing),
    ("logit_bias", Nothing),
    ("max_tokens", Nothing),
    ("max_completion_tokens", Nothing),
    ("max_output_tokens", Nothing),
    ("response_format", Nothing),
    ("tools", Empty),
    ("tool_choice", Texts(&["none", "auto"])),
    ("parallel_tool_calls", Nothing),
    ("ignore_eos", False),
    ("min_tokens", Nothing),
    ("stop_token_ids", Empty),
    ("add_generation_prompt", Nothing),
    ("continue_final_message", False),
    ("chat_template_kwargs", Nothing),
    ("messages", Nothing),
    ("add_special_tokens", True),
    ("normalize", True),
    ("include", Empty),
    ("instructions", Nothing),
    ("previous_response_id", Nothing),
    ("store", False),
    ("metadata", Nothing),
    ("regex", Nothing),
    ("grammar", Nothing),
    ("choice", Nothing),
    ("guided_json", Nothing),
    ("structured_outputs", Nothing),
    ("text", Nothing),
    ("reasoning", Nulls),
    ("reasoning_effort", Nothing),
    ("include_stop_str_in_output", False),
    ("skip_special_tokens", True),
    ("return_token_ids", False),
    ("allowed_token_ids", Empty),
    ("bad_words", Empty),
    ("json_schema", Nothing),
    ("chat_template", Nothing),
];

fn names(tables: &[&'static [(&'static str, Neutral)]]) -> impl Iterator<Item = &'static str> {
    tables.iter().flat_map(|table| table.iter().map(|(name, _)| *name)).collect::<Vec<_>>().into_iter()
}

/// The fields that a chat refuses by name.
pub fn chat_names() -> impl Iterator<Item = &'static str> {
    names(&[BOTH, CHAT])
}

pub fn completion_names() -> impl Iterator<Item = &'static str> {
    names(&[BOTH, COMPLETIONS])
}

pub fn response_names() -> impl Iterator<Item = &'static str> {
    names(&[BOTH, OF_CHOICES, RESPONSES])
}

pub fn embedding_names() -> impl Iterator<Item = &'static str> {
    names(&[EMBEDDINGS])
}

fn is_neutral(value: &Value, neutral: &Neutral) -> bool {
    match neutral {
        Nothing => false,
        False => value == &Value::Bool(false),
        True => value == &Value::Bool(true),
        Empty => value.as_array().is_some_and(Vec::is_empty),
        Number(number) => value.as_f64() == Some(*number),
        Texts(texts) => value.as_str().is_some_and(|text| texts.contains(&text)),
        TextOnly => value == &serde_json::json!(["text"]),
        Nulls => value.as_object().is_some_and(|map| map.values().all(Value::is_null)),
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
    // A value out of range gets another error than an unsupported one.
    fields.integer("best_of", 1..=16)?;
    refuse(fields, BOTH)?;
    refuse(fields, CHAT)
}

pub fn completions(fields: &Fields) -> Result<(), ApiError> {
    refuse(fields, BOTH)?;
    refuse(fields, COMPLETIONS)
}

pub fn responses(fields: &Fields) -> Result<(), ApiError> {
    refuse(fields, BOTH)?;
    refuse(fields, OF_CHOICES)?;
    refuse(fields, RESPONSES)
}

pub fn embeddings(fields: &Fields) -> Result<(), ApiError> {
    match EMBEDDINGS.iter().find(|(name, neutral)| fields.get(name).is_some_and(|value| !is_neutral(value, neutral))) {
        Some((name, _)) => Err(ApiError::unsupported(name, format!("`{name}` has no meaning for an embedding"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn param_of(result: Result<(), ApiError>) -> Option<String> {
        result.err().and_then(|error| error.param)
    }

    #[test]
    fn a_value_that_asks_for_nothing_is_accepted() {
        let value = json!({"tools": [], "tool_choice": "auto", "n": 1, "logprobs": false, "top_logprobs": null, "modalities": ["text"],
            "parallel_tool_calls": false, "best_of": 1});
        assert_eq!(param_of(chat(&Fields::root(&value).unwrap())), None);
    }

    #[test]
    fn the_error_names_the_field() {
        for (field, value) in [("suffix", json!("x")), ("best_of", json!(-1)), ("best_of", json!(2)), ("audio", json!({}))] {
            let body = json!({ field: value });
            assert_eq!(param_of(chat(&Fields::root(&body).unwrap())).as_deref(), Some(field), "{body}");
        }
        for (field, value) in [("use_beam_search", json!(true)), ("top_logprobs", json!(3)), ("prompt_embeds", json!("x"))] {
            let body = json!({ field: value });
            assert_eq!(param_of(completions(&Fields::root(&body).unwrap())).as_deref(), Some(field), "{body}");
        }
    }
}
