//! [`Turn`]: a message as a chat template sees it.

use serde_json::{Value, json};

use super::conversation::Role;

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

    /// The message as JSON. Templates may print a message, so the order of its keys is part of the prompt. `null_content`: if the message
    /// makes calls, empty content becomes null.
    pub fn json(self, reasoning_key: &str, null_content: bool) -> Value {
        let mut json = json!({"role": self.custom_role.as_deref().unwrap_or(self.role.name()), "content": self.content});
        if null_content && !self.calls.is_empty() && json["content"] == "" {
            json["content"] = Value::Null;
        }
        let texts = [("name", self.name), ("tool_call_id", self.call_id), (reasoning_key, self.reasoning), ("tools", self.tools)];
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
