//! [`Turn`]: a message as a chat template sees it.

use serde_json::{Value, json};

use super::conversation::Role;
use super::dialect::Dialect;
use super::picture_marks::PictureMarks;

/// A message whose texts are shielded. Calls and results that the template takes as text are part of `content`.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    pub role: Role,
    /// The name of a role of the client's own, which the template gets in place of the user's.
    pub custom_role: Option<String>,
    pub content: String,
    pub name: Option<String>,
    pub call_id: Option<String>,
    pub reasoning: Option<String>,
    /// The calls, as JSON.
    pub calls: Vec<Value>,
    /// The results of the calls, for templates that take them inside the message with the calls.
    pub results: Vec<Value>,
    /// The declarations of the tools as JSON, for templates that take them in the system message.
    pub tools: Option<String>,
}

impl Turn {
    pub fn new(role: Role, content: String) -> Self {
        let (calls, results) = (Vec::new(), Vec::new());
        Self { role, custom_role: None, content, name: None, call_id: None, reasoning: None, calls, results, tools: None }
    }

    /// Whether the turn is a message of the user or the assistant without calls. Strict templates count only those.
    pub fn is_said(&self) -> bool {
        matches!(self.role, Role::User | Role::Assistant) && self.calls.is_empty()
    }

    /// Appends the next message of the same role.
    pub fn join(&mut self, next: Self) {
        append(&mut self.content, &next.content, "\n");
        if let Some(more) = next.reasoning {
            append(self.reasoning.get_or_insert_default(), &more, "\n");
        }
        self.name = self.name.take().filter(|name| next.name.as_ref() == Some(name));
        self.calls.extend(next.calls);
        self.results.extend(next.results);
        self.tools = self.tools.take().or(next.tools);
    }

    /// The message as JSON. Templates may print a message, so the order of its keys is part of the prompt.
    pub fn json(self, dialect: &Dialect, marks: &PictureMarks) -> Value {
        let is_null = dialect.null_content && !self.calls.is_empty() && self.content.is_empty();
        let content = match marks.parts(&self.content, dialect.needs_lists) {
            _ if is_null => Value::Null,
            Some(parts) => parts,
            None => self.content.into(),
        };
        let mut json = json!({"role": self.custom_role.as_deref().unwrap_or(self.role.name()), "content": content});
        let reasoning = (dialect.reasoning_key, self.reasoning);
        let texts = [("name", self.name), ("tool_call_id", self.call_id), reasoning, ("tools", self.tools)];
        for (key, text) in texts {
            if let Some(text) = text {
                json[key] = text.into();
            }
        }
        for (key, list) in [("tool_calls", self.calls), ("tool_responses", self.results)] {
            if !list.is_empty() {
                json[key] = list.into();
            }
        }
        json
    }
}

/// Appends a text. The separator is added only between two texts that are not empty.
fn append(text: &mut String, more: &str, separator: &str) {
    let separator = if text.is_empty() || more.is_empty() { "" } else { separator };
    text.extend([separator, more]);
}
