//! Takes an answer apart while it is written. Whatever the pieces that it comes in, the deltas concatenate to the same.

use serde_json::Value;

use super::bare::{self, Bare, Due, due};
use super::syntax::{Syntax, Thinking};

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    Text(String),
    Reasoning(String),
    /// A call of this function begins; calls count from 0.
    Call(usize, String),
    /// More of that call's arguments, which concatenate to a JSON object.
    Arguments(usize, String),
    /// The answer is but a call by JSON alone that was answered already: the function and its arguments.
    Repeated(String, String),
}

/// The longest name of a function.
const MAX_NAME: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing but white space so far: reasoning may begin.
    Start,
    Reasoning {
        begun: bool,
    },
    /// Nothing but white space since the start, or since the reasoning.
    Before,
    Text,
    /// Behind what begins a call's name.
    Name,
    Arguments(Json),
    /// Behind a call.
    Behind,
    /// Behind all calls: what follows is no part of the answer.
    Done,
}

/// Where in a JSON value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Json {
    depth: u32,
    in_string: bool,
    escaped: bool,
}

impl Json {
    /// Is the object or array complete behind this byte?
    fn step(&mut self, byte: u8) -> bool {
        if self.in_string {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return false;
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                return self.depth == 0;
            }
            _ => {}
        }
        false
    }
}

/// Follows one answer.
#[derive(Clone, Debug)]
pub struct Parser {
    syntax: Option<&'static Syntax>,
    thinking: Option<&'static Thinking>,
    /// What stands before the first call's name.
    call: String,
    /// Functions that an answer may call by JSON alone, as small models do that forget their tags.
    bare: Vec<String>,
    /// Calls whose results the answer can build on.
    answered: Vec<(String, Value)>,
    state: State,
    /// What may turn out to be a tag, or white space before one.
    held: String,
    /// That have begun.
    calls: usize,
    deltas: Vec<Delta>,
}

/// How much of `text`'s end is a proper beginning of `tag`.
fn partial(text: &str, tag: &str) -> usize {
    let longest = text.len().min(tag.len().saturating_sub(1));
    (1..=longest).rev().find(|&len| tag.is_char_boundary(len) && text.ends_with(&tag[..len])).unwrap_or(0)
}

impl Parser {
    /// Of an answer that begins within reasoning where the prompt has `opened` it. No `syntax`: there are no calls.
    pub fn new(syntax: Option<&'static Syntax>, thinking: Option<&'static Thinking>, opened: bool) -> Self {
        let state = match (thinking, syntax) {
            (Some(_), _) if opened => State::Reasoning { begun: false },
            (Some(_), _) => State::Start,
            (None, Some(_)) => State::Before,
            (None, None) => State::Text,
        };
        let call = syntax.map(|syntax| [syntax.trigger, syntax.open, syntax.before].concat()).unwrap_or_default();
        Self { syntax, thinking, call, bare: Vec::new(), answered: Vec::new(), state, held: String::new(), calls: 0, deltas: Vec::new() }
    }

    /// Takes an answer that is nothing but a JSON object with `name` and `arguments`, perhaps in a fence, for a call of one of these
    /// functions. Those in `answered` need no second call.
    pub fn with_bare_calls(mut self, functions: Vec<String>, answered: Vec<(String, Value)>) -> Self {
        (self.bare, self.answered) = (functions, answered);
        if self.state == State::Text && self.syntax.is_some() {
            self.state = State::Before;
        }
        self
    }

    /// Is what is being written reasoning?
    pub fn is_reasoning(&self) -> bool {
        matches!(self.state, State::Reasoning { .. })
    }

    /// More of the answer.
    pub fn push(&mut self, text: &str) -> Vec<Delta> {
        self.held.push_str(text);
        while self.step() {}
        std::mem::take(&mut self.deltas)
    }

    /// The end of the answer. Where it was `cut`, the beginning of a tag is no text.
    pub fn finish(&mut self, cut: bool) -> Vec<Delta> {
        let held = std::mem::take(&mut self.held);
        let without = |tag: &str| if cut { held.len() - partial(&held, tag) } else { held.len() };
        match self.state {
            State::Start | State::Before | State::Text => {
                let text = &held[..without(&self.call)];
                // White space behind a text belongs to it; alone it says nothing.
                if self.state == State::Text || !text.trim().is_empty() {
                    self.text(text.to_owned());
                }
            }
            State::Reasoning { .. } => {
                let reasoning = held[..without(self.close())].trim_end().to_owned();
                self.reasoning_text(reasoning);
            }
            State::Name | State::Arguments(_) | State::Behind | State::Done => {}
        }
        self.state = State::Done;
        std::mem::take(&mut self.deltas)
    }

    fn close(&self) -> &'static str {
        self.thinking.map_or("", |thinking| thinking.close)
    }

    fn text(&mut self, text: String) {
        if !text.is_empty() {
            self.deltas.push(Delta::Text(text));
        }
    }

    fn reasoning_text(&mut self, text: String) {
        if !text.is_empty() {
            self.deltas.push(Delta::Reasoning(text));
        }
    }

    /// Takes `len` bytes out of what is held.
    fn take(&mut self, len: usize) -> String {
        let rest = self.held.split_off(len);
        std::mem::replace(&mut self.held, rest)
    }

    fn turn(&mut self, state: State) -> bool {
        self.state = state;
        true
    }

    /// Goes on by what is held; false where more must come first.
    fn step(&mut self) -> bool {
        match self.state {
            State::Start => self.at_start(),
            State::Reasoning { begun } => self.in_reasoning(begun),
            State::Before => self.before_text(),
            State::Text => self.in_text(),
            State::Name => self.in_name(),
            State::Arguments(json) => self.in_arguments(json),
            State::Behind => self.behind_call(),
            State::Done => {
                self.held.clear();
                false
            }
        }
    }

    fn at_start(&mut self) -> bool {
        let open = self.thinking.map_or("", |thinking| thinking.open);
        let space = self.held.len() - self.held.trim_start().len();
        match due(&self.held[space..], open) {
            Due::There => {
                self.take(space + open.len());
                self.turn(State::Reasoning { begun: false })
            }
            Due::Open => false,
            Due::Missing => self.turn(State::Before),
        }
    }

    /// White space around reasoning is no part of it.
    fn in_reasoning(&mut self, begun: bool) -> bool {
        if !begun {
            let space = self.held.len() - self.held.trim_start().len();
            self.take(space);
            self.state = State::Reasoning { begun: !self.held.is_empty() };
        }
        let close = self.close();
        if let Some(at) = self.held.find(close) {
            let reasoning = self.take(at).trim_end().to_owned();
            self.take(close.len());
            self.reasoning_text(reasoning);
            return self.turn(State::Before);
        }
        let end = self.held.len() - partial(&self.held, close);
        let ready = self.take(self.held[..end].trim_end().len());
        self.reasoning_text(ready);
        false
    }

    /// What a family puts between its tags and a text is left out.
    fn before_text(&mut self) -> bool {
        let (head, trimmed) = (self.thinking.map_or("", |thinking| thinking.head), self.held.trim_start());
        let space = self.held.len() - trimmed.len();
        let bare = if self.bare.is_empty() { Bare::No } else { bare::call(trimmed, &self.bare) };
        match bare {
            Bare::Call(name, arguments) => {
                let repeated = self.answered.iter().any(|answered| (&answered.0, &answered.1) == (&name, &arguments));
                let arguments = arguments.to_string();
                match repeated {
                    true => self.deltas.push(Delta::Repeated(name, arguments)),
                    false => self.deltas.extend([Delta::Call(0, name), Delta::Arguments(0, arguments)]),
                }
                self.calls = 1;
                return self.turn(State::Done);
            }
            Bare::Open if !trimmed.is_empty() => return false,
            Bare::Open | Bare::No => {}
        }
        let (at_head, at_call) = (due(trimmed, head), due(trimmed, &self.call));
        match (at_head, at_call) {
            (Due::There, _) if !head.is_empty() => {
                self.take(space + head.len());
                self.turn(State::Text)
            }
            (_, Due::There) if !self.call.is_empty() => {
                self.take(space + self.call.len());
                self.turn(State::Name)
            }
            (Due::Open, _) | (_, Due::Open) => false,
            _ if self.thinking.is_some() && trimmed.is_empty() => false,
            _ => {
                // Without reasoning before it, white space is the text's own.
                self.take(if self.thinking.is_some() { space } else { 0 });
                self.turn(State::Text)
            }
        }
    }

    fn in_text(&mut self) -> bool {
        if !self.syntax.is_some_and(|syntax| syntax.follows_text) {
            let text = std::mem::take(&mut self.held);
            self.text(text);
            return false;
        }
        if let Some(at) = self.held.find(&self.call) {
            // White space before a call is no part of the text.
            let text = self.take(at).trim_end().to_owned();
            self.text(text);
            self.take(self.call.len());
            return self.turn(State::Name);
        }
        let end = self.held.len() - partial(&self.held, &self.call);
        let ready = self.take(self.held[..end].trim_end().len());
        self.text(ready);
        false
    }

    fn in_name(&mut self) -> bool {
        let between = self.syntax.map_or("", |syntax| syntax.between);
        let fits = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        let len = self.held.find(|c| !fits(c)).unwrap_or(self.held.len());
        if len == self.held.len() && len <= MAX_NAME {
            return false;
        }
        match due(&self.held[len..], between) {
            Due::There => {
                let name = self.take(len);
                self.take(between.len());
                self.deltas.push(Delta::Call(self.calls, name));
                self.calls += 1;
                self.turn(State::Arguments(Json::default()))
            }
            Due::Open => false,
            // No call after all. The first of them was text then.
            Due::Missing if self.calls == 0 => {
                let text = self.call.clone();
                self.text(text);
                self.turn(State::Text)
            }
            Due::Missing => self.turn(State::Done),
        }
    }

    fn in_arguments(&mut self, mut json: Json) -> bool {
        let end = self.held.bytes().position(|byte| json.step(byte)).map(|at| at + 1);
        let piece = self.take(end.unwrap_or(self.held.len()));
        if !piece.is_empty() {
            self.deltas.push(Delta::Arguments(self.calls - 1, piece));
        }
        self.state = if end.is_some() { State::Behind } else { State::Arguments(json) };
        end.is_some()
    }

    fn behind_call(&mut self) -> bool {
        let Some(syntax) = self.syntax.filter(|syntax| syntax.repeats()) else { return self.turn(State::Done) };
        let next = [syntax.after, syntax.separator, syntax.before].concat();
        // JSON may have white space behind it.
        let (trimmed, next) = (self.held.trim_start(), next.trim_start());
        match due(trimmed, next) {
            Due::There => {
                self.take(self.held.len() - trimmed.len() + next.len());
                self.turn(State::Name)
            }
            Due::Open => false,
            Due::Missing => self.turn(State::Done),
        }
    }
}
