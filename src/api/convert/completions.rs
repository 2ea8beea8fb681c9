//! `/v1/completions`: the request.

use serde_json::Value;

use super::super::error::ApiError;
use super::super::fields::{Fields, token_ids, wrong_type};
use super::super::types::common::StreamOptions;
use super::{generation, refuse};
use crate::config::Limits;
use crate::serving::{Budget, Options, Prompt};

/// A completion request whose fields are all right by themselves.
#[derive(Debug)]
pub struct Completions {
    pub model: String,
    /// At least one; each is a choice.
    pub prompts: Vec<Prompt>,
    pub echo: bool,
    pub options: Options,
    pub stream: Option<StreamOptions>,
}

pub fn parse(body: &Value, limits: &Limits) -> Result<Completions, ApiError> {
    let fields = Fields::root(body)?;
    let model = super::model(&fields)?;
    refuse::completions(&fields)?;
    let echo = fields.bool("echo")?.unwrap_or(false);
    let budget = fields.count("max_tokens", 0)?.map_or(Budget::Default(16), Budget::Explicit);
    if budget == Budget::Explicit(0) && !echo {
        return Err(fields.invalid("max_tokens", "may be 0 only with `echo`"));
    }
    let options = generation::options(&fields, limits, budget)?;
    // More than the queue holds could never be taken.
    let prompts = prompts(&fields, limits.max_prompts.min(limits.max_queue))?;
    Ok(Completions { model, prompts, echo, options, stream: generation::stream(&fields)? })
}

fn prompts(fields: &Fields, most: usize) -> Result<Vec<Prompt>, ApiError> {
    let prompts = match fields.required("prompt", fields.get("prompt"))? {
        Value::String(text) => vec![Prompt::Text(text.clone())],
        Value::Array(items) if items.first().is_some_and(Value::is_number) => {
            vec![Prompt::Ids(token_ids(items).map_err(|problem| fields.invalid("prompt", problem))?)]
        }
        Value::Array(items) => {
            if items.len() > most {
                return Err(fields.invalid("prompt", format_args!("holds {} prompts, and {most} are allowed", items.len())));
            }
            items.iter().map(|item| prompt(fields, item)).collect::<Result<_, _>>()?
        }
        other => return Err(wrong_type(&fields.path("prompt"), "a string, a list of strings or token ids", other)),
    };
    let is_empty = |prompt: &Prompt| match prompt {
        Prompt::Text(text) => text.is_empty(),
        Prompt::Ids(ids) => ids.is_empty(),
        Prompt::Chat(_) => false,
    };
    if prompts.is_empty() || prompts.iter().any(is_empty) {
        return Err(fields.invalid("prompt", "must not be empty"));
    }
    Ok(prompts)
}

fn prompt(fields: &Fields, value: &Value) -> Result<Prompt, ApiError> {
    match value {
        Value::String(text) => Ok(Prompt::Text(text.clone())),
        Value::Array(ids) => token_ids(ids).map(Prompt::Ids).map_err(|problem| fields.invalid("prompt", problem)),
        other => Err(wrong_type(&fields.path("prompt"), "a list of strings or of lists of token ids", other)),
    }
}
