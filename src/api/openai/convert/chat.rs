//! `/v1/chat/completions`: the request.

use serde_json::{Map, Value};

use super::super::types::common::StreamOptions;
use super::tools::{self, Shape};
use super::{generation, names, refuse, structured};
use crate::http::error::{ApiError, quoted};
use crate::http::fields::{Fields, wrong_type};
use crate::http::subject::FieldNames;
use chat::{Conversation, Ending, Message, Part, Role, is_reserved};
use config::Limits;
use logits::MAX_LOGPROBS;
use serving::{Budget, Options, Prompt};

const MAX_MESSAGES: usize = 16_384;
const MAX_PARTS: usize = 1024;

/// A chat request whose fields are valid by themselves. `serving` checks what depends on the model.
#[derive(Debug)]
pub struct Chat {
    pub model: String,
    pub prompt: Prompt,
    pub num_choices: usize,
    pub options: Options,
    pub names: FieldNames,
    pub stream: Option<StreamOptions>,
    /// What is kept with the answer. `None`: it is not kept.
    pub keep: Option<Asked>,
}

/// What a request said, as far as it is kept.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Each message as JSON.
    pub messages: Vec<String>,
    pub metadata: Map<String, Value>,
}

pub fn parse(body: &Value, limits: &Limits) -> Result<Chat, ApiError> {
    let fields = Fields::root(body)?;
    let model = super::model(&fields)?;
    refuse::chat(&fields)?;
    let max_tokens = fields.count("max_tokens", 1)?;
    let budget = fields.count("max_completion_tokens", 1)?.or(max_tokens).map_or(Budget::Rest, |count| generation::budget(count, limits));
    let mut conversation = conversation(&fields)?;
    conversation.effort = generation::effort(&fields, "reasoning_effort")?;
    let structure = structured::structure(&fields)?;
    let names = FieldNames { format: structured::field_of(structure.as_ref(), names::CHAT), ..names::CHAT };
    let mut options = generation::options(&fields, limits, budget, structure)?;
    generation::check_tools(&fields, &conversation, &options)?;
    options.logprobs = logprobs(&fields)?;
    let num_choices = generation::num_choices(&fields)?;
    let stream = generation::stream(&fields)?;
    let keep = asked(&fields)?;
    Ok(Chat { model, prompt: Prompt::Chat(conversation), num_choices, options, names, stream, keep })
}

/// `store`, and what is stored.
fn asked(fields: &Fields) -> Result<Option<Asked>, ApiError> {
    if !fields.bool("store")?.unwrap_or(false) {
        return Ok(None);
    }
    let messages = fields.array("messages")?.unwrap_or_default().iter().map(Value::to_string).collect();
    Ok(Some(Asked { messages, metadata: super::metadata::metadata(fields)? }))
}

/// What the template gets, but for the level of reasoning.
pub fn conversation(fields: &Fields) -> Result<Conversation, ApiError> {
    let messages = messages(fields)?;
    let ending = ending(fields, &messages)?;
    let variables = template_variables(fields)?;
    Ok(Conversation { messages, tools: tools::tools(fields, Shape::Nested)?, ending, effort: None, variables })
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

/// `add_generation_prompt`, `continue_final_message`, and `prefix` of the last message.
fn ending(fields: &Fields, messages: &[Message]) -> Result<Ending, ApiError> {
    let raw = fields.array("messages")?.and_then(|messages| messages.last());
    let prefix = raw.and_then(|message| message.get("prefix")).and_then(Value::as_bool).unwrap_or(false);
    let continues = fields.bool("continue_final_message")?.unwrap_or(false) || prefix;
    let opens = fields.bool("add_generation_prompt")?;
    if continues && opens == Some(true) {
        return Err(fields.invalid("add_generation_prompt", "cannot be true with `continue_final_message`"));
    }
    if continues && messages.last().is_none_or(|message| message.role != Role::Assistant || !message.calls.is_empty()) {
        return Err(fields.invalid("continue_final_message", "needs a last message that is the assistant's and has no calls"));
    }
    Ok(match (continues, opens.unwrap_or(true)) {
        (true, _) => Ending::Continue,
        (false, true) => Ending::OpenTurn,
        (false, false) => Ending::ClosedTurn,
    })
}

/// `chat_template_kwargs`
pub fn template_variables(fields: &Fields) -> Result<Map<String, Value>, ApiError> {
    let Some(map) = fields.object("chat_template_kwargs")? else { return Ok(Map::new()) };
    match map.keys().find(|name| is_reserved(name)) {
        Some(name) => {
            let path = format!("chat_template_kwargs.{name}");
            Err(ApiError::field(&path, format!("`{path}` is not allowed: the server defines this name for every template")))
        }
        None => Ok(map.clone()),
    }
}

fn messages(fields: &Fields) -> Result<Vec<Message>, ApiError> {
    let list = fields.required("messages", fields.array("messages")?)?;
    if list.is_empty() {
        return Err(fields.invalid("messages", "must not be empty"));
    }
    if list.len() > MAX_MESSAGES {
        return Err(fields.invalid("messages", format_args!("holds more than {MAX_MESSAGES} messages")));
    }
    list.iter().enumerate().map(|(i, value)| message(&Fields::at(value, &format!("messages[{i}]"))?)).collect()
}

fn message(fields: &Fields) -> Result<Message, ApiError> {
    let role = match fields.required("role", fields.string("role")?)? {
        // Templates do not know `developer`.
        "system" | "developer" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "tool" => Role::Tool,
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
    if role != Role::Assistant && !fields.has("content") {
        return Err(fields.invalid("content", "is required"));
    }
    let text = |name: &str| Ok::<_, ApiError>(fields.string(name)?.map(str::to_owned));
    let parts = content(fields)?;
    let (name, call_id, reasoning) = (text("name")?, text("tool_call_id")?, text("reasoning_content")?);
    // Its value counts only in the last message.
    fields.bool("prefix")?;
    Ok(Message { role, parts, name, call_id, reasoning, calls: tools::calls(fields)? })
}

fn content(fields: &Fields) -> Result<Vec<Part>, ApiError> {
    let path = fields.path("content");
    let parts = match fields.get("content") {
        None => return Ok(Vec::new()),
        Some(Value::String(text)) => return Ok(vec![Part::Text(text.clone())]),
        Some(Value::Array(parts)) => parts,
        Some(other) => return Err(wrong_type(&path, "a string, null or a list of parts", other)),
    };
    if parts.len() > MAX_PARTS {
        return Err(fields.invalid("content", format_args!("holds more than {MAX_PARTS} parts")));
    }
    let one = |(i, value): (usize, &Value)| {
        let part = Fields::at(value, &format!("{path}[{i}]"))?;
        match part.required("type", part.string("type")?)? {
            "text" => Ok(Part::Text(part.required("text", part.string("text")?)?.to_owned())),
            other => Err(part.invalid("type", format_args!("is `{}`; only `text` parts are supported", quoted(other)))),
        }
    };
    parts.iter().enumerate().map(one).collect()
}
