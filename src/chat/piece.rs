//! [`Piece`]: a part of an answer as it is streamed.

/// A piece of an answer. Pieces arrive in the order in which the model wrote them.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    /// The prompt's tokens with their log-probabilities. Comes first, and only if they were requested.
    Prompt(Vec<TokenLogprob>),
    Text(Text),
    Reasoning(String),
    /// A call of the function `name` begins. The calls of an answer are numbered from 0, and each ends before the next begins.
    CallStart {
        call: usize,
        name: String,
    },
    /// More of that call's arguments. Together they are a JSON object.
    Arguments {
        call: usize,
        text: String,
    },
}

/// A piece of the answer's text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Text {
    pub text: String,
    /// The tokens that begin in this text. Empty unless log-probabilities were requested.
    pub tokens: Vec<TokenLogprob>,
}

/// A token of a text with its log-probability.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token's bytes, which may be a part of a character. For a control token, its name.
    pub bytes: Vec<u8>,
    /// The length of the text before the token, in characters.
    pub offset: usize,
    /// `None` for the first token of a prompt, which has nothing before it.
    pub logprob: Option<f32>,
    /// The likeliest tokens at this position, as many as were requested, in descending order.
    pub top: Vec<TopToken>,
    pub id: u32,
}

/// One of the likeliest tokens at a position.
#[derive(Clone, Debug, PartialEq)]
pub struct TopToken {
    pub id: u32,
    pub bytes: Vec<u8>,
    pub logprob: f32,
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self { text, tokens: Vec::new() }
    }
}

impl TokenLogprob {
    /// The length of the text up to the token's end, in characters.
    pub(super) fn end(&self) -> usize {
        self.offset + String::from_utf8_lossy(&self.bytes).chars().count()
    }
}
