//! [`TurnOrder`]: the orders of messages that a chat template takes.

/// The place in which a template takes the system messages that begin a conversation.
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

/// The strictness with which the user's and the assistant's messages must take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Alternation {
    /// Not at all.
    Free,
    /// Neighbours of one role are joined into one message.
    Joined,
    /// As `Joined`, and messages without calls alternate regardless of the calls and results between them. The user begins.
    Strict,
}

/// The form in which a template takes the text of a message that also makes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallText {
    /// As the message's content.
    Content,
    /// As a message before the one that makes the calls.
    Message,
    /// Not at all: the text is inserted into the prompt before the calls.
    Inserted,
}

/// The treatment that a chat template needs for the orders of messages that clients send. If a template takes an order, its messages are
/// passed on as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnOrder {
    pub system: SystemPlace,
    /// Whether the template shows a system message after the first turn in its place.
    pub late_system: bool,
    pub alternation: Alternation,
    /// Whether a conversation needs a message of the user, before any of the assistant.
    pub needs_user: bool,
    pub call_text: CallText,
    /// Whether a message may make several calls.
    pub several_calls: bool,
    /// Whether messages may stand between a call and its result.
    pub late_results: bool,
    /// Whether the template shows a result that belongs to no call.
    pub lone_results: bool,
    /// Whether the template needs a list of tools, even an empty one.
    pub needs_tools: bool,
    /// Whether the template shows messages of roles that it does not know, with the names of the roles.
    pub custom_roles: bool,
}

impl TurnOrder {
    /// A template that takes all messages of the usual roles as they are.
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
        custom_roles: false,
    };
}
