//! Conversion of requests to `/v1/completions`.

use std::sync::Arc;

use serde_json::Value;

use super::super::types::common::StreamOptions;
use super::super::types::logprobs::TokenNames;
use super::{generation, names, prompts, structured};
use config::Limits;
use http::error::ApiError;
use http::fields::Fields;
use http::subject::FieldNames;
use registry::AdapterAsk;
use serving::{Around, Budget, Options, Prompt};

/// The most alternatives per token, as in OpenAI's legacy API.
const MAX_LOGPROBS: i64 = 5;
/// The largest total size of the suffix, which is encoded once per prompt [bytes].
const MAX_SUFFIXES: usize = 16 << 20;

/// A completion request whose fields are each valid.
#[derive(Debug)]
pub struct Completions {
    pub model: String,
    /// At least one prompt. Each has choices of its own.
    pub prompts: Vec<Prompt>,
    pub options: Options,
    /// The adapters of the request instead of those of its model's name.
    pub lora: Option<Vec<AdapterAsk>>,
    pub names: FieldNames,
    pub token_names: TokenNames,
    pub stream: Option<StreamOptions>,
}

pub fn parse(body: &Value, limits: &Limits) -> Result<Completions, ApiError> {
    let fields = Fields::root(body)?;
    let model = super::model(&fields)?;
    super::metadata::metadata(&fields)?;
    let echo = fields.bool("echo")?.unwrap_or(false);
    let budget = match fields.get("max_tokens").and_then(Value::as_i64) {
        Some(-1) => Budget::Rest,
        _ => fields.count("max_tokens", 0)?.map_or(Budget::Default(16), |count| generation::budget(count, limits)),
    };
    if budget.asked() == Some(0) && !echo {
        return Err(fields.invalid("max_tokens", "may be 0 only with `echo`"));
    }
    let structure = structured::structure(&fields)?;
    let names = FieldNames { format: structured::field_of(structure.as_ref(), names::COMPLETIONS), ..names::COMPLETIONS };
    let mut options = generation::options(&fields, limits, budget, structure)?;
    options.echo = echo;
    options.logprobs = fields.integer("logprobs", 0..=MAX_LOGPROBS)?.map(|n| n as u8);
    let stream = generation::stream(&fields)?;
    options.prompt_logprobs = generation::prompt_logprobs(&fields, stream.is_some(), &options)?;
    if stream.is_some_and(|options| options.include_progress) {
        return Err(fields.invalid("stream_options.include_progress", "is only supported by chat completions"));
    }
    (options.num_choices, options.best_of) = candidates(&fields, stream.is_some())?;
    // The engine can never take more prompts than the queue holds.
    let prompts = prompts::read(&fields, "prompt", limits.max_prompts.min(limits.max_queue))?;
    let prompts = infills(&fields, prompts)?;
    prompts::check(&fields, "prompt", &prompts)?;
    if prompts.len() * options.best_of > limits.max_queue {
        let (all, most) = (prompts.len() * options.best_of, limits.max_queue);
        let field = if options.best_of > options.num_choices { "best_of" } else { "n" };
        return Err(fields.invalid(field, format_args!("makes {all} texts of {} prompts, and {most} are allowed", prompts.len())));
    }
    let (token_names, lora) = (generation::token_names(&fields)?, generation::lora(&fields)?);
    Ok(Completions { model, prompts, options, lora, names, token_names, stream })
}

/// Reads `n` and `best_of`.
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

/// If there is a `suffix`, makes the model fill in the text between each prompt and the suffix.
fn infills(fields: &Fields, prompts: Vec<Prompt>) -> Result<Vec<Prompt>, ApiError> {
    let Some(suffix) = fields.string("suffix")?.filter(|suffix| !suffix.is_empty()) else { return Ok(prompts) };
    if fields.bool("echo")?.unwrap_or(false) {
        return Err(fields.invalid("echo", "is not allowed with `suffix`: the prompt surrounds the answer"));
    }
    let size = suffix.len().saturating_mul(prompts.len());
    if prompts.len() > 1 && size > MAX_SUFFIXES {
        let count = prompts.len();
        return Err(fields.invalid("suffix", format_args!("takes {size} bytes after {count} prompts, and {MAX_SUFFIXES} are allowed")));
    }
    let suffix: Arc<str> = suffix.into();
    let infill = |prompt| match prompt {
        Prompt::Text(prefix) => Ok(Prompt::Infill { prefix, suffix: suffix.clone(), around: Around::default() }),
        _ => Err(fields.invalid("suffix", "is only allowed where `prompt` is text")),
    };
    prompts.into_iter().map(infill).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::super::tests::limits;
    use super::*;

    #[test]
    fn a_suffix_of_several_prompts_is_shared_and_bounded() {
        let read = |size: usize| {
            let body = json!({"model": "m", "prompt": ["a", "b", "c", "d"], "suffix": "x".repeat(size)});
            parse(&body, &limits()).map(|request| request.prompts)
        };
        assert_eq!(read(MAX_SUFFIXES / 4 + 1).unwrap_err().param.as_deref(), Some("suffix"));
        let prompts = read(MAX_SUFFIXES / 4).unwrap();
        let suffixes: Vec<_> =
            prompts.iter().filter_map(|prompt| if let Prompt::Infill { suffix, .. } = prompt { Some(suffix) } else { None }).collect();
        assert!(suffixes.len() == 4 && suffixes.iter().all(|suffix| Arc::ptr_eq(suffix, suffixes[0])));
    }
}
