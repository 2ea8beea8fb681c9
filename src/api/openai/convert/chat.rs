//! Conversion of requests to `/v1/chat/completions`.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::super::types::common::StreamOptions;
use super::super::types::logprobs::TokenNames;
use super::tool_shape::Shape;
use super::tools;
use super::{custom_tools, drafts, generation, names, reasoning, structured, verbosity};
use chat::{Conversation, Ending, Message, Part, Role, is_reserved};
use config::Limits;
use http::error::{ApiError, quoted};
use http::field_schema::nearest;
use http::fields::{Fields, wrong_type};
use http::omitted_content;
use http::pictures::{self, PicturePlace};
use http::subject::FieldNames;
use logits::MAX_LOGPROBS;
use registry::AdapterAsk;
use serving::{Budget, Options, Prompt};

const MAX_MESSAGES: usize = 16_384;
const MAX_PARTS: usize = 1024;
const NO_IMAGE: &str = "is `image`: send a picture as `image_url`";
/// The usual roles.
const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];
/// The longest name of another role [bytes].
const MAX_ROLE: usize = 64;
/// The longest template of a request [bytes]. The longest one of a real model has 20,000.
const MAX_TEMPLATE: usize = 64 << 10;

/// A chat request whose fields are each valid. `serving` checks everything that depends on the model.
#[derive(Debug)]
pub struct Chat {
    pub model: String,
    pub prompt: Prompt,
    pub options: Options,
    /// The adapters of the request instead of those of its model's name.
    pub lora: Option<Vec<AdapterAsk>>,
    pub names: FieldNames,
    pub stream: Option<StreamOptions>,
    /// Whether the request uses `functions`, so that calls are returned in that form.
    pub legacy: bool,
    /// The names of the custom tools, whose calls are returned as texts.
    pub customs: Vec<String>,
    /// The text of the last message, if the answer begins with it.
    pub echo: String,
    pub token_names: TokenNames,
    /// The parts of the request to store with the answer. `None` if the answer is not stored.
    pub keep: Option<StoredRequest>,
}

/// The parts of a request that are stored.
#[derive(Clone, Debug)]
pub struct StoredRequest {
    /// Each message as JSON.
    pub messages: Vec<String>,
    pub metadata: Map<String, Value>,
}

pub fn parse(body: &Value, limits: &Limits) -> Result<Chat, ApiError> {
    let fields = Fields::root(body)?;
    let model = super::model(&fields)?;
    verbosity::check(&fields)?;
    super::metadata::metadata(&fields)?;
    let legacy = tools::is_legacy(&fields)?;
    let max_tokens = generation::most_tokens(&fields, "max_tokens")?;
    let newer = generation::most_tokens(&fields, "max_completion_tokens")?;
    let budget = newer.or(max_tokens).map_or(Budget::Rest, |count| generation::budget(count, limits));
    let mut conversation = conversation(&fields)?;
    generation::set_effort(&mut conversation, reasoning::effort(&fields)?);
    let structure = structured::structure(&fields)?;
    let names = if legacy { names::FUNCTIONS } else { names::CHAT };
    let names = FieldNames { format: structured::field_of(structure.as_ref(), names), ..names };
    let mut options = generation::options(&fields, limits, budget, structure)?;
    generation::check_tools(&fields, &conversation, &options)?;
    options.logprobs = logprobs(&fields)?;
    options.thinking_budget = generation::thinking_budget(&fields)?.or(reasoning::budget(&fields)?);
    options.template = template(&fields, limits)?;
    options.prediction = drafts::prediction(&fields)?;
    options.num_choices = generation::num_choices(&fields)?;
    options.best_of = options.num_choices;
    let stream = with_progress(&fields, generation::stream(&fields)?)?;
    options.prompt_logprobs = generation::prompt_logprobs(&fields, stream.is_some(), &options)?;
    let (keep, customs) = (asked(&fields)?, custom_tools::names(&fields)?);
    let (echo, token_names) = (echo(&fields, &conversation)?, generation::token_names(&fields)?);
    let lora = generation::lora(&fields)?;
    Ok(Chat { model, prompt: Prompt::Chat(conversation), options, lora, names, stream, legacy, customs, echo, token_names, keep })
}

/// Reads `return_progress`, llama.cpp's name of `stream_options.include_progress`. A whole answer has no progress to report.
fn with_progress(fields: &Fields, stream: Option<StreamOptions>) -> Result<Option<StreamOptions>, ApiError> {
    let asked = fields.bool("return_progress")?.unwrap_or(false);
    Ok(stream.map(|options| StreamOptions { include_progress: options.include_progress || asked, ..options }))
}

/// Reads `echo`: the text that begins the answer because the last message, which is the assistant's, has it.
fn echo(fields: &Fields, conversation: &Conversation) -> Result<String, ApiError> {
    let asked = fields.bool("echo")?.unwrap_or(false);
    let last = conversation.messages.last().filter(|last| asked && last.role == Role::Assistant && last.calls.is_empty());
    Ok(last.map_or(String::new(), Message::text))
}

/// Reads `store` and the parts of the request to store.
fn asked(fields: &Fields) -> Result<Option<StoredRequest>, ApiError> {
    if !fields.bool("store")?.unwrap_or(false) {
        return Ok(None);
    }
    let messages = fields.array("messages")?.unwrap_or_default().iter().map(Value::to_string).collect();
    Ok(Some(StoredRequest { messages, metadata: super::metadata::metadata(fields)? }))
}

/// Reads the template's input, except the level of reasoning.
pub fn conversation(fields: &Fields) -> Result<Conversation, ApiError> {
    let messages = messages(fields)?;
    let ending = ending(fields, &messages)?;
    let variables = template_variables(fields)?;
    let tools = if tools::is_legacy(fields)? { tools::functions(fields)? } else { tools::tools(fields, Shape::Nested)? };
    Ok(Conversation { messages, tools, ending, variables, ..Conversation::default() })
}

/// Reads `chat_template`.
pub fn template(fields: &Fields, limits: &Limits) -> Result<Option<Arc<str>>, ApiError> {
    match fields.string("chat_template")? {
        Some(_) if !limits.request_templates => {
            let message = "`chat_template` is refused: the server uses the model's own, unless it has limits.request_templates = true";
            Err(ApiError::unsupported("chat_template", message))
        }
        Some(source) if source.len() > MAX_TEMPLATE => {
            Err(fields.invalid("chat_template", format_args!("has {} bytes, and {MAX_TEMPLATE} are allowed", source.len())))
        }
        source => Ok(source.map(Arc::from)),
    }
}

/// Reads `logprobs` and `top_logprobs`.
fn logprobs(fields: &Fields) -> Result<Option<u8>, ApiError> {
    let wanted = fields.bool("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", 0..=MAX_LOGPROBS as i64)?;
    if top.is_some_and(|top| top > 0) && !wanted {
        return Err(fields.invalid("top_logprobs", "is only allowed with `logprobs`"));
    }
    Ok(wanted.then_some(top.unwrap_or(0) as u8))
}

/// Reads `add_generation_prompt`, `continue_final_message`, and `prefix` of the last message.
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

/// Reads `chat_template_kwargs`.
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
    let messages = list.iter().enumerate().map(|(i, value)| message(&Fields::at(value, &format!("messages[{i}]"))?));
    let mut messages: Vec<Message> = messages.collect::<Result<_, _>>()?;
    pair_functions(list, &mut messages);
    Ok(messages)
}

/// Gives ids to calls and results of the older form, which have none. Each result belongs to the call before it.
fn pair_functions(list: &[Value], messages: &mut [Message]) {
    let mut id = None;
    for (i, (raw, message)) in list.iter().zip(messages).enumerate() {
        if raw["function_call"].is_object() {
            id = Some(format!("call_{i}"));
            message.calls.iter_mut().for_each(|call| call.id = id.clone().unwrap_or_default());
        } else if raw["role"] == "function" {
            message.call_id = id.clone();
        }
    }
}

/// Reads a message's role, and its name if it is none of the usual ones. Whether the model's template shows such a role is found later.
fn role(fields: &Fields) -> Result<(Role, Option<String>), ApiError> {
    let name = fields.required("role", fields.string("role")?)?;
    let role = match name {
        // Templates do not know the role `developer`.
        "system" | "developer" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "tool" | "function" => Role::Tool,
        other => {
            let is_name = (1..=MAX_ROLE).contains(&other.len()) && !other.contains(char::is_control);
            return match nearest(ROLES.into_iter(), other) {
                Some(near) => Err(fields.invalid("role", format_args!("is `{}`: did you mean `{near}`?", quoted(other)))),
                None if is_name => Ok((Role::User, Some(other.to_owned()))),
                None => Err(fields.invalid("role", format_args!("must be {} or a name of 1 to {MAX_ROLE} bytes", ROLES.join(", ")))),
            };
        }
    };
    Ok((role, None))
}

fn message(fields: &Fields) -> Result<Message, ApiError> {
    let (role, custom_role) = role(fields)?;
    if fields.get("audio").is_some_and(|value| !value.as_array().is_some_and(Vec::is_empty)) {
        let path = fields.path("audio");
        return Err(ApiError::unsupported(&path, format!("`{path}` is not supported yet")));
    }
    if role != Role::Assistant && !fields.has("content") {
        return Err(fields.invalid("content", "is required"));
    }
    let text = |name: &str| Ok::<_, ApiError>(fields.string(name)?.map(str::to_owned));
    let mut parts = content(fields, role)?;
    if let Some(refusal) = fields.string("refusal")?.filter(|refusal| !refusal.is_empty()) {
        if role != Role::Assistant {
            return Err(fields.invalid("refusal", "is only allowed in a message of the assistant"));
        }
        parts.push(Part::Text(refusal.to_owned()));
    }
    let (name, call_id) = (text("name")?, text("tool_call_id")?);
    let reasoning = match (text("reasoning_content")?, text("reasoning")?) {
        (Some(one), Some(other)) if one != other => {
            return Err(fields.invalid("reasoning", "differs from `reasoning_content`, which it is another name of"));
        }
        (one, other) => one.or(other),
    };
    // The value counts only in the last message.
    fields.bool("prefix")?;
    let mut calls = tools::calls(fields)?;
    if let Some(call) = fields.get("function_call") {
        calls.push(tools::call("", &Fields::at(call, &fields.path("function_call"))?)?);
    }
    Ok(Message { role, custom_role, parts, name, call_id, reasoning, calls })
}

fn content(fields: &Fields, role: Role) -> Result<Vec<Part>, ApiError> {
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
            "refusal" if role == Role::Assistant => Ok(Part::Text(part.required("refusal", part.string("refusal")?)?.to_owned())),
            "image_url" | "input_image" if role == Role::User => pictures::of_url(&part, "image_url", PicturePlace::Message),
            "image_url" | "input_image" if role == Role::Tool => pictures::of_url(&part, "image_url", PicturePlace::Result),
            "image" if role == Role::Tool => Ok(pictures::of_nothing(&part.path("type"), NO_IMAGE, PicturePlace::Result)),
            other => match omitted_content::in_result(other).filter(|_| role == Role::Tool) {
                Some(text) => Ok(Part::Text(text.to_owned())),
                None => Err(part.invalid(
                    "type",
                    format_args!("is `{}`; the parts are `text`, and `image_url` in messages of the user", quoted(other)),
                )),
            },
        }
    };
    parts.iter().enumerate().map(one).collect()
}
