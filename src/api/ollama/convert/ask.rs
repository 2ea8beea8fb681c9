//! The fields that chats and generations share.

use serde_json::Value;

use super::keep_alive::keep_alive;
use super::options::{Settings, settings};
use chat::Format;
use config::Limits;
use http::error::{ApiError, quoted};
use http::fields::{Fields, wrong_type};
use logits::MAX_LOGPROBS;
use registry::Keep;

/// Whether to reason before the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Think {
    Switch(bool),
    /// A level that the model's template may know.
    Level(String),
}

/// What a chat and a generation ask alike.
#[derive(Debug)]
pub struct Common {
    pub model: String,
    pub settings: Settings,
    pub think: Option<Think>,
    pub keep: Option<Keep>,
    pub stream: bool,
}

/// Longer names of levels are not known anywhere.
const MAX_LEVEL: usize = 32;

pub fn common(fields: &Fields, limits: &Limits) -> Result<Common, ApiError> {
    // A prompt that fits is not cut, and one that does not fit is refused.
    for name in ["truncate", "shift"] {
        fields.bool(name)?;
    }
    if fields.bool("_debug_render_only")? == Some(true) {
        let message = "`_debug_render_only` is not supported: POST /apply-template shows the prompt of a conversation";
        return Err(ApiError::unsupported("_debug_render_only", message));
    }
    let mut settings = settings(fields, limits)?;
    settings.options.format = format(fields)?;
    settings.options.logprobs = logprobs(fields)?;
    Ok(Common {
        model: super::model::model(fields)?,
        settings,
        think: think(fields)?,
        keep: keep_alive(fields)?,
        stream: fields.bool("stream")?.unwrap_or(true),
    })
}

fn format(fields: &Fields) -> Result<Option<Format>, ApiError> {
    match fields.get("format") {
        None => Ok(None),
        Some(Value::String(name)) => match name.as_str() {
            "" => Ok(None),
            "json" => Ok(Some(Format::JsonObject)),
            other => Err(fields.invalid("format", format_args!("must be `json` or a JSON schema, not `{}`", quoted(other)))),
        },
        Some(schema @ Value::Object(_)) => Ok(Some(Format::JsonSchema(schema.clone()))),
        Some(other) => Err(wrong_type("format", "`json` or a JSON schema", other)),
    }
}

fn think(fields: &Fields) -> Result<Option<Think>, ApiError> {
    match fields.get("think") {
        None => Ok(None),
        Some(Value::Bool(on)) => Ok(Some(Think::Switch(*on))),
        Some(Value::String(level)) => match level.as_str() {
            "" => Ok(None),
            "none" => Ok(Some(Think::Switch(false))),
            level if (1..=MAX_LEVEL).contains(&level.len()) && level.bytes().all(|byte| byte.is_ascii_lowercase()) => {
                Ok(Some(Think::Level(level.to_owned())))
            }
            other => Err(fields
                .invalid("think", format_args!("must be true, false or a level such as low, medium or high, not `{}`", quoted(other)))),
        },
        Some(other) => Err(wrong_type("think", "a boolean or a level such as low, medium or high", other)),
    }
}

fn logprobs(fields: &Fields) -> Result<Option<u8>, ApiError> {
    let top = fields.integer("top_logprobs", 0..=MAX_LOGPROBS as i64)?.unwrap_or(0) as u8;
    match fields.bool("logprobs")? {
        Some(true) => Ok(Some(top)),
        _ if top > 0 => Err(fields.invalid("top_logprobs", "is only allowed with `logprobs`")),
        _ => Ok(None),
    }
}
