//! A conversation as a prompt: the only place that makes JSON for a chat template.

use std::borrow::Cow;
use std::collections::HashMap;

use serde_json::{Value, json};

use super::call_ids::short_ids;
use super::conversation::{Call, Conversation, Ending, Message, Role};
use super::dialect::{CallForm, Dialect, ResultForm, ToolPlacement};
use super::late_system::as_users;
use super::subject::Subject;
use super::tools::{Declaration, Tool};
use template::{ChatTemplate, RenderInput, TemplateError, json_text, parse_json};
use tokenizer::Tokenizer;

/// Marks the end of the text that the answer continues. If a client's text holds the same noncharacters, the last pair counts.
const HERE: &str = "\u{fdd3}\u{fdd4}";

#[derive(Debug, PartialEq, thiserror::Error)]
pub enum RenderError {
    #[error("{0}")]
    Template(String),
    #[error("the chat template does not show the last message, so that it cannot be continued")]
    LastMessageHidden,
    #[error("the model's chat template has no levels of reasoning")]
    NoEffort,
}

impl RenderError {
    pub fn subject(&self) -> Subject {
        match self {
            Self::Template(_) | Self::LastMessageHidden => Subject::Prompt,
            Self::NoEffort => Subject::Effort,
        }
    }
}

impl From<TemplateError> for RenderError {
    fn from(error: TemplateError) -> Self {
        Self::Template(error.to_string())
    }
}

/// The prompt as text, with the tokenizer's marks in it. Every text of the client is shielded, so that only the template itself can
/// write control tokens. Takes up to a second per megabyte: call it off the event loop.
pub fn render(
    template: &ChatTemplate,
    dialect: &Dialect,
    tokenizer: &Tokenizer,
    conversation: &Conversation,
) -> Result<String, RenderError> {
    let shield = |text: &str| tokenizer.shield(text);
    let input = input(dialect, &shield, conversation);
    let is_advice = conversation.or_efforts.is_some();
    let with = |effort: &String| {
        let mut input = input.clone();
        match effort_variable(template, effort, &input) {
            Some((name, mut value)) => {
                shield_value(&shield, &mut value);
                input.kwargs.insert(name.into(), value);
            }
            // Where nothing switches reasoning on, the model reasons by itself.
            None if effort == REASON || (!is_advice && is_usual(dialect, effort)) => {}
            None => return Err(RenderError::NoEffort),
        }
        Ok(template.render(&input)?)
    };
    let others = conversation.or_efforts.iter().flatten();
    let mut efforts = conversation.effort.iter().chain(others.filter(|_| conversation.effort.is_some())).map(with);
    let mut text = match (efforts.next(), is_advice) {
        (None, _) => template.render(&input)?,
        (Some(Err(_)), true) => match efforts.find_map(Result::ok) {
            Some(text) => text,
            None => template.render(&input)?,
        },
        (Some(first), _) => first?,
    };
    if conversation.ending == Ending::Continue {
        let end = text.rfind(HERE).ok_or(RenderError::LastMessageHidden)?;
        text.truncate(end);
    }
    Ok(text)
}

/// The effort with which a model reasons at the level that its template chooses.
pub const REASON: &str = "on";
/// Whether a level asks for nothing: the one that clients send by default, or no reasoning of a model that does none.
fn is_usual(dialect: &Dialect, effort: &str) -> bool {
    effort == "medium" || (effort == "none" && dialect.thinking.is_none())
}

/// Levels of reasoning by their strength.
const STRENGTHS: [&str; 6] = ["minimal", "low", "medium", "high", "xhigh", "max"];

/// The levels next to one, the nearest first, and the stronger one of two that are as near. Empty if the level is not known.
pub fn nearest_efforts(effort: &str) -> Vec<String> {
    let Some(at) = STRENGTHS.iter().position(|level| *level == effort) else { return Vec::new() };
    let mut others: Vec<usize> = (0..STRENGTHS.len()).rev().filter(|other| *other != at).collect();
    others.sort_by_key(|other| other.abs_diff(at));
    others.into_iter().map(|other| STRENGTHS[other].to_owned()).collect()
}

/// The variables by which templates know levels of reasoning.
const LEVELS: [&str; 3] = ["reasoning_effort", "thinking_effort", "reasoning_strength"];

/// Templates know levels of reasoning by name, or can only switch it off. Which switch they have shows in the prompt.
fn effort_variable(template: &ChatTemplate, effort: &str, input: &RenderInput) -> Option<(&'static str, Value)> {
    if let Some(name) = LEVELS.into_iter().find(|name| template.source().contains(name)) {
        return Some((name, effort.into())).filter(|_| effort != REASON);
    }
    let switches = [
        ("enable_thinking", [json!(false), json!(true)]),
        ("thinking", [json!(false), json!(true)]),
        ("thinking_mode", [json!("disabled"), json!("enabled")]),
    ];
    let shown = |name: &str, value: &Value| {
        let mut input = input.clone();
        input.kwargs.insert(name.to_owned(), value.clone());
        template.render(&input).ok()
    };
    let is_switch = |(name, [off, on]): &(&str, [Value; 2])| {
        template.source().contains(name) && shown(name, off).is_some_and(|text| shown(name, on).is_some_and(|other| other != text))
    };
    let is_on = effort == REASON;
    let switch = switches.into_iter().filter(|_| is_on || effort == "none").find(is_switch);
    switch.map(|(name, [off, on])| (name, if is_on { on } else { off }))
}

/// What the template sees of a conversation. `shield` is applied to every text of the client.
pub(super) fn input(dialect: &Dialect, shield: &dyn Fn(&str) -> String, conversation: &Conversation) -> RenderInput {
    let ids = if dialect.short_ids { short_ids(&conversation.messages) } else { HashMap::new() };
    let writer = Writer { dialect, shield, ids };
    let mut messages = writer.messages(conversation);
    let (mut tools, mut kwargs) = (None, conversation.variables.clone());
    kwargs.values_mut().for_each(|value| shield_value(shield, value));
    if let Some(declared) = &conversation.tools {
        let declarations = declared.tools.iter().map(|tool| writer.declaration(tool)).collect();
        match dialect.placement {
            ToolPlacement::Variable => tools = Some(Value::Array(declarations)),
            ToolPlacement::Named(name) => drop(kwargs.insert(name.into(), Value::Array(declarations))),
            ToolPlacement::SystemKey => system_message(&mut messages)["tools"] = Value::Array(declarations).to_string().into(),
            ToolPlacement::Words => describe_tools(dialect, &declarations, &mut messages),
        }
    }
    let add_generation_prompt = conversation.ending == Ending::OpenTurn;
    RenderInput { messages: Value::Array(messages), tools, add_generation_prompt, kwargs }
}

/// Shields every string, the names of members included: templates print whole values as JSON.
fn shield_value(shield: &dyn Fn(&str) -> String, value: &mut Value) {
    match value {
        Value::String(text) => *text = shield(text),
        Value::Array(items) => items.iter_mut().for_each(|item| shield_value(shield, item)),
        Value::Object(map) => {
            map.values_mut().for_each(|item| shield_value(shield, item));
            if map.keys().any(|key| shield(key) != *key) {
                *map = std::mem::take(map).into_iter().map(|(key, item)| (shield(&key), item)).collect();
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

struct Writer<'a> {
    dialect: &'a Dialect,
    shield: &'a dyn Fn(&str) -> String,
    /// What the template sees in place of an id of a call.
    ids: HashMap<&'a str, String>,
}

impl Writer<'_> {
    fn id(&self, id: &str) -> String {
        self.ids.get(id).cloned().unwrap_or_else(|| self.shield(id))
    }

    fn shield(&self, text: &str) -> String {
        (self.shield)(text)
    }

    fn messages(&self, conversation: &Conversation) -> Vec<Value> {
        let messages = match self.dialect.takes_late_system {
            true => Cow::Borrowed(conversation.messages.as_slice()),
            false => as_users(&conversation.messages),
        };
        let continued = messages.len().checked_sub(1).filter(|_| conversation.ending == Ending::Continue);
        let names: HashMap<&str, &str> =
            messages.iter().flat_map(|message| &message.calls).map(|call| (call.id.as_str(), call.name.as_str())).collect();
        let mut out: Vec<Value> = Vec::with_capacity(messages.len() + 1);
        let mut after_result = false;
        for (i, message) in messages.iter().enumerate() {
            let mut content = self.shield(&message.text());
            if continued == Some(i) {
                content.push_str(HERE);
            }
            let called = message.call_id.as_deref().and_then(|id| names.get(id).copied());
            let name = message.name.as_deref().or(called);
            let is_result = message.role == Role::Tool;
            let form = if is_result { self.dialect.results } else { ResultForm::Messages };
            let caller = out.last_mut().filter(|last| form == ResultForm::OfCalls && !last["tool_calls"].is_null());
            if form == ResultForm::Text {
                let result = format!("<tool_response>\n{content}\n</tool_response>");
                match out.last_mut().filter(|_| after_result).map(|last| &mut last["content"]) {
                    // Appended in place, because there may be thousands of results.
                    Some(Value::String(results)) => results.extend(["\n", &result]),
                    _ => out.push(json!({"role": Role::User.name(), "content": result})),
                }
            } else if let Some(caller) = caller {
                let result = json!({"name": self.shield(name.unwrap_or_default()), "response": content});
                match &mut caller["tool_responses"] {
                    Value::Array(results) => results.push(result),
                    absent => *absent = json!([result]),
                }
            } else {
                out.push(self.message(message, name, content));
            }
            after_result = is_result;
        }
        out
    }

    /// Templates may print a message as JSON, so the order of its keys is part of the prompt.
    fn message(&self, message: &Message, name: Option<&str>, mut content: String) -> Value {
        let in_text = self.dialect.calls == CallForm::Text && !message.calls.is_empty();
        if in_text {
            let space = if content.is_empty() { "" } else { "\n" };
            content = [&content, space, &self.calls_as_text(&message.calls)].concat();
        }
        let mut json = json!({"role": message.role.name(), "content": content});
        if self.dialect.null_content && !message.calls.is_empty() && content.is_empty() {
            json["content"] = Value::Null;
        }
        let shielded = |text: Option<&str>| text.map(|text| self.shield(text));
        let id = message.call_id.as_deref().map(|id| self.id(id));
        let reasoning = shielded(message.reasoning.as_deref());
        for (key, text) in [("name", shielded(name)), ("tool_call_id", id), (self.dialect.reasoning_key, reasoning)] {
            if let Some(text) = text {
                json[key] = text.into();
            }
        }
        if !in_text && !message.calls.is_empty() {
            json["tool_calls"] = message.calls.iter().map(|call| self.call(call)).collect();
        }
        json
    }

    fn call(&self, call: &Call) -> Value {
        let arguments = match self.dialect.calls {
            CallForm::Objects => self.object(call).map(|(_, shielded)| shielded),
            CallForm::Strings | CallForm::Text => None,
        };
        let arguments = arguments.unwrap_or_else(|| self.arguments(call).into());
        let function = json!({"name": self.shield(&call.name), "arguments": arguments});
        json!({"id": self.id(&call.id), "type": "function", "function": function})
    }

    /// The arguments of a call as text. A template may parse them, so an escape in them (`\u003c`) must not hide a control token either.
    fn arguments(&self, call: &Call) -> String {
        match self.object(call).filter(|_| call.arguments.contains('\\')) {
            Some((object, shielded)) if object != shielded => json_text(&shielded),
            _ => self.shield(&call.arguments),
        }
    }

    /// The arguments of a call as an object, without and with the shield. None if they are none.
    fn object(&self, call: &Call) -> Option<(Value, Value)> {
        let object = parse_json(&call.arguments).ok().filter(Value::is_object)?;
        let mut shielded = object.clone();
        shield_value(self.shield, &mut shielded);
        Some((object, shielded))
    }

    fn calls_as_text(&self, calls: &[Call]) -> String {
        let calls: Vec<(String, String)> = calls.iter().map(|call| (self.shield(&call.name), self.arguments(call))).collect();
        self.dialect.syntax.calls(calls.iter().map(|(name, arguments)| (name.as_str(), arguments.as_str())))
    }

    /// A tool as templates expect it: with all keys that they read.
    fn declaration(&self, tool: &Tool) -> Value {
        let mut declaration = match &tool.declaration {
            Declaration::Whole(fields) => Value::Object(fields.clone()),
            Declaration::Function(fields) => json!({"function": fields}),
        };
        declaration["type"] = "function".into();
        let function = &mut declaration["function"];
        for (key, default) in [("description", json!("")), ("parameters", json!({"type": "object", "properties": {}}))] {
            if function[key].is_null() {
                function[key] = default;
            }
        }
        shield_value(self.shield, &mut declaration);
        declaration
    }
}

fn system_message(messages: &mut Vec<Value>) -> &mut Value {
    if messages.first().is_none_or(|message| message["role"] != "system") {
        messages.insert(0, json!({"role": "system", "content": ""}));
    }
    &mut messages[0]
}

/// Describes the tools in words, in the system message or, if the template shows none, in the first message of the user.
fn describe_tools(dialect: &Dialect, declarations: &[Value], messages: &mut Vec<Value>) {
    let functions: Vec<String> = declarations.iter().map(|tool| tool["function"].to_string()).collect();
    let words = format!(
        "You can call these functions:\n{}\n\nTo call one, write its name and its arguments like this, and nothing after it:\n{}\n\
         What it returns comes in the next message, between <tool_response> and </tool_response>. Then answer with that.",
        functions.join("\n"),
        dialect.syntax.calls(std::iter::once(("NAME", r#"{"ARGUMENT": "VALUE"}"#))).replace("\"VALUE\"", "VALUE")
    );
    let message = if dialect.takes_system {
        system_message(messages)
    } else {
        let first = messages.iter().position(|message| message["role"] == "user").unwrap_or(0);
        let Some(message) = messages.get_mut(first) else { return };
        message
    };
    let content = message["content"].as_str().unwrap_or_default();
    message["content"] = match (content.is_empty(), dialect.takes_system) {
        (true, _) => words,
        (false, true) => format!("{content}\n\n{words}"),
        (false, false) => format!("{words}\n\n{content}"),
    }
    .into();
}

#[cfg(test)]
#[path = "render_tests.rs"]
mod tests;
