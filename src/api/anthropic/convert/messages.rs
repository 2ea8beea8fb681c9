//! Conversion of `system` and `messages` to a conversation.

use std::collections::HashSet;

use serde_json::Value;

use super::blocks::{self, BlockPlace};
use chat::{Call, Ending, Message, Part, Role};
use http::error::{ApiError, quoted};
use http::fields::{Fields, wrong_type};
use http::tool_list::tool_name;

const MAX_MESSAGES: usize = 100_000;

/// Reads the messages, with the system prompt first, and decides how the prompt ends. `tools` are the names of the request's tools.
pub fn messages(fields: &Fields, tools: &HashSet<&str>) -> Result<(Vec<Message>, Ending), ApiError> {
    let list = fields.required("messages", fields.array("messages")?)?;
    if list.is_empty() {
        return Err(fields.invalid("messages", "must not be empty"));
    }
    if list.len() > MAX_MESSAGES {
        return Err(fields.invalid("messages", format_args!("holds more than {MAX_MESSAGES} messages")));
    }
    let mut writer = Writer::new(tools);
    if fields.get("system").is_some() {
        let parts = blocks::parts(fields, "system", BlockPlace::System, &mut |block, kind| Err(blocks::refused(block, kind)))?;
        writer.push(Message { parts, ..Message::new(Role::System) });
    }
    for (i, value) in list.iter().enumerate() {
        writer.read(fields, value, &format!("messages[{i}]"))?;
    }
    writer.release();
    let ending = writer.ending(list.len() - 1)?;
    Ok((writer.messages, ending))
}

/// Writes messages in the form that templates take: each tool result is a message of its own, and adjacent messages of one role are merged.
struct Writer<'a> {
    /// The names of the request's tools.
    tools: &'a HashSet<&'a str>,
    messages: Vec<Message>,
    /// The ids of all calls so far.
    called: HashSet<String>,
    /// The ids of the last calls, whose results are missing.
    open: HashSet<String>,
    /// System messages between calls and their results. They are held back because no template can show them there.
    held: Vec<Message>,
}

impl<'a> Writer<'a> {
    fn new(tools: &'a HashSet<&'a str>) -> Self {
        Self { tools, messages: Vec::new(), called: HashSet::new(), open: HashSet::new(), held: Vec::new() }
    }

    /// Adds a message, merged with the last one if both belong to one turn.
    fn push(&mut self, message: Message) {
        let joins = |last: &&mut Message| last.role == message.role && last.role != Role::Tool && last.calls.is_empty();
        match self.messages.last_mut().filter(joins) {
            Some(last) => {
                last.parts.extend(message.parts);
                last.calls.extend(message.calls);
                if let Some(more) = message.reasoning {
                    last.reasoning = Some(last.reasoning.take().unwrap_or_default() + &more);
                }
            }
            None => self.messages.push(message),
        }
    }

    /// Adds the system messages that were held back until the results.
    fn release(&mut self) {
        self.open.clear();
        for message in std::mem::take(&mut self.held) {
            self.push(message);
        }
    }

    fn read(&mut self, whole: &Fields, value: &Value, path: &str) -> Result<(), ApiError> {
        let fields = whole.within(value, path)?;
        match fields.required("role", fields.string("role")?)? {
            "user" | "ctx" | "msg" => self.user(&fields),
            "assistant" => self.assistant(&fields),
            "system" => self.system(&fields),
            other => Err(fields.invalid("role", format_args!("must be user, assistant or system, not `{}`", quoted(other)))),
        }
    }

    fn system(&mut self, fields: &Fields) -> Result<(), ApiError> {
        let parts = blocks::parts(fields, "content", BlockPlace::System, &mut |block, kind| Err(blocks::refused(block, kind)))?;
        let message = Message { parts, ..Message::new(Role::System) };
        match self.open.is_empty() {
            true => self.push(message),
            false => self.held.push(message),
        }
        Ok(())
    }

    /// Reads a user's message. Tool results are put first, because templates expect them directly after their calls.
    fn user(&mut self, fields: &Fields) -> Result<(), ApiError> {
        check_not_empty(fields)?;
        let (mut results, tools, called) = (Vec::new(), self.tools, &self.called);
        let parts = blocks::parts(fields, "content", BlockPlace::User, &mut |block, kind| {
            if kind != "tool_result" {
                return Err(blocks::refused(block, kind));
            }
            results.push(result(block, tools, called)?);
            Ok(None)
        })?;
        for result in results {
            self.open.remove(result.call_id.as_deref().unwrap_or_default());
            self.push(result);
        }
        if self.open.is_empty() || !parts.is_empty() {
            self.release();
        }
        if !parts.is_empty() {
            self.push(Message { parts, ..Message::new(Role::User) });
        }
        Ok(())
    }

    fn assistant(&mut self, fields: &Fields) -> Result<(), ApiError> {
        let (mut calls, mut reasoning) = (Vec::new(), None::<String>);
        let parts = blocks::parts(fields, "content", BlockPlace::Assistant, &mut |block, kind| {
            match kind {
                "tool_use" => calls.push(call(block)?),
                "thinking" => {
                    reasoning.get_or_insert_default().push_str(&blocks::thinking(block)?);
                }
                "redacted_thinking" => {
                    block.required("data", block.string("data")?)?;
                }
                _ => return Err(blocks::refused(block, kind)),
            }
            Ok(None)
        })?;
        self.release();
        for call in &calls {
            if !self.called.insert(call.id.clone()) {
                return Err(fields.invalid("content", format_args!("holds a second `tool_use` with the id `{}`", quoted(&call.id))));
            }
            self.open.insert(call.id.clone());
        }
        self.push(Message { parts, reasoning, calls, ..Message::new(Role::Assistant) });
        Ok(())
    }

    /// Decides how the prompt ends. A last message of the assistant is continued. If it has no text it is dropped, since agents send such a
    /// message after an interrupted answer.
    fn ending(&mut self, last: usize) -> Result<Ending, ApiError> {
        let Some(message) = self.messages.last().filter(|message| message.role == Role::Assistant) else { return Ok(Ending::OpenTurn) };
        if message.calls.is_empty() && !message.text().is_empty() {
            return Ok(Ending::Continue);
        }
        let path = format!("messages[{last}].content");
        let problem = match message.calls.is_empty() {
            false => "makes calls, whose results must follow: send them as `tool_result` in a message of the user",
            true if self.messages.len() == 1 => "belongs to the only message, which has no text that the answer could continue",
            true => {
                self.messages.pop();
                return Ok(Ending::OpenTurn);
            }
        };
        Err(ApiError::field(&path, format!("`{path}` {problem}")))
    }
}

fn check_not_empty(fields: &Fields) -> Result<(), ApiError> {
    let is_empty = match fields.get("content") {
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Array(blocks)) => blocks.is_empty(),
        _ => false,
    };
    if is_empty { Err(fields.invalid("content", "must not be empty")) } else { Ok(()) }
}

/// Reads a call of an earlier answer.
fn call(block: &Fields) -> Result<Call, ApiError> {
    let id = block.required("id", block.string("id")?)?.to_owned();
    let name = tool_name(block)?.to_owned();
    let arguments = match block.required("input", block.get("input"))? {
        object @ Value::Object(_) => object.to_string(),
        other => return Err(wrong_type(&block.path("input"), "an object", other)),
    };
    Ok(Call { id, name, arguments })
}

fn result(block: &Fields, tools: &HashSet<&str>, called: &HashSet<String>) -> Result<Message, ApiError> {
    let id = block.required("tool_use_id", block.string("tool_use_id")?)?;
    if !called.contains(id) {
        return Err(block.invalid("tool_use_id", format_args!("is `{}`, which is not the id of an earlier `tool_use`", quoted(id))));
    }
    let parts: Vec<Part> = blocks::result(block, tools)?;
    Ok(Message { parts, call_id: Some(id.to_owned()), ..Message::new(Role::Tool) })
}
