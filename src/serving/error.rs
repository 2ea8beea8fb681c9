//! Errors of requests, and the part of the request that each is about.

use std::fmt;
use std::sync::Arc;

use super::model::Model;
use super::pictures::PictureError;
use chat::{RenderError, RuleError, Subject};
use grammar::GrammarError;
use scheduler::EnqueueError;

/// Why a model refuses a request. Clients, such as LiteLLM with its fallbacks, find out that a prompt is too long by OpenAI's words "this
/// model's maximum context length is".
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum RequestError {
    #[error("this model's maximum context length is {} tokens, but the prompt has {prompt}{}: {room}", room.context, more(*wanted))]
    Context { prompt: usize, wanted: u32, room: ContextLimit },
    #[error("this model's maximum context length is {} tokens, but the prompt has more than {most}: {room}", room.context)]
    TooLong { most: usize, room: ContextLimit },
    #[error("the query leaves no room for the document: both together may have {room} tokens")]
    NoRoom { room: usize },
    #[error("{most} tokens are more than the model's context of {context}: -1 keeps as many as it holds")]
    Truncation { most: usize, context: usize },
    #[error("there is no token {id}: the model's vocabulary ends at {}", vocab_size.saturating_sub(1))]
    Vocabulary { subject: Subject, id: u32, vocab_size: usize },
    #[error("{size} {unit} are too many for one request: send at most {most}")]
    TooMuch { size: usize, most: usize, unit: &'static str },
    #[error("the prompt has no tokens")]
    Empty,
    #[error("the model `{0}` does not chat: it is a base model, or has no chat template")]
    NoTemplate(String),
    #[error("{0}")]
    Template(String),
    #[error(transparent)]
    Render(#[from] RenderError),
    #[error(transparent)]
    Rules(#[from] RuleError),
    #[error("the vocabulary of the model `{0}` has no tokens to fill in the middle of a text")]
    NoInfill(String),
    #[error("the model `{0}` ranks texts: it has no embeddings")]
    NoEmbedding(String),
    #[error("the model `{0}` does not rank texts: its file has no classifier, or another kind of pooling")]
    NoRanking(String),
    #[error("`{field}`: {error}")]
    Picture { field: Arc<str>, error: PictureError },
    #[error("a prompt with pictures cannot be cut: leave out the length to which it is cut")]
    PicturesCut,
    #[error("the tokens of a prompt with pictures have no scores: ask for the log-probabilities of the answer alone")]
    PicturesScored,
    #[error("the model `{0}` computes embeddings: it cannot generate text")]
    NoGeneration(String),
}

/// The longest sequence [tokens]. Displayed as the advice for a prompt that is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextLimit {
    /// The longest context served.
    pub context: usize,
    /// The longest context that the model was made for.
    pub most: usize,
    /// Whether the name has a shorter context than its base model.
    pub by_name: bool,
}

impl ContextLimit {
    pub(super) fn of(model: &Model) -> Self {
        let context = model.context();
        Self { context, most: model.base.spec.context_length, by_name: context < model.base.context }
    }
}

impl fmt::Display for ContextLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.context < self.most {
            _ if self.by_name => write!(f, "shorten it, or make the model with a larger num_ctx"),
            true => write!(f, "shorten it, or start the server with a larger --context (the model was made for up to {})", self.most),
            false => write!(f, "shorten it: the model was made for at most {}", self.most),
        }
    }
}

/// The part of a message about the tokens to generate. Empty if only one was wanted, because then the prompt itself is too long.
fn more(wanted: u32) -> String {
    if wanted > 1 { format!(" and {wanted} more were asked for") } else { String::new() }
}

impl RequestError {
    /// The part of the request that the error is about.
    pub fn subject(&self) -> Subject {
        match self {
            Self::Context { .. } | Self::TooLong { .. } | Self::NoRoom { .. } | Self::TooMuch { .. } | Self::Empty => Subject::Prompt,
            Self::Vocabulary { subject, .. } => *subject,
            Self::Picture { .. } | Self::PicturesScored => Subject::Prompt,
            Self::Truncation { .. } | Self::PicturesCut => Subject::Truncation,
            Self::NoTemplate(_) | Self::NoEmbedding(_) | Self::NoRanking(_) | Self::NoGeneration(_) => Subject::Model,
            Self::Template(_) => Subject::Template,
            Self::Render(error) => error.subject(),
            Self::Rules(error) => error.subject,
            Self::NoInfill(_) => Subject::Suffix,
        }
    }

    /// Whether the prompt is longer than the context.
    pub fn is_too_long(&self) -> bool {
        matches!(self, Self::Context { .. } | Self::TooLong { .. })
    }

    /// The requested and the permitted number of tokens, if too many were requested. A prompt that was not counted to its end counts as far
    /// as it was counted.
    pub fn overflow(&self) -> Option<(usize, usize)> {
        match self {
            Self::Context { prompt, wanted, room } => Some((prompt.saturating_add(*wanted as usize), room.context)),
            Self::TooLong { most, room } => Some((most.saturating_add(1), room.context)),
            _ => None,
        }
    }

    /// Whether the same request may be served later.
    pub fn is_busy(&self) -> bool {
        let is_full = matches!(self, Self::Picture { error: PictureError::QueueFull, .. });
        is_full || matches!(self, Self::Rules(RuleError { error: GrammarError::Busy, .. }))
    }
}

/// Why a model's engine refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    #[error("the queue is full, no more requests may wait (limits.max_queue): try again later")]
    QueueFull,
    #[error("the queue is full, no more prompt tokens may wait (limits.max_queue_tokens): try again later")]
    TokensFull,
    #[error("the engine has stopped")]
    Stopped,
}

impl From<EnqueueError> for SubmitError {
    fn from(error: EnqueueError) -> Self {
        match error {
            EnqueueError::QueueFull => Self::QueueFull,
            EnqueueError::TokensFull => Self::TokensFull,
            EnqueueError::Stopped => Self::Stopped,
        }
    }
}

/// Why a running request ended without a result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The request failed, and the engine still runs.
    #[error("{0}")]
    Request(String),
    /// The engine has stopped.
    #[error("{0}")]
    Engine(String),
    /// The answer can no longer follow the rules of the request.
    #[error("{message}")]
    Rules { subject: Subject, message: String },
}

impl Failure {
    /// `alive`: whether the engine still runs.
    pub(super) fn new(message: impl Into<String>, alive: bool) -> Self {
        let kind = if alive { Self::Request } else { Self::Engine };
        kind(message.into())
    }
}
