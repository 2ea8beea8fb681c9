//! `/v1/completions`: the request.

use serde_json::Value;

use super::super::error::ApiError;
use super::super::fields::Fields;
use super::super::types::common::StreamOptions;
use super::{generation, prompts, refuse, structured};
use crate::config::Limits;
use crate::serving::{Budget, Options, Prompt};

/// Of the likeliest tokens, as OpenAI's legacy API has it.
const MAX_LOGPROBS: i64 = 5;

/// A completion request whose fields are all right by themselves.
#[derive(Debug)]
pub struct Completions {
    pub model: String,
    /// At least one; each has choices of its own.
    pub prompts: Vec<Prompt>,
    /// Choices of a prompt.
    pub num_choices: usize,
    /// Texts that are generated for a prompt, of which the likeliest are its choices.
    pub best_of: usize,
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
    let mut options = generation::options(&fields, limits, budget, structured::structure(&fields)?)?;
    options.echo = echo;
    options.logprobs = fields.integer("logprobs", 0..=MAX_LOGPROBS)?.map(|n| n as u8);
    let stream = generation::stream(&fields)?;
    let (num_choices, best_of) = candidates(&fields, stream.is_some())?;
    // More than the queue holds could never be taken.
    let prompts = prompts::read(&fields, "prompt", limits.max_prompts.min(limits.max_queue))?;
    let prompts = infills(&fields, prompts)?;
    prompts::check(&fields, "prompt", &prompts)?;
    if prompts.len() * best_of > limits.max_queue {
        let (all, most) = (prompts.len() * best_of, limits.max_queue);
        let field = if best_of > num_choices { "best_of" } else { "n" };
        return Err(fields.invalid(field, format_args!("makes {all} texts of {} prompts, and {most} are allowed", prompts.len())));
    }
    Ok(Completions { model, prompts, num_choices, best_of, options, stream })
}

/// `n` and `best_of`
fn candidates(fields: &Fields, streams: bool) -> Result<(usize, usize), ApiError> {
    let n = generation::num_choices(fields)?;
    let best_of = fields.integer("best_of", 1..=generation::MAX_CHOICES)?.map_or(n, |best_of| best_of as usize);
    if best_of < n {
        return Err(fields.invalid("best_of", format_args!("is {best_of}, fewer than the {n} choices of `n`")));
    }
    if best_of > n && streams {
        return Err(fields.invalid("best_of", "must not be more than `n` with `stream`: the best are known at the end"));
    }
    Ok((n, best_of))
}

/// With a `suffix` what stands between each prompt and it is asked for.
fn infills(fields: &Fields, prompts: Vec<Prompt>) -> Result<Vec<Prompt>, ApiError> {
    let Some(suffix) = fields.string("suffix")?.filter(|suffix| !suffix.is_empty()) else { return Ok(prompts) };
    if fields.bool("echo")?.unwrap_or(false) {
        return Err(fields.invalid("echo", "is not allowed with `suffix`: the prompt stands on both sides of the answer"));
    }
    let infill = |prompt| match prompt {
        Prompt::Text(prefix) => Ok(Prompt::Infill { prefix, suffix: suffix.to_owned() }),
        _ => Err(fields.invalid("suffix", "is only allowed where `prompt` is text")),
    };
    prompts.into_iter().map(infill).collect()
}
