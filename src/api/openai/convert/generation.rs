//! Conversion of the fields that chat and text completions share.

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::super::types::common::StreamOptions;
use super::super::types::logprobs::TokenNames;
use super::drafts;
use super::structured::Structure;
use chat::{Conversation, Format, nearest_efforts};
use config::Limits;
use http::error::{ApiError, quoted};
use http::fields::{Fields, wrong_type};
use http::lora;
use http::stop::stop_texts;
use logits::{MAX_LOGPROBS, SamplingChoice, SamplingParams};
use registry::AdapterAsk;
use serving::{Budget, MAX_ADAPTERS, Options, Truncate};

const MAX_STOP_IDS: usize = 1024;
const MAX_BIAS: usize = 4096;
const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];
const MAX_ALLOWED: usize = 1 << 18;
const MAX_BAD_WORDS: usize = 1024;
const MAX_BAD_WORD: usize = 256;
/// The most choices per prompt.
pub const MAX_CHOICES: i64 = 16;

/// Reads all options except the budget, which each endpoint reads in its own way.
pub fn options(fields: &Fields, limits: &Limits, budget: Budget, structure: Option<Structure>) -> Result<Options, ApiError> {
    let min_tokens = fields.count("min_tokens", 0)?.unwrap_or(0);
    if let Some(max_tokens) = budget.asked()
        && min_tokens > max_tokens
    {
        return Err(fields.invalid("min_tokens", format_args!("is {min_tokens}, more than the {max_tokens} tokens that may be generated")));
    }
    let stop_token_ids = fields.ids("stop_token_ids")?.unwrap_or_default();
    if stop_token_ids.len() > MAX_STOP_IDS {
        return Err(fields.invalid("stop_token_ids", format_args!("holds more than {MAX_STOP_IDS} ids")));
    }
    let chosen = chosen(fields)?;
    Ok(Options {
        chosen: Some(chosen),
        stop: stop_texts(fields, "stop", limits.max_stop_sequences)?,
        stop_token_ids,
        ignore_eos: fields.bool("ignore_eos")?.unwrap_or(false),
        keep_stop: fields.bool("include_stop_str_in_output")?.unwrap_or(false),
        show_control: !fields.bool("skip_special_tokens")?.unwrap_or(true),
        truncate: truncate(fields)?,
        allowed_ids: allowed_ids(fields)?,
        bad_words: bad_words(fields)?,
        return_ids: fields.bool("return_token_ids")?.unwrap_or(false),
        format: check_structure(fields, structure, min_tokens)?,
        cache_salt: user(fields)?,
        drafts: drafts::limits(fields)?,
        ..Options::new(sampling(fields, chosen, min_tokens)?, budget)
    })
}

/// Reads `lora`: the adapters that the request has instead of those of its model's name. An empty list asks for nothing.
pub fn lora(fields: &Fields) -> Result<Option<Vec<AdapterAsk>>, ApiError> {
    let list = fields.array("lora")?.filter(|list| !list.is_empty());
    list.map(|list| lora::adapters(list, "lora", MAX_ADAPTERS)).transpose()
}

/// Reads a limit on tokens, at least 1. Clients send -1 for no limit.
pub fn most_tokens(fields: &Fields, name: &str) -> Result<Option<u32>, ApiError> {
    match fields.get(name).and_then(Value::as_i64) {
        Some(-1) => Ok(None),
        _ => fields.count(name, 1),
    }
}

/// Makes the budget of a request that asks for `max_tokens`.
pub fn budget(max_tokens: u32, limits: &Limits) -> Budget {
    if limits.strict_max_tokens { Budget::Strict(max_tokens) } else { Budget::Explicit(max_tokens) }
}

/// Refuses fields that contradict a format, because the format determines where the answer ends.
fn check_structure(fields: &Fields, structure: Option<Structure>, min_tokens: u32) -> Result<Option<Format>, ApiError> {
    let Some(structure) = structure else { return Ok(None) };
    let clash = if min_tokens > 0 { Some("min_tokens") } else { fields.bool("ignore_eos")?.filter(|ignore| *ignore).map(|_| "ignore_eos") };
    match clash {
        Some(field) => {
            Err(fields.invalid(field, format_args!("cannot be combined with `{}`, which says where the answer ends", structure.field)))
        }
        None => Ok(Some(structure.format)),
    }
}

/// Reads `truncate_prompt_tokens`.
pub fn truncate(fields: &Fields) -> Result<Option<Truncate>, ApiError> {
    Ok(match fields.integer("truncate_prompt_tokens", -1..=i64::from(u32::MAX))? {
        None => None,
        Some(0) => return Err(fields.invalid("truncate_prompt_tokens", "must be at least 1, or -1 for as many as the context holds")),
        Some(-1) => Some(Truncate::ToContext),
        Some(most) => Some(Truncate::To(most as usize)),
    })
}

/// Reads `allowed_token_ids`. An empty list asks for nothing.
fn allowed_ids(fields: &Fields) -> Result<Option<Vec<u32>>, ApiError> {
    let ids = fields.ids("allowed_token_ids")?.filter(|ids| !ids.is_empty());
    if ids.as_ref().is_some_and(|ids| ids.len() > MAX_ALLOWED) {
        return Err(fields.invalid("allowed_token_ids", format_args!("holds more than {MAX_ALLOWED} ids")));
    }
    Ok(ids)
}

fn bad_words(fields: &Fields) -> Result<Vec<String>, ApiError> {
    let list = fields.array("bad_words")?.unwrap_or_default();
    if list.len() > MAX_BAD_WORDS {
        return Err(fields.invalid("bad_words", format_args!("holds more than {MAX_BAD_WORDS} texts")));
    }
    let word = |item: &Value| match item.as_str() {
        None => Err(wrong_type("bad_words", "a list of strings", item)),
        Some(word) if word.trim().is_empty() || word.len() > MAX_BAD_WORD => {
            Err(fields.invalid("bad_words", format_args!("must hold texts of 1 to {MAX_BAD_WORD} bytes that are not only white space")))
        }
        Some(word) => Ok(word.to_owned()),
    };
    list.iter().map(word).collect()
}

/// Reads `return_tokens_as_token_ids`.
pub fn token_names(fields: &Fields) -> Result<TokenNames, ApiError> {
    let by_id = fields.bool("return_tokens_as_token_ids")?.unwrap_or(false);
    Ok(if by_id { TokenNames::Ids } else { TokenNames::Texts })
}

/// Reads `thinking_token_budget`, the most reasoning tokens. -1 means no bound.
pub fn thinking_budget(fields: &Fields) -> Result<Option<u32>, ApiError> {
    let most = fields.integer("thinking_token_budget", -1..=i64::from(u32::MAX))?;
    Ok(most.and_then(|most| u32::try_from(most).ok()))
}

/// Reads `prompt_logprobs`, the number of likeliest tokens to return at each position of the prompt. `streams` is set if the answer is
/// streamed.
pub fn prompt_logprobs(fields: &Fields, streams: bool, options: &Options) -> Result<Option<u8>, ApiError> {
    let Some(count) = fields.integer("prompt_logprobs", 0..=MAX_LOGPROBS as i64)? else { return Ok(None) };
    if streams {
        return Err(fields.invalid("prompt_logprobs", "is not allowed with `stream`"));
    }
    if options.echo && options.logprobs.is_some() {
        return Err(fields.invalid("prompt_logprobs", "cannot be combined with `echo` and `logprobs`, which return the same"));
    }
    Ok(Some(count as u8))
}

/// Reads a level of reasoning. An empty text asks for nothing.
pub fn effort(fields: &Fields, name: &str) -> Result<Option<String>, ApiError> {
    let Some(effort) = fields.string(name)?.filter(|effort| !effort.is_empty()) else { return Ok(None) };
    match EFFORTS.contains(&effort) {
        true => Ok(Some(effort.to_owned())),
        false => Err(fields.invalid(name, format_args!("must be one of {}, not `{}`", EFFORTS.join(", "), quoted(effort)))),
    }
}

/// Sets the level of reasoning. A template that does not know the level gets the nearest one that it knows, or none.
pub fn set_effort(conversation: &mut Conversation, effort: Option<String>) {
    conversation.or_efforts = effort.as_deref().map(nearest_efforts);
    conversation.effort = effort;
}

/// Refuses fields that contradict tools, because calls also determine where the answer ends.
pub fn check_tools(fields: &Fields, conversation: &Conversation, options: &Options) -> Result<(), ApiError> {
    let clash = [("ignore_eos", options.ignore_eos), ("min_tokens", options.sampling.min_tokens > 0)].into_iter().find(|(_, asked)| *asked);
    match clash.filter(|_| conversation.tools.is_some()) {
        Some((field, _)) => Err(fields.invalid(field, "cannot be combined with `tools`, whose calls end the answer")),
        None => Ok(()),
    }
}

/// Returns a number for the `user` (newer clients call it `safety_identifier`) and vLLM's `cache_salt`. Only requests with the same ones
/// share the prefix cache, so that no user can probe for another's prompts.
pub fn user(fields: &Fields) -> Result<u64, ApiError> {
    let newer = fields.string("safety_identifier")?;
    let user = fields.string("user")?.or(newer);
    Ok(match fields.string("cache_salt")? {
        Some(salt) => number_of(&format!("{salt}\0{}", user.unwrap_or_default())),
        None => user.map_or(0, number_of),
    })
}

/// Hashes a name to a number.
fn number_of(user: &str) -> u64 {
    Sha256::digest(user.as_bytes()).iter().take(8).fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// Reads `n`, from 1 to 16.
pub fn num_choices(fields: &Fields) -> Result<usize, ApiError> {
    Ok(fields.integer("n", 1..=MAX_CHOICES)?.unwrap_or(1) as usize)
}

/// Reads a number over 0 and up to `most`.
pub fn positive(fields: &Fields, field: &str, most: f64) -> Result<Option<f32>, ApiError> {
    // Some numbers above 0 are 0 in 32 bits.
    match fields.number(field, 0.0..=most)?.map(|value| value as f32) {
        Some(0.0) => Err(fields.invalid(field, "must be greater than 0")),
        value => Ok(value),
    }
}

/// Reads the sampling values. The model's defaults replace those that are absent.
fn chosen(fields: &Fields) -> Result<SamplingChoice, ApiError> {
    let number = |field: &str, range| Ok::<_, ApiError>(fields.number(field, range)?.map(|value| value as f32));
    Ok(SamplingChoice {
        temperature: number("temperature", 0.0..=2.0)?,
        top_k: fields.integer("top_k", -1..=i64::from(u32::MAX))?.map(|value| value.max(0) as u32),
        // With a share of 0, only the likeliest token remains.
        top_p: number("top_p", 0.0..=1.0)?.map(|share| share.max(f32::MIN_POSITIVE)),
        min_p: number("min_p", 0.0..=1.0)?,
        presence_penalty: number("presence_penalty", -2.0..=2.0)?,
        frequency_penalty: number("frequency_penalty", -2.0..=2.0)?,
        repetition_penalty: positive(fields, "repetition_penalty", 10.0)?,
        // Clients send -1 for a random seed.
        seed: fields.integer("seed", i64::MIN..=i64::MAX)?.filter(|seed| *seed != -1).map(|seed| seed as u64),
    })
}

fn sampling(fields: &Fields, chosen: SamplingChoice, min_tokens: u32) -> Result<SamplingParams, ApiError> {
    Ok(chosen.applied_to(SamplingParams {
        logit_bias: logit_bias(fields)?,
        seed: uuid::Uuid::new_v4().as_u64_pair().0,
        min_tokens,
        ..SamplingParams::default()
    }))
}

fn logit_bias(fields: &Fields) -> Result<Vec<(u32, f32)>, ApiError> {
    if let Some(Value::Array(pairs)) = fields.get("logit_bias") {
        return biases(fields, pairs);
    }
    let Some(map) = fields.object("logit_bias")? else { return Ok(Vec::new()) };
    if map.len() > MAX_BIAS {
        return Err(fields.invalid("logit_bias", format_args!("holds more than {MAX_BIAS} ids")));
    }
    let mut biases = Vec::with_capacity(map.len());
    for (key, value) in map {
        // Otherwise `01` and `+1` would name the same id as `1`.
        let id = key.parse::<u32>().ok().filter(|id| id.to_string() == *key);
        let id = id.ok_or_else(|| fields.invalid("logit_bias", format_args!("names `{}`, which is not a token id", quoted(key))))?;
        let problem = || fields.invalid("logit_bias", format_args!("of {id} must be a number from -100 to 100"));
        biases.push((id, bias(value).ok_or_else(problem)?));
    }
    Ok(biases)
}

/// The bias of a token, if it is within its range.
fn bias(value: &Value) -> Option<f32> {
    value.as_f64().filter(|bias| (-100.0..=100.0).contains(bias)).map(|bias| bias as f32)
}

/// Reads llama.cpp's form of `logit_bias`: pairs of an id and a bias, or of an id and false for a token that must not occur.
fn biases(fields: &Fields, pairs: &[Value]) -> Result<Vec<(u32, f32)>, ApiError> {
    if pairs.len() > MAX_BIAS {
        return Err(fields.invalid("logit_bias", format_args!("holds more than {MAX_BIAS} ids")));
    }
    let pair = |pair: &Value| {
        let pair = pair.as_array().map(Vec::as_slice);
        let Some([id, value]) = pair else { return Err(fields.invalid("logit_bias", "must hold pairs of a token id and a bias")) };
        let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
        let id =
            id.ok_or_else(|| fields.invalid("logit_bias", "names something else than a token id: `/tokenize` has the ids of a text"))?;
        let problem = || fields.invalid("logit_bias", format_args!("of {id} must be a number from -100 to 100, or false"));
        let bias = if value == &Value::Bool(false) { Some(-100.0) } else { bias(value) };
        Ok((id, bias.ok_or_else(problem)?))
    };
    pairs.iter().map(pair).collect()
}

/// Reads `stream` and `stream_options`. `None` if the answer is not streamed.
pub fn stream(fields: &Fields) -> Result<Option<StreamOptions>, ApiError> {
    let stream = fields.bool("stream")?.unwrap_or(false);
    let options = match fields.get("stream_options") {
        None => return Ok(stream.then(StreamOptions::default)),
        Some(value) => Fields::at(value, "stream_options")?,
    };
    let include_usage = options.bool("include_usage")?.unwrap_or(false);
    let continuous_usage_stats = options.bool("continuous_usage_stats")?.unwrap_or(false);
    let include_progress = options.bool("include_progress")?.unwrap_or(false);
    let include_obfuscation = options.bool("include_obfuscation")?.unwrap_or(false);
    if !stream {
        return Err(fields.invalid("stream_options", "is only allowed with `stream`"));
    }
    if continuous_usage_stats && !include_usage {
        return Err(options.invalid("continuous_usage_stats", "needs `include_usage`"));
    }
    Ok(Some(StreamOptions { include_usage, include_progress, continuous_usage_stats, include_obfuscation }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_prompt_may_be_cut_to_some_tokens_or_to_the_context() {
        let read = |value: Value| {
            truncate(&Fields::root(&json!({"truncate_prompt_tokens": value})).unwrap()).map_err(|error| error.param.unwrap())
        };
        assert_eq!(
            (read(json!(5)), read(json!(-1)), read(json!(null))),
            (Ok(Some(Truncate::To(5))), Ok(Some(Truncate::ToContext)), Ok(None))
        );
        for wrong in [json!(0), json!(-2), json!("5"), json!(1.5)] {
            assert_eq!(read(wrong), Err("truncate_prompt_tokens".into()));
        }
    }
}
