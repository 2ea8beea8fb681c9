//! A conversation as types. [`render`](super::render) turns it into JSON for a chat template.

use serde_json::{Map, Value};

use super::tools::Tools;

/// The messages that a model answers, and the settings that its chat template receives.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    pub messages: Vec<Message>,
    /// `None`: the request has no tools, or none of them may be called.
    pub tools: Option<Tools>,
    pub ending: Ending,
    /// The level of reasoning before the answer, for templates with levels of reasoning.
    pub effort: Option<String>,
    /// Efforts to try in turn if the template does not know `effort`. If it knows none of them, no effort is set.
    /// `None`: an effort that the template does not know is an error.
    pub or_efforts: Option<Vec<String>>,
    /// Further variables of the template. Their names must not be reserved ([`is_reserved`](super::is_reserved)).
    pub variables: Map<String, Value>,
}

/// The end of the prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    /// After the opening of the assistant's turn.
    #[default]
    OpenTurn,
    /// After the last message.
    ClosedTurn,
    /// Inside the last message, which is the assistant's: the answer continues it.
    Continue,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    System,
    User,
    Assistant,
    /// The result of a call.
    Tool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    pub role: Role,
    /// The name of a role that no template needs to know. Such a message is the user's in everything but its name.
    pub custom_role: Option<String>,
    pub parts: Vec<Part>,
    /// The author's name.
    pub name: Option<String>,
    /// The id of the call whose result this message is.
    pub call_id: Option<String>,
    /// The assistant's reasoning, if the message carries any.
    pub reasoning: Option<String>,
    /// The calls that the assistant made.
    pub calls: Vec<Call>,
}

/// A part of a message's content.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    Text(String),
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    pub id: String,
    /// The name of the function.
    pub name: String,
    /// The arguments as the model wrote them: a JSON object.
    pub arguments: String,
}

impl Role {
    /// The role's name in chat templates.
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

impl Message {
    /// A message without parts, for the caller to fill in.
    pub fn new(role: Role) -> Self {
        Self { role, custom_role: None, parts: Vec::new(), name: None, call_id: None, reasoning: None, calls: Vec::new() }
    }

    pub fn of_text(role: Role, text: impl Into<String>) -> Self {
        Self { parts: vec![Part::Text(text.into())], ..Self::new(role) }
    }

    /// Whether the message is the user's own.
    pub fn is_users(&self) -> bool {
        self.role == Role::User && self.custom_role.is_none()
    }

    /// The text of the message's parts, one part per line.
    pub fn text(&self) -> String {
        let texts: Vec<&str> = self.parts.iter().map(|Part::Text(text)| text.as_str()).collect();
        texts.join("\n")
    }

    /// The message's size in memory, in bytes.
    pub fn num_bytes(&self) -> usize {
        let texts: usize = self.parts.iter().map(|Part::Text(text)| text.capacity()).sum();
        let fields = [&self.custom_role, &self.name, &self.call_id, &self.reasoning];
        let fields: usize = fields.into_iter().flatten().map(String::capacity).sum();
        let call = |call: &Call| call.id.capacity() + call.name.capacity() + call.arguments.capacity();
        let lists = self.parts.capacity() * size_of::<Part>() + self.calls.capacity() * size_of::<Call>();
        size_of::<Self>() + lists + texts + fields + self.calls.iter().map(call).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_lines_of_the_text() {
        let part = |text: &str| Part::Text(text.into());
        let text_of = |parts: Vec<Part>| Message { parts, ..Message::new(Role::User) }.text();
        assert_eq!(text_of(vec![]), "");
        assert_eq!(text_of(vec![part("a")]), "a");
        assert_eq!(text_of(vec![part("a"), part(""), part("b")]), "a\n\nb");
    }

    #[test]
    fn the_size_covers_every_text() {
        let text = "x".repeat(1000);
        let call = Call { id: text.clone(), name: text.clone(), arguments: text.clone() };
        let message = Message {
            role: Role::Assistant,
            custom_role: None,
            parts: vec![Part::Text(text.clone()); 2],
            name: Some(text.clone()),
            call_id: Some(text.clone()),
            reasoning: Some(text.clone()),
            calls: vec![call],
        };
        assert!((8000..9000).contains(&message.num_bytes()), "{}", message.num_bytes());
    }
}
