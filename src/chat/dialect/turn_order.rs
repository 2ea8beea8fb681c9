//! Which orders of messages a chat template takes.

/// Where a template takes the system messages that begin a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SystemPlace {
    /// As messages, any number of them.
    Messages,
    /// As one message.
    OneMessage,
    /// As the beginning of the user's first message.
    FirstUser,
    /// As the beginning of the user's last message.
    LastUser,
}

/// How strictly the user's and the assistant's messages must take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Alternation {
    /// Not at all.
    Free,
    /// Neighbours of one role are one message.
    Joined,
    /// The same, and messages without calls alternate whatever calls and results stand between them. The user begins.
    Strict,
}

/// How a template takes the text of a message that also makes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallText {
    /// As the message's content.
    Content,
    /// As a message before the one that makes the calls.
    Message,
    /// Not at all: the text is put into the prompt before the calls.
    Inserted,
}

/// What a chat template does with orders of messages that clients send. A template that takes an order is given the messages as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnOrder {
    pub system: SystemPlace,
    /// Whether a system message behind the first turn is shown in its place.
    pub late_system: bool,
    pub alternation: Alternation,
    /// Whether a conversation needs a message of the user before any of the assistant, and one at all.
    pub needs_user: bool,
    pub call_text: CallText,
    /// Whether a message may make several calls.
    pub several_calls: bool,
    /// Whether messages may stand between a call and its result.
    pub late_results: bool,
    /// Whether a result is shown that belongs to no call.
    pub lone_results: bool,
    /// Whether the template needs a list of tools, if only an empty one.
    pub needs_tools: bool,
}

impl TurnOrder {
    /// All messages go to the template as they are.
    pub const ALL: Self = Self {
        system: SystemPlace::Messages,
        late_system: true,
        alternation: Alternation::Free,
        needs_user: false,
        call_text: CallText::Content,
        several_calls: true,
        late_results: true,
        lone_results: true,
        needs_tools: false,
    };
}
