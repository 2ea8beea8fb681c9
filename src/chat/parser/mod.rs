//! Splits an answer into pieces while the model writes it. The concatenated pieces do not depend on how the answer's text arrives.

mod nesting;
mod notated;
mod states;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use serde_json::Value;

use super::answer_start::AnswerStart;
use super::bare_calls::partial;
use super::dialect::{Arguments, MAX_SEPARATOR, Syntax, Thinking};
use super::literal::Scan;
use super::parameters::Parameters;
use super::piece::{Piece, Text, TokenLogprob};
use super::schema_budget::SchemaBudget;
use super::tools::{Tool, Tools};
use nesting::Nesting;
use notated::MemberScan;

/// The longest name of a function, in bytes.
const MAX_NAME: usize = 64;

/// A call that repeats one whose result the model already has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repeated {
    pub name: String,
    pub arguments: String,
}

impl Repeated {
    /// The pieces of an answer that consists of this call alone.
    pub fn into_pieces(self) -> [Piece; 2] {
        [Piece::CallStart { call: 0, name: self.name }, Piece::Arguments { call: 0, text: self.arguments }]
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ParserState {
    /// Only white space so far, and reasoning may begin.
    Start,
    Reasoning {
        begun: bool,
    },
    /// Only white space since the start or since the reasoning.
    Before,
    #[default]
    Text,
    /// Inside a bare call. `name` is where the function's name begins in the held text, of which the first `seen` bytes were searched.
    Bare {
        name: usize,
        nesting: Nesting,
        seen: usize,
    },
    /// After the text that precedes a call's name.
    Name,
    Arguments(Nesting),
    /// Among arguments that are written one by one. The first `seen` bytes of the held text do not hold the end of the current argument.
    Parameters {
        first: bool,
        seen: usize,
    },
    /// Among arguments in Python's syntax.
    Python {
        first: bool,
        scan: Scan,
    },
    /// Among arguments in the family's own notation.
    Notated {
        first: bool,
        progress: MemberScan,
    },
    AfterCall,
    /// After all calls. Whatever follows is not part of the answer.
    Done,
}

/// Parses one answer.
#[derive(Clone, Debug, Default)]
pub struct Parser {
    syntax: Option<&'static Syntax>,
    thinking: Option<&'static Thinking>,
    /// The text before the first call's name.
    lead: String,
    /// The functions that a bare call may name.
    bare: Vec<String>,
    /// The calls whose results the model has: functions and arguments.
    answered: Vec<(String, Value)>,
    state: ParserState,
    /// Text that may turn out to be a tag, or white space before one.
    held: String,
    /// Whether the answer has reasoned. If so, white space before the text is a separator.
    reasoned: bool,
    /// Whether reasoning was handed out, and whether more reasoning follows it.
    thought: bool,
    resumed: bool,
    /// Whether the text follows rules of its own, which may allow white space at the beginning.
    formatted: bool,
    /// The presumed beginning of the first call, with the white space before it, until the call's name is known.
    unsure: String,
    /// Characters of the answer before the held text.
    position: usize,
    /// Whether the tag after the text has been written.
    text_ended: bool,
    /// The number of calls that have begun.
    calls: usize,
    /// Each tool's parameters, if its arguments are written one by one. Choices share them.
    parameters: Arc<[(String, Parameters)]>,
    /// The parameters of the function that is being called.
    called: Parameters,
    /// Tokens that may or may not turn out to be text.
    undecided: VecDeque<TokenLogprob>,
    pieces: Vec<Piece>,
    repeated: Option<Repeated>,
}

impl Parser {
    /// A parser for an answer that begins at `entry`. Without `syntax`, an answer has no calls.
    pub fn new(syntax: Option<&'static Syntax>, thinking: Option<&'static Thinking>, entry: AnswerStart) -> Self {
        let state = match (thinking, entry) {
            (Some(thinking), AnswerStart::Reasoning { begun }) if !thinking.open.is_empty() => ParserState::Reasoning { begun },
            (Some(thinking), AnswerStart::Turn) if !thinking.open.is_empty() => ParserState::Start,
            (None, _) if syntax.is_none() => ParserState::Text,
            _ => ParserState::Before,
        };
        Self { syntax, thinking, lead: syntax.map(Syntax::lead).unwrap_or_default(), state, ..Self::default() }
    }

    /// Treats an answer as a call if the whole answer is a JSON object with `name` and `arguments`, perhaps in a code fence, and names one
    /// of `functions`. A call in `answered` is returned by [`Parser::take_repeated`] instead of pieces.
    pub fn with_bare_calls(mut self, functions: Vec<String>, answered: Vec<(String, Value)>) -> Self {
        (self.bare, self.answered) = (functions, answered);
        if self.state == ParserState::Text && self.syntax.is_some() {
            self.state = ParserState::Before;
        }
        self
    }

    /// Treats the answer's text as one that follows rules: at most [`MAX_SEPARATOR`] line breaks separate it from reasoning.
    pub fn with_format(self) -> Self {
        Self { formatted: true, ..self }
    }

    /// Reads the types of arguments from the schemas of these tools, if the family's calls do not tell them.
    pub fn with_tools(mut self, tools: &Tools) -> Self {
        if self.syntax.is_some_and(|syntax| !matches!(syntax.arguments, Arguments::Json | Arguments::Python)) {
            let mut budget = SchemaBudget::default();
            let of = |tool: &Tool| Some((tool.name.clone(), Parameters::of(&tool.schema(), &mut budget).ok()?));
            self.parameters = tools.callable().filter_map(of).collect();
        }
        self
    }

    /// Whether a call has begun and not ended.
    pub fn is_calling(&self) -> bool {
        let trigger = self.syntax.map_or("", |syntax| syntax.trigger);
        match self.state {
            ParserState::Name
            | ParserState::Arguments(_)
            | ParserState::Parameters { .. }
            | ParserState::Python { .. }
            | ParserState::Notated { .. }
            | ParserState::AfterCall
            | ParserState::Bare { .. } => true,
            ParserState::Before | ParserState::Text => !trigger.is_empty() && self.held.trim_start().starts_with(trigger),
            ParserState::Start | ParserState::Reasoning { .. } | ParserState::Done => false,
        }
    }

    /// Whether the answer has made a call.
    pub fn has_called(&self) -> bool {
        self.calls > 0
    }

    /// The call that an answer repeats, if the answer holds nothing else.
    pub fn take_repeated(&mut self) -> Option<Repeated> {
        self.repeated.take()
    }

    /// Parses more of the answer.
    pub fn push(&mut self, more: Text) -> Vec<Piece> {
        self.held.push_str(&more.text);
        self.undecided.extend(more.tokens);
        while self.step() {}
        self.decided()
    }

    /// Parses the end of the answer. If it was `cut`, a partial tag at its end is not text.
    pub fn finish(&mut self, cut: bool) -> Vec<Piece> {
        if matches!(self.state, ParserState::Start | ParserState::Before | ParserState::Bare { .. }) {
            self.take(self.separator());
        }
        let (at, held) = (self.position, self.take(self.held.len()));
        let without = |tag: &str| if cut { held.len() - partial(&held, tag) } else { held.len() };
        match self.state {
            ParserState::Start | ParserState::Before | ParserState::Text | ParserState::Bare { .. } => {
                let tail = self.thinking.map_or("", |thinking| thinking.tail);
                let len = without(&self.lead).min(without(tail));
                self.text(at, held[..len].to_owned());
                if len == held.len() && !self.text_ended {
                    self.last_tokens(at);
                }
            }
            ParserState::Reasoning { .. } => {
                let reasoning = held[..without(self.close())].trim_end().to_owned();
                self.reasoning_text(reasoning);
            }
            // The model may stop without writing the end of its call.
            ParserState::Parameters { first, .. } | ParserState::Python { first, .. } | ParserState::Notated { first, .. } if !cut => {
                self.end_arguments(first);
            }
            ParserState::Name
            | ParserState::Arguments(_)
            | ParserState::Parameters { .. }
            | ParserState::Python { .. }
            | ParserState::Notated { .. }
            | ParserState::AfterCall
            | ParserState::Done => {}
        }
        self.state = ParserState::Done;
        self.decided()
    }

    fn close(&self) -> &'static str {
        self.thinking.map_or("", |thinking| thinking.close)
    }

    /// Hands out the pieces that are complete.
    fn decided(&mut self) -> Vec<Piece> {
        self.skip_tokens(self.position - self.unsure.chars().count());
        std::mem::take(&mut self.pieces)
    }

    /// Adds a text that begins at the character `at`, with its tokens.
    fn text(&mut self, at: usize, text: String) {
        if text.is_empty() || self.text_ended {
            return;
        }
        self.skip_tokens(at);
        let end = at + text.chars().count();
        let count = self.undecided.iter().take_while(|token| token.offset < end).count();
        let tokens = self.undecided.drain(..count).collect();
        self.pieces.push(Piece::Text(Text { text, tokens }));
    }

    /// Drops the tokens that end before the character `at`, because they are not text.
    fn skip_tokens(&mut self, at: usize) {
        while self.undecided.pop_front_if(|token| token.end() <= at).is_some() {}
    }

    /// Hands out the tokens without text at or after the character `at`, such as control tokens at the end of an answer.
    fn last_tokens(&mut self, at: usize) {
        let tokens: Vec<TokenLogprob> = self.undecided.drain(..).filter(|token| token.offset >= at).collect();
        match self.pieces.last_mut() {
            Some(Piece::Text(text)) => text.tokens.extend(tokens),
            _ if tokens.is_empty() => {}
            _ => self.pieces.push(Piece::Text(Text { text: String::new(), tokens })),
        }
    }

    fn reasoning_text(&mut self, text: String) {
        if !text.is_empty() {
            let gap = if self.thought && self.resumed { "\n\n" } else { "" };
            (self.thought, self.resumed) = (true, false);
            self.pieces.push(Piece::Reasoning(format!("{gap}{text}")));
        }
    }

    /// The length of the separator between reasoning and the answer's text at the start of the held text [bytes]. The indentation of the
    /// text's first line belongs to the text.
    fn separator(&self) -> usize {
        let space = &self.held[..self.held.len() - self.held.trim_start().len()];
        match (self.reasoned, self.formatted) {
            (false, _) => 0,
            (true, true) => space.bytes().take(MAX_SEPARATOR).take_while(|byte| *byte == b'\n').count(),
            (true, false) if space.len() == self.held.len() => space.len(),
            (true, false) => space.rfind('\n').map_or(space.len(), |at| at + 1),
        }
    }

    /// Removes `len` bytes from the start of the held text and returns them.
    fn take(&mut self, len: usize) -> String {
        let rest = self.held.split_off(len);
        self.position += self.held.chars().count();
        std::mem::replace(&mut self.held, rest)
    }

    fn turn(&mut self, state: ParserState) -> bool {
        self.state = state;
        true
    }
}
