//! `/v1/messages` and `/v1/messages/count_tokens`: the requests.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::cache_control::cache_control;
use super::thinking::{self, Thinking};
use super::{messages, options, tools};
use crate::http::error::{ApiError, quoted};
use crate::http::fields::Fields;
use chat::{Conversation, Message};
use config::Limits;
use serving::{Model, Options};

const KNOWN: [&str; 26] = [
    "model",
    "messages",
    "max_tokens",
    "system",
    "stop_sequences",
    "stream",
    "temperature",
    "top_p",
    "top_k",
    "metadata",
    "thinking",
    "output_config",
    "output_format",
    "tools",
    "tool_choice",
    "service_tier",
    "cache_control",
    "context_management",
    // Known, and they mean nothing here.
    "inference_geo",
    "speed",
    "container",
    "mcp_servers",
    "anthropic_version",
    "anthropic_beta",
    "diagnostics",
    "thread",
];

/// The prompt of a request, valid by itself. `serving` checks what depends on the model.
#[derive(Debug)]
pub struct Prompt {
    pub model: String,
    pub conversation: Conversation,
    /// `None`: the request does not say whether the model is to reason.
    pub thinking: Option<Thinking>,
}

#[derive(Debug)]
pub struct Messages {
    pub prompt: Prompt,
    pub max_tokens: u32,
    pub options: Options,
    pub stream: bool,
}

impl Prompt {
    /// The conversation for `model`. Without a word in the request, the model does not reason unless its configuration says so.
    pub fn for_model(mut self, model: &Model) -> Conversation {
        let defaults = &model.defaults;
        if self.thinking.is_none() && defaults.effort.is_none() {
            thinking::switch(&mut self.conversation.variables, false, &defaults.variables);
        }
        self.conversation
    }
}

/// A request to generate.
pub fn parse(body: &Value, limits: &Limits) -> Result<Messages, ApiError> {
    let fields = Fields::body(body, limits.unknown_fields)?;
    fields.only(&KNOWN)?;
    let max_tokens = fields.required("max_tokens", fields.count("max_tokens", 1)?)?;
    let output = output(&fields)?;
    let mut options = options::options(&fields, limits, max_tokens)?;
    options.format = options::format(&fields, output.as_ref())?;
    let stream = fields.bool("stream")?.unwrap_or(false);
    Ok(Messages { prompt: prompt(&fields, output.as_ref(), Some(max_tokens))?, max_tokens, options, stream })
}

/// A request to count. It may hold what a request to generate holds, which is checked as it is there.
pub fn parse_count(body: &Value, limits: &Limits) -> Result<Prompt, ApiError> {
    let fields = Fields::body(body, limits.unknown_fields)?;
    fields.only(&KNOWN)?;
    let max_tokens = fields.count("max_tokens", 1)?;
    let output = output(&fields)?;
    options::options(&fields, limits, max_tokens.unwrap_or(1))?;
    options::format(&fields, output.as_ref())?;
    fields.bool("stream")?;
    prompt(&fields, output.as_ref(), max_tokens)
}

fn output<'a>(fields: &Fields<'a>) -> Result<Option<Fields<'a>>, ApiError> {
    let Some(value) = fields.get("output_config") else { return Ok(None) };
    let inner = fields.within(value, "output_config")?;
    inner.only(&["effort", "format"])?;
    Ok(Some(inner))
}

fn prompt(fields: &Fields, output: Option<&Fields>, max_tokens: Option<u32>) -> Result<Prompt, ApiError> {
    let model = fields.required("model", fields.string("model")?)?.to_owned();
    options::check_neutral(fields)?;
    cache_control(fields)?;
    let thinking = thinking::thinking(fields, max_tokens)?;
    let mut variables = Map::new();
    output.map_or(Ok(()), |output| thinking::effort(output, &mut variables))?;
    if let Some(thinking) = thinking {
        thinking::switch(&mut variables, thinking.is_on, &Map::new());
    }
    let tools = tools::tools(fields)?;
    let names: HashSet<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
    let (mut messages, ending) = messages::messages(fields, &names)?;
    drop(names);
    clear(fields, &mut messages)?;
    let tools = tools::choice(fields, tools)?;
    Ok(Prompt { model, conversation: Conversation { messages, tools, ending, effort: None, variables }, thinking })
}

/// `context_management`: reasoning of earlier turns can be cleared. Nothing else of a conversation is ever changed.
fn clear(fields: &Fields, messages: &mut [Message]) -> Result<(), ApiError> {
    let Some(value) = fields.get("context_management") else { return Ok(()) };
    let inner = fields.within(value, "context_management")?;
    inner.only(&["edits"])?;
    for (i, value) in inner.array("edits")?.unwrap_or_default().iter().enumerate() {
        let path = format!("context_management.edits[{i}]");
        let edit = inner.within(value, &path)?;
        let kind = edit.required("type", edit.string("type")?)?;
        if kind != "clear_thinking_20251015" {
            let path = edit.path("type");
            let message = format!("`{path}` is `{}`; only clear_thinking_20251015 is supported", quoted(kind));
            return Err(ApiError::unsupported(&path, message));
        }
        edit.only(&["type", "keep"])?;
        let Some(keep) = kept(&edit)? else { continue };
        let thoughtful = messages.iter_mut().rev().filter(|message| message.reasoning.is_some());
        thoughtful.skip(keep).for_each(|message| message.reasoning = None);
    }
    Ok(())
}

/// How many turns keep their reasoning. `None`: all.
fn kept(edit: &Fields) -> Result<Option<usize>, ApiError> {
    match edit.get("keep") {
        None => Ok(Some(1)),
        Some(Value::String(all)) if all == "all" => Ok(None),
        Some(value) => {
            let keep = edit.within(value, &edit.path("keep"))?;
            match keep.required("type", keep.string("type")?)? {
                "all" => Ok(None),
                "thinking_turns" => Ok(Some(keep.required("value", keep.count("value", 1)?)? as usize)),
                other => Err(keep.invalid("type", format_args!("must be all or thinking_turns, not `{}`", quoted(other)))),
            }
        }
    }
}
