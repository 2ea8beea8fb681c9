//! `/v1/chat/completions`: the request.

use serde_json::{Map, Value, json};

use super::super::error::{ApiError, quoted};
use super::super::fields::{Fields, wrong_type};
use super::super::types::common::StreamOptions;
use super::tools::{self, Shape};
use super::{generation, refuse, structured};
use crate::config::Limits;
use crate::logits::MAX_LOGPROBS;
use crate::serving::{Budget, Options, Prompt};
use crate::template::RenderInput;

const MAX_MESSAGES: usize = 16_384;
const MAX_PARTS: usize = 1024;
/// Names that the server itself gives to a template.
const RESERVED: [&str; 5] = ["messages", "tools", "add_generation_prompt", "bos_token", "eos_token"];

/// A chat request whose fields are all right by themselves; what depends on the model is checked by `serving`.
#[derive(Debug)]
pub struct Chat {
    pub model: String,
    pub prompt: Prompt,
    pub num_choices: usize,
    pub options: Options,
    pub stream: Option<StreamOptions>,
}

pub fn parse(body: &Value, limits: &Limits) -> Result<Chat, ApiError> {
    let fields = Fields::root(body)?;
    let model = super::model(&fields)?;
    refuse::chat(&fields)?;
    let max_tokens = fields.count("max_tokens", 1)?;
    let budget = fields.count("max_completion_tokens", 1)?.or(max_tokens).map_or(Budget::Rest, Budget::Explicit);
    let (input, continue_final) = input(&fields)?;
    let mut options = generation::options(&fields, limits, budget, structured::structure(&fields)?)?;
    options.continue_final = continue_final;
    options.effort = generation::effort(&fields, "reasoning_effort")?.map(|effort| ("reasoning_effort", effort));
    options.tools = tools::tools(&fields, Shape::Nested)?;
    generation::check_tools(&fields, &options)?;
    options.logprobs = logprobs(&fields)?;
    let num_choices = generation::num_choices(&fields)?;
    Ok(Chat { model, prompt: Prompt::Chat(input), num_choices, options, stream: generation::stream(&fields)? })
}

/// What the template gets, and whether the last message is to be continued.
pub fn input(fields: &Fields) -> Result<(RenderInput, bool), ApiError> {
    let messages = messages(fields)?;
    let (continue_final, add_generation_prompt) = last_turn(fields, &messages)?;
    Ok((RenderInput { messages, tools: None, add_generation_prompt, kwargs: kwargs(fields)? }, continue_final))
}

/// `logprobs` and `top_logprobs`
fn logprobs(fields: &Fields) -> Result<Option<u8>, ApiError> {
    let wanted = fields.bool("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", 0..=MAX_LOGPROBS as i64)?;
    if top.is_some() && !wanted {
        return Err(fields.invalid("top_logprobs", "is only allowed with `logprobs`"));
    }
    Ok(wanted.then_some(top.unwrap_or(0) as u8))
}

/// Is the last message to be continued, and does the template open the assistant's turn?
fn last_turn(fields: &Fields, messages: &Value) -> Result<(bool, bool), ApiError> {
    let last = messages.as_array().and_then(|messages| messages.last());
    let raw = fields.array("messages")?.and_then(|messages| messages.last());
    let prefix = raw.and_then(|message| message.get("prefix")).and_then(Value::as_bool).unwrap_or(false);
    let continues = fields.bool("continue_final_message")?.unwrap_or(false) || prefix;
    let opens = fields.bool("add_generation_prompt")?;
    if continues && opens == Some(true) {
        return Err(fields.invalid("add_generation_prompt", "cannot be true with `continue_final_message`"));
    }
    if continues && last.is_none_or(|message| message["role"] != "assistant" || message.get("tool_calls").is_some()) {
        return Err(fields.invalid("continue_final_message", "needs a last message that is the assistant's and has no calls"));
    }
    Ok((continues, opens.unwrap_or(!continues)))
}

pub fn kwargs(fields: &Fields) -> Result<Map<String, Value>, ApiError> {
    let Some(map) = fields.object("chat_template_kwargs")? else { return Ok(Map::new()) };
    match RESERVED.iter().find(|name| map.contains_key(**name)) {
        Some(name) => Err(fields.invalid("chat_template_kwargs", format_args!("must not set `{name}`"))),
        None => Ok(map.clone()),
    }
}

fn messages(fields: &Fields) -> Result<Value, ApiError> {
    let list = fields.required("messages", fields.array("messages")?)?;
    if list.is_empty() {
        return Err(fields.invalid("messages", "must not be empty"));
    }
    if list.len() > MAX_MESSAGES {
        return Err(fields.invalid("messages", format_args!("holds more than {MAX_MESSAGES} messages")));
    }
    let one = |(i, value)| message(&Fields::at(value, &format!("messages[{i}]"))?);
    Ok(Value::Array(list.iter().enumerate().map(one).collect::<Result<_, _>>()?))
}

/// What a template gets: `role`, `content` (always a string) and, where given, `name`, `tool_call_id`, `reasoning_content` and `tool_calls`.
fn message(fields: &Fields) -> Result<Value, ApiError> {
    let role = match fields.required("role", fields.string("role")?)? {
        // Templates know `system` only.
        "developer" => "system",
        role @ ("system" | "user" | "assistant" | "tool") => role,
        other => {
            let roles = "system, developer, user, assistant or tool";
            return Err(fields.invalid("role", format_args!("must be {roles}, not `{}`", quoted(other))));
        }
    };
    for name in ["function_call", "audio"] {
        if fields.get(name).is_some_and(|value| !value.as_array().is_some_and(Vec::is_empty)) {
            let path = fields.path(name);
            return Err(ApiError::unsupported(&path, format!("`{path}` is not supported yet")));
        }
    }
    if role != "assistant" && !fields.has("content") {
        return Err(fields.invalid("content", "is required"));
    }
    let mut message = json!({"role": role, "content": content(fields)?});
    for name in ["name", "tool_call_id", "reasoning_content"] {
        if let Some(text) = fields.string(name)? {
            message[name] = text.into();
        }
    }
    // read where the last message is looked at
    fields.bool("prefix")?;
    if let Some(calls) = tools::calls(fields)? {
        message["tool_calls"] = calls;
    }
    Ok(message)
}

fn content(fields: &Fields) -> Result<String, ApiError> {
    let path = fields.path("content");
    let parts = match fields.get("content") {
        None => return Ok(String::new()),
        Some(Value::String(text)) => return Ok(text.clone()),
        Some(Value::Array(parts)) => parts,
        Some(other) => return Err(wrong_type(&path, "a string, null or a list of parts", other)),
    };
    if parts.len() > MAX_PARTS {
        return Err(fields.invalid("content", format_args!("holds more than {MAX_PARTS} parts")));
    }
    let mut texts = Vec::with_capacity(parts.len());
    for (i, value) in parts.iter().enumerate() {
        let part = Fields::at(value, &format!("{path}[{i}]"))?;
        match part.required("type", part.string("type")?)? {
            "text" => texts.push(part.required("text", part.string("text")?)?),
            other => return Err(part.invalid("type", format_args!("is `{}`; only `text` parts are supported", quoted(other)))),
        }
    }
    Ok(texts.join("\n"))
}
