//! The fields of a request besides its prompt.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::Value;
use sha2::{Digest, Sha256};

use chat::Format;
use config::Limits;
use http::error::{ApiError, quoted};
use http::fields::{Fields, wrong_type};
use http::stop::{MOST, stop_texts};
use logits::{SamplingChoice, SamplingParams};
use serving::{Budget, Options};

const MAX_USER: usize = 4096;
/// The field that asks the server to keep the conversation.
pub const THREAD: &str = "thread";

pub fn options(fields: &Fields, limits: &Limits, max_tokens: u32) -> Result<Options, ApiError> {
    let number = |name: &str| Ok::<_, ApiError>(fields.number(name, 0.0..=1.0)?.map(|value| value as f32));
    let chosen = SamplingChoice {
        temperature: number("temperature")?,
        // Nothing but the likeliest token fits into a share of 0.
        top_p: number("top_p")?.map(|share| share.max(f32::MIN_POSITIVE)),
        top_k: fields.integer("top_k", -1..=i64::from(u32::MAX))?.map(|value| value.max(0) as u32),
        ..SamplingChoice::default()
    };
    fields.array("stop_sequences")?;
    let seed = uuid::Uuid::new_v4().as_u64_pair().0;
    let sampling = chosen.applied_to(SamplingParams { seed, ..SamplingParams::default() });
    let budget = if limits.strict_max_tokens { Budget::Strict(max_tokens) } else { Budget::Explicit(max_tokens) };
    Ok(Options {
        chosen: Some(chosen),
        stop: stop_texts(fields, "stop_sequences", limits.max_stop_sequences.max(MOST))?,
        cache_salt: user(fields)?,
        ..Options::new(sampling, budget)
    })
}

/// A user's id without the session that agents write into it: the next session of the same user begins with the same prompt.
fn without_session(user: &str) -> Cow<'_, str> {
    match serde_json::from_str::<BTreeMap<String, Value>>(user) {
        Ok(mut map) => {
            map.remove("session_id");
            serde_json::json!(map).to_string().into()
        }
        Err(_) => user.split_once("_session_").map_or(user, |(user, _)| user).into(),
    }
}

/// The number of `metadata.user_id`. Users do not share the prefix cache, so that none can probe what another has asked.
fn user(fields: &Fields) -> Result<u64, ApiError> {
    let Some(value) = fields.get("metadata") else { return Ok(0) };
    let inner = fields.within(value, "metadata")?;
    inner.check_size("user_id", MAX_USER)?;
    let Some(user) = inner.string("user_id")? else { return Ok(0) };
    Ok(Sha256::digest(without_session(user).as_bytes()).iter().take(8).fold(0, |number, &byte| number << 8 | u64::from(byte)))
}

/// `format` of `output_config`, or `output_format` as it was called before.
pub fn format(fields: &Fields, output: Option<&Fields>) -> Result<Option<Format>, ApiError> {
    let newer = output.and_then(|output| Some((output.get("format")?, "output_config.format")));
    let older = fields.get("output_format").map(|value| (value, "output_format"));
    let (value, path) = match (newer, older) {
        (Some(_), Some(_)) => return Err(fields.invalid("output_format", "asks for a second format beside `output_config.format`")),
        (newer, older) => match newer.or(older) {
            Some(found) => found,
            None => return Ok(None),
        },
    };
    let inner = fields.within(value, path)?;
    match inner.required("type", inner.string("type")?)? {
        "json_schema" => match inner.required("schema", inner.get("schema"))? {
            schema @ Value::Object(_) => Ok(Some(Format::JsonSchema(schema.clone()))),
            other => Err(wrong_type(&inner.path("schema"), "a JSON schema", other)),
        },
        other => Err(inner.invalid("type", format_args!("must be json_schema, not `{}`", quoted(other)))),
    }
}

/// Checks the fields that mean nothing here: their values must ask for nothing.
pub fn check_neutral(fields: &Fields) -> Result<(), ApiError> {
    let refuse = |name: &str, why: &str| Err(ApiError::unsupported(name, format!("`{name}` is not supported: {why}")));
    match fields.string("service_tier")? {
        None | Some("auto" | "standard_only") => {}
        Some(other) => return Err(fields.invalid("service_tier", format_args!("must be auto or standard_only, not `{}`", quoted(other)))),
    }
    match fields.string("speed")? {
        None | Some("standard") => {}
        Some(other) => return Err(fields.invalid("speed", format_args!("must be standard, not `{}`: there is one speed", quoted(other)))),
    }
    for name in ["inference_geo", "anthropic_version", "user_profile_id", "workspace_id"] {
        fields.string(name)?;
    }
    fields.array("anthropic_beta")?;
    fields.object("diagnostics")?;
    if fields.get("compaction").is_some() {
        return refuse("compaction", "the server writes no summaries. Ask for one as for any answer");
    }
    if fields.get(THREAD).is_some() {
        return refuse(THREAD, "no conversation is kept here. Send all messages with each request");
    }
    if fields.get("container").is_some() {
        return refuse("container", "no code is run here");
    }
    if fields.array("mcp_servers")?.is_some_and(|list| !list.is_empty()) {
        return refuse("mcp_servers", "this server calls no other one. Run them at the client and send their tools as `tools`");
    }
    Ok(())
}
