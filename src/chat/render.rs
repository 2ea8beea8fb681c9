//! Renders a conversation as a prompt. This is the only place that makes JSON for a chat template.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::arrange::{arranged, join_heads};
use super::call_ids::short_ids;
use super::conversation::{Call, Conversation, Ending, Message, Part, Picture, Role};
use super::dialect::{CallForm, CallText, Dialect, ResultForm, ToolPlacement};
use super::inserted::{put_back, taken_out};
use super::order::ordered;
use super::picture_marks::PictureMarks;
use super::subject::Subject;
use super::tools::{Declaration, Tool};
use super::turn::Turn;
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
    #[error("the chat template does not show `{0}` in its place: send the picture in a message of the user")]
    PictureHidden(Arc<str>),
    #[error("the model's chat template has no levels of reasoning")]
    NoEffort,
    #[error("the model's chat template does not show a message's role `{0}`: expected system, developer, user, assistant or tool")]
    UnknownRole(String),
}

impl RenderError {
    pub fn subject(&self) -> Subject {
        match self {
            Self::Template(_) | Self::LastMessageHidden | Self::UnknownRole(_) | Self::PictureHidden(_) => Subject::Prompt,
            Self::NoEffort => Subject::Effort,
        }
    }
}

impl From<TemplateError> for RenderError {
    fn from(error: TemplateError) -> Self {
        Self::Template(error.to_string())
    }
}

/// A prompt as text, with the tokenizer's marks in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Rendered {
    /// The texts before, between and after the pictures: one more than there are pictures.
    pub texts: Vec<String>,
    /// In the order in which the prompt shows them.
    pub pictures: Vec<Picture>,
}

impl Rendered {
    /// The prompt with a text in place of each picture.
    pub fn with_markers(&self, marker: &str) -> String {
        self.texts.join(marker)
    }

    /// The end of the prompt after the last picture.
    pub fn end(&self) -> &str {
        self.texts.last().map_or("", String::as_str)
    }
}

/// Renders the prompt as text with the tokenizer's marks. Every text of the client is shielded, so only the template itself can write
/// control tokens. Takes up to a second per megabyte: call it off the event loop.
pub fn render(
    template: &ChatTemplate,
    dialect: &Dialect,
    tokenizer: &Tokenizer,
    conversation: &Conversation,
) -> Result<Rendered, RenderError> {
    let role = conversation.messages.iter().find_map(|message| message.custom_role.as_ref());
    if let Some(role) = role.filter(|_| !dialect.turns.custom_roles) {
        return Err(RenderError::UnknownRole(role.clone()));
    }
    let shield = |text: &str| tokenizer.shield(text);
    let mut layout = Layout::new(dialect, &shield, conversation);
    let variable = dialect.levels.variable_of(conversation, dialect.thinking.is_some()).ok_or(RenderError::NoEffort)?;
    let mut text = match variable {
        None => layout.render(template)?,
        Some((name, mut value)) => {
            shield_value(&shield, &mut value);
            let own = layout.input.kwargs.insert(name.into(), value);
            match layout.render(template) {
                // The level is advice, and no trial has tested it.
                Err(_) if conversation.or_efforts.is_some() => {
                    match own {
                        Some(own) => drop(layout.input.kwargs.insert(name.into(), own)),
                        None => drop(layout.input.kwargs.remove(name)),
                    }
                    layout.render(template)?
                }
                rendered => rendered?,
            }
        }
    };
    if conversation.ending == Ending::Continue {
        let end = text.rfind(HERE).ok_or(RenderError::LastMessageHidden)?;
        text.truncate(end);
    }
    match layout.split(text) {
        Ok(prompt) => Ok(prompt),
        // A picture in the result of a tool may be left out.
        Err(hidden) => render(template, dialect, tokenizer, &without(conversation, &hidden)?),
    }
}

/// The conversation with texts in the place of some pictures.
///
/// # Errors
/// Names the first picture that may not be left out.
fn without(conversation: &Conversation, hidden: &[Picture]) -> Result<Conversation, RenderError> {
    let (mut shorter, mut is_shorter) = (conversation.clone(), false);
    for part in shorter.messages.iter_mut().flat_map(|message| &mut message.parts) {
        let Part::Picture(picture) = part else { continue };
        if hidden.iter().any(|hidden| Arc::ptr_eq(&hidden.field, &picture.field)) {
            let substitute = picture.substitute.ok_or_else(|| RenderError::PictureHidden(picture.field.clone()))?;
            *part = Part::Text(substitute.to_owned());
            is_shorter = true;
        }
    }
    match hidden.first().filter(|_| !is_shorter) {
        Some(first) => Err(RenderError::PictureHidden(first.field.clone())),
        None => Ok(shorter),
    }
}

/// A conversation in the form that its template takes.
pub(super) struct Layout {
    pub input: RenderInput,
    /// Texts that the template does not show, to be inserted into the prompt.
    inserted: Vec<String>,
    /// The pictures, in the order of the turns.
    pub pictures: Vec<Picture>,
    marks: PictureMarks,
    /// The text with which calls begin, and the separator between an inserted text and the calls.
    around: [&'static str; 2],
}

impl Layout {
    /// Lays out a conversation. `shield` is applied to every text of the client.
    pub fn new(dialect: &Dialect, shield: &dyn Fn(&str) -> String, conversation: &Conversation) -> Self {
        let messages = ordered(&conversation.messages, &dialect.turns);
        let ids = if dialect.short_ids { short_ids(&messages) } else { HashMap::new() };
        let marks = PictureMarks::new(&dialect.pictures);
        let pictures = messages.iter().flat_map(|message| &message.parts).filter_map(Part::as_picture).cloned().collect();
        let writer = Writer { dialect, shield, ids, marks: &marks };
        let mut turns = writer.turns(&messages, conversation.ending == Ending::Continue);
        join_heads(&mut turns, dialect.turns.system);
        let (mut tools, mut kwargs) = (None, conversation.variables.clone());
        kwargs.values_mut().for_each(|value| shield_value(shield, value));
        if let Some(declared) = &conversation.tools {
            let declarations = declared.tools.iter().map(|tool| writer.declaration(tool)).collect();
            match dialect.placement {
                ToolPlacement::Variable => tools = Some(Value::Array(declarations)),
                ToolPlacement::Named(name) => drop(kwargs.insert(name.into(), Value::Array(declarations))),
                ToolPlacement::SystemKey => system_turn(&mut turns).tools = Some(Value::Array(declarations).to_string()),
                ToolPlacement::Words => describe_tools(dialect, &declarations, system_turn(&mut turns)),
            }
        }
        if dialect.turns.needs_tools && tools.is_none() {
            tools = Some(Value::Array(Vec::new()));
        }
        let mut turns = arranged(turns, &dialect.turns);
        let inserted = if dialect.turns.call_text == CallText::Inserted { taken_out(&mut turns) } else { Vec::new() };
        let messages = turns.into_iter().map(|turn| turn.json(dialect, &marks)).collect();
        let add_generation_prompt = conversation.ending == Ending::OpenTurn;
        let input = RenderInput { messages: Value::Array(messages), tools, add_generation_prompt, kwargs };
        Self { input, inserted, pictures, marks, around: [dialect.syntax.trigger, dialect.syntax.space()] }
    }

    pub fn render(&self, template: &ChatTemplate) -> Result<String, TemplateError> {
        let [trigger, space] = self.around;
        let text = template.render(&self.input).map_err(|error| self.hidden(error))?;
        let text = put_back(text, &self.inserted, trigger, space);
        Ok(if self.pictures.is_empty() { text } else { self.marks.restored(text) })
    }

    /// An error for clients, which may not learn a mark.
    fn hidden(&self, error: TemplateError) -> TemplateError {
        match error {
            TemplateError::Raised(text) => TemplateError::Raised(self.marks.hidden(&text)),
            TemplateError::Invalid(text) => TemplateError::Invalid(self.marks.hidden(&text)),
        }
    }

    /// Splits a prompt at its pictures.
    ///
    /// # Errors
    /// The pictures that the prompt does not show exactly once.
    pub fn split(&self, text: String) -> Result<Rendered, Vec<Picture>> {
        if self.pictures.is_empty() {
            return Ok(Rendered { texts: vec![text], pictures: Vec::new() });
        }
        let hidden = |numbers: Vec<usize>| numbers.into_iter().map(|number| self.pictures[number].clone()).collect::<Vec<_>>();
        let (texts, pictures) = self.marks.split(&text, &self.pictures).map_err(hidden)?;
        Ok(Rendered { texts, pictures })
    }
}

/// Shields every string, including the names of members, because templates print whole values as JSON.
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
    /// The ids that the template sees in place of the calls' ids.
    ids: HashMap<&'a str, String>,
    marks: &'a PictureMarks,
}

impl Writer<'_> {
    fn id(&self, id: &str) -> String {
        self.ids.get(id).cloned().unwrap_or_else(|| self.shield(id))
    }

    fn shield(&self, text: &str) -> String {
        (self.shield)(text)
    }

    /// The messages as turns. `continues`: the answer continues the last message.
    fn turns(&self, messages: &[Message], continues: bool) -> Vec<Turn> {
        let last = messages.len().checked_sub(1).filter(|_| continues);
        let names: HashMap<&str, &str> =
            messages.iter().flat_map(|message| &message.calls).map(|call| (call.id.as_str(), call.name.as_str())).collect();
        let mut out: Vec<Turn> = Vec::with_capacity(messages.len() + 1);
        let (mut after_text, mut num_pictures) = (false, 0);
        for (i, message) in messages.iter().enumerate() {
            let mut content = self.marks.content(message, self.shield, &mut num_pictures);
            if last == Some(i) {
                content.push_str(HERE);
            }
            let called = message.call_id.as_deref().and_then(|id| names.get(id).copied());
            let name = message.name.as_deref().or(called);
            let form = self.form(message, called.is_some());
            let caller = out.last_mut().filter(|last| form == ResultForm::OfCalls && !last.calls.is_empty());
            if form == ResultForm::Text {
                let result = format!("<tool_response>\n{content}\n</tool_response>");
                match out.last_mut().filter(|_| after_text) {
                    // Appended in place, because there may be thousands of results.
                    Some(last) => last.content.extend(["\n", &result]),
                    None => out.push(Turn::new(Role::User, result)),
                }
            } else if let Some(caller) = caller {
                caller.results.push(json!({"name": self.shield(name.unwrap_or_default()), "response": content}));
            } else {
                out.push(self.turn(message, name, content));
            }
            after_text = form == ResultForm::Text;
        }
        out
    }

    /// The form in which the template gets a message. `has_call`: the message is a result whose call is in the conversation.
    fn form(&self, message: &Message, has_call: bool) -> ResultForm {
        match message.role {
            Role::Tool if has_call => self.dialect.results,
            // A template that needs short ids needs an id.
            Role::Tool if self.dialect.turns.lone_results && (message.call_id.is_some() || !self.dialect.short_ids) => self.dialect.results,
            Role::Tool => ResultForm::Text,
            _ => ResultForm::Messages,
        }
    }

    fn turn(&self, message: &Message, name: Option<&str>, mut content: String) -> Turn {
        let in_text = self.dialect.calls == CallForm::Text && !message.calls.is_empty();
        if in_text {
            let space = if content.is_empty() { "" } else { "\n" };
            content = [&content, space, &self.calls_as_text(&message.calls)].concat();
        }
        let shielded = |text: Option<&str>| text.map(|text| self.shield(text));
        let calls = if in_text { Vec::new() } else { message.calls.iter().map(|call| self.call(call)).collect() };
        Turn {
            custom_role: shielded(message.custom_role.as_deref()),
            name: shielded(name),
            call_id: message.call_id.as_deref().map(|id| self.id(id)),
            reasoning: shielded(message.reasoning.as_deref()),
            calls,
            ..Turn::new(message.role, content)
        }
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

    /// The arguments of a call as an object, without and with the shield. `None` if they are no object.
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

    /// A tool with all keys that templates read.
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

/// The system message that begins the conversation, which is created if missing.
fn system_turn(turns: &mut Vec<Turn>) -> &mut Turn {
    if turns.first().is_none_or(|first| first.role != Role::System) {
        turns.insert(0, Turn::new(Role::System, String::new()));
    }
    &mut turns[0]
}

/// Describes the tools in words, after the system message's text.
fn describe_tools(dialect: &Dialect, declarations: &[Value], system: &mut Turn) {
    let functions: Vec<String> = declarations.iter().map(|tool| tool["function"].to_string()).collect();
    let words = format!(
        "You can call these functions:\n{}\n\nTo call one, write its name and its arguments like this, and nothing after it:\n{}\n\
         What it returns comes in the next message, between <tool_response> and </tool_response>. Then answer with that.",
        functions.join("\n"),
        dialect.syntax.calls(std::iter::once(("NAME", r#"{"ARGUMENT": "VALUE"}"#))).replace("\"VALUE\"", "VALUE")
    );
    let space = if system.content.is_empty() { "" } else { "\n\n" };
    system.content.extend([space, &words]);
}

#[cfg(test)]
#[path = "render_tests.rs"]
mod tests;
