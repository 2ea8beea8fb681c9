//! A conversation as types. [`render`](super::render) turns it into JSON for a chat template.

use std::sync::Arc;

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
    Picture(Picture),
}

/// A picture as a client sent it: nothing has been decoded.
#[derive(Clone, Debug, PartialEq)]
pub struct Picture {
    pub source: PictureSource,
    /// The field of the request that holds the picture, for errors.
    pub field: Arc<str>,
    /// The text that replaces the picture if the model takes none. `None`: then the request is refused.
    pub substitute: Option<&'static str>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum PictureSource {
    /// The bytes of a file.
    File(Arc<[u8]>),
    /// An address of the web, from which the file is still to be fetched.
    Url(Arc<str>),
    /// No picture can be had from the field, for this reason. A model that takes no pictures may leave it out nonetheless.
    Invalid(Arc<str>),
}

impl Part {
    pub fn as_text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    pub fn as_picture(&self) -> Option<&Picture> {
        if let Self::Picture(picture) = self { Some(picture) } else { None }
    }

    /// The part's size in memory besides its own fields [bytes].
    fn num_bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.capacity(),
            Self::Picture(Picture { source: PictureSource::File(bytes), field, .. }) => bytes.len() + field.len(),
            Self::Picture(Picture { source: PictureSource::Url(text) | PictureSource::Invalid(text), field, .. }) => {
                text.len() + field.len()
            }
        }
    }
}

impl Conversation {
    /// The pictures of all messages, in order.
    pub fn pictures(&self) -> impl Iterator<Item = &Picture> {
        self.messages.iter().flat_map(|message| &message.parts).filter_map(Part::as_picture)
    }
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

    /// The text of the message's parts, one part per line, without pictures.
    pub fn text(&self) -> String {
        let texts: Vec<&str> = self.parts.iter().filter_map(Part::as_text).collect();
        texts.join("\n")
    }

    /// Replaces pictures by the texts that stand for them.
    ///
    /// # Errors
    /// The first picture that may not be left out.
    pub fn without_pictures(mut self) -> Result<Self, Picture> {
        for part in &mut self.parts {
            if let Part::Picture(picture) = part {
                *part = Part::Text(picture.substitute.ok_or_else(|| picture.clone())?.to_owned());
            }
        }
        Ok(self)
    }

    /// The message's size in memory, without the files of its pictures [bytes].
    pub fn num_text_bytes(&self) -> usize {
        let pictures: usize = self.parts.iter().filter(|part| part.as_picture().is_some()).map(Part::num_bytes).sum();
        self.num_bytes() - pictures
    }

    /// The message's size in memory, in bytes.
    pub fn num_bytes(&self) -> usize {
        let texts: usize = self.parts.iter().map(Part::num_bytes).sum();
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
