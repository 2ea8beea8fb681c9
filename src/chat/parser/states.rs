//! The parser's states: each goes on by the text that is held, and returns whether there may be more to do.

use serde_json::Value;

use super::literal::{self, Scan};
use super::nesting::Nesting;
use super::{MAX_NAME, Parser, Repeated, State, partial};
use crate::bare::{self, Beginning, Due, due};
use crate::dialect::{Arguments, Syntax};
use crate::piece::Piece;

impl Parser {
    /// Goes on by the text that is held. `false`: more of it must arrive first.
    pub(super) fn step(&mut self) -> bool {
        match self.state {
            State::Start => self.at_start(),
            State::Reasoning { begun } => self.in_reasoning(begun),
            State::Before => self.before_text(),
            State::Text => self.in_text(),
            State::Bare { name, nesting, seen } => self.in_bare(name, nesting, seen),
            State::Name => self.in_name(),
            State::Arguments(nesting) => self.in_arguments(nesting),
            State::Parameters { first, seen } => self.in_parameters(first, seen),
            State::Python { first, scan } => self.in_python(first, scan),
            State::AfterCall => self.after_call(),
            State::Done => {
                self.take(self.held.len());
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

    /// White space around reasoning does not belong to it.
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

    /// Leaves out what the family puts between its tags and a text.
    fn before_text(&mut self) -> bool {
        let (head, trimmed) = (self.thinking.map_or("", |thinking| thinking.head), self.held.trim_start());
        let space = self.held.len() - trimmed.len();
        let bare = if self.bare.is_empty() { Beginning::No } else { bare::beginning(trimmed, &self.bare) };
        // The family's own syntax comes first: in some families it is JSON without tags, too, and can hold several calls.
        match (due(trimmed, head), due(trimmed, &self.lead), bare) {
            (Due::There, ..) if !head.is_empty() => {
                self.take(space + head.len());
                self.turn(State::Text)
            }
            (_, Due::There, _) if !self.lead.is_empty() => {
                self.take(space + self.lead.len());
                self.turn(State::Name)
            }
            (.., Beginning::At(at)) => self.turn(State::Bare { name: space + at, nesting: Nesting::default(), seen: 0 }),
            (Due::Open, ..) | (_, Due::Open, _) => false,
            (.., Beginning::Open) if !trimmed.is_empty() => false,
            _ if self.thinking.is_some() && trimmed.is_empty() => false,
            _ => {
                // White space belongs to the text, unless reasoning may stand before it.
                self.take(if self.thinking.is_some() { space } else { 0 });
                self.turn(State::Text)
            }
        }
    }

    fn in_bare(&mut self, name: usize, mut nesting: Nesting, seen: usize) -> bool {
        let Some(end) = self.held.as_bytes()[seen..].iter().position(|byte| nesting.step(*byte)) else {
            self.state = State::Bare { name, nesting, seen: self.held.len() };
            return false;
        };
        let Some((function, arguments, value)) = bare::call(&self.held[name..=seen + end]) else { return self.turn(State::Text) };
        let repeated = self.answered.iter().any(|answered| answered.0 == function && answered.1 == value);
        let call = Repeated { name: function.to_owned(), arguments: arguments.to_owned() };
        match repeated {
            true => self.repeated = Some(call),
            false => self.pieces.extend(call.into_pieces()),
        }
        self.calls = 1;
        self.turn(State::Done)
    }

    fn in_text(&mut self) -> bool {
        let from = self.position;
        if !self.syntax.is_some_and(|syntax| syntax.follows_text) {
            let text = self.take(self.held.len());
            self.text(from, text);
            return false;
        }
        if let Some(at) = self.held.find(&self.lead) {
            // White space before a call does not belong to the text.
            let text = self.take(at).trim_end().to_owned();
            self.text(from, text);
            self.take(self.lead.len());
            return self.turn(State::Name);
        }
        let end = self.held.len() - partial(&self.held, &self.lead);
        let ready = self.take(self.held[..end].trim_end().len());
        self.text(from, ready);
        false
    }

    fn in_name(&mut self) -> bool {
        let between = self.syntax.map_or("", |syntax| syntax.between);
        let fits = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        let len = self.held.find(|c| !fits(c)).unwrap_or(self.held.len());
        if len == self.held.len() && len <= MAX_NAME {
            return false;
        }
        match if len == 0 { Due::Missing } else { due(&self.held[len..], between) } {
            Due::There => {
                let name = self.take(len);
                self.take(between.len());
                let parameters = self.parameters.iter().find(|(function, _)| *function == name);
                self.called = parameters.map(|(_, parameters)| parameters.clone()).unwrap_or_default();
                self.pieces.push(Piece::CallStart { call: self.calls, name });
                self.calls += 1;
                self.turn(match self.syntax.map(|syntax| syntax.arguments) {
                    Some(Arguments::Tagged(_)) => State::Parameters { first: true, seen: 0 },
                    Some(Arguments::Python) => State::Python { first: true, scan: Scan::default() },
                    Some(Arguments::Json) | None => State::Arguments(Nesting::default()),
                })
            }
            Due::Open => false,
            // It is not a call after all, so that what looked like the first one's beginning is text.
            Due::Missing if self.calls == 0 => {
                let text = self.lead.clone();
                self.text(self.position - text.chars().count(), text);
                self.turn(State::Text)
            }
            Due::Missing => self.turn(State::Done),
        }
    }

    fn in_arguments(&mut self, mut nesting: Nesting) -> bool {
        let end = self.held.bytes().position(|byte| nesting.step(byte)).map(|at| at + 1);
        let piece = self.take(end.unwrap_or(self.held.len()));
        if !piece.is_empty() {
            self.pieces.push(Piece::Arguments { call: self.calls - 1, text: piece });
        }
        self.state = if end.is_some() { State::AfterCall } else { State::Arguments(nesting) };
        end.is_some()
    }

    /// Takes an argument once its tag is closed.
    fn in_parameters(&mut self, first: bool, seen: usize) -> bool {
        let Some(tags) = self.syntax.and_then(Syntax::tagged) else { return self.turn(State::Done) };
        let space = self.held.len() - self.held.trim_start().len();
        match due(&self.held[space..], tags.before) {
            Due::There => {}
            Due::Open => return false,
            Due::Missing => {
                self.end_arguments(first);
                return self.turn(State::AfterCall);
            }
        }
        let key_at = space + tags.before.len();
        let mids = [(tags.text.trim_end(), tags.text == tags.json), (tags.json.trim_end(), false)];
        let found = |(mid, either): (&str, bool)| Some((self.held[key_at..].find(mid)? + key_at, mid.len(), either));
        let [text, json] = mids.map(found);
        let is_text = match (text, json) {
            (Some((.., true)), _) => None,
            (text, json) => Some(json.is_none_or(|json| text.is_some_and(|text| text.0 < json.0))),
        };
        let Some((key_end, len, _)) = (if is_text == Some(false) { json } else { text }) else { return false };
        let value_at = key_end + len;
        let mut from = value_at.max(seen.saturating_sub(tags.close().len()));
        while !self.held.is_char_boundary(from) {
            from -= 1;
        }
        let Some(value_end) = self.held[from..].find(tags.close()).map(|at| at + from) else {
            self.state = State::Parameters { first, seen: self.held.len() };
            return false;
        };
        let (key, value) = (&self.held[key_at..key_end], tags.inside(&self.held[value_at..value_end]));
        let (open, value) = (if first { "{" } else { ", " }, self.called.value(key, value, is_text));
        let text = format!("{open}{}: {value}", Value::from(key));
        self.take(value_end + tags.close().len());
        self.pieces.push(Piece::Arguments { call: self.calls - 1, text });
        self.turn(State::Parameters { first: false, seen: 0 })
    }

    /// Takes an argument once its value has ended.
    fn in_python(&mut self, first: bool, mut scan: Scan) -> bool {
        let separators = |c: char| c.is_whitespace() || (c == ',' && !first);
        let key_at = self.held.len() - self.held.trim_start_matches(separators).len();
        let rest = &self.held[key_at..];
        if rest.starts_with(')') {
            self.take(key_at);
            self.end_arguments(first);
            return self.turn(State::AfterCall);
        }
        let key = rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default();
        match rest.as_bytes().get(key.len()) {
            None => return false,
            Some(b'=') if !key.is_empty() => {}
            Some(_) => return self.turn(State::Done),
        }
        let value = &rest[key.len() + 1..];
        let Some(end) = scan.end(value) else {
            self.state = State::Python { first, scan };
            return false;
        };
        let open = if first { "{" } else { ", " };
        let text = format!("{open}{}: {}", Value::from(key), literal::json(&value[..end]));
        let len = key_at + key.len() + 1 + end;
        self.take(len);
        self.pieces.push(Piece::Arguments { call: self.calls - 1, text });
        self.turn(State::Python { first: false, scan: Scan::default() })
    }

    pub(super) fn end_arguments(&mut self, first: bool) {
        let text = if first { "{}" } else { "}" };
        self.pieces.push(Piece::Arguments { call: self.calls - 1, text: text.into() });
    }

    fn after_call(&mut self) -> bool {
        let Some(syntax) = self.syntax.filter(|syntax| syntax.repeats()) else { return self.turn(State::Done) };
        let next = [syntax.after, syntax.separator, syntax.before].concat();
        // White space may follow JSON.
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
