//! The parser's states. Each consumes held text, and returns whether another step may follow.

use serde_json::Value;

use super::nesting::Nesting;
use super::notated::{self, MemberScan};
use super::{MAX_NAME, Parser, ParserState, Repeated};
use crate::bare_calls::{self, BareCall, TagMatch, match_tag, partial};
use crate::dialect::{Arguments, Syntax, match_with_placeholders, split};
use crate::literal::{self, Scan};
use crate::piece::Piece;

impl Parser {
    /// Consumes held text. `false`: more text must arrive first.
    pub(super) fn step(&mut self) -> bool {
        match self.state {
            ParserState::Start => self.at_start(),
            ParserState::Reasoning { begun } => self.in_reasoning(begun),
            ParserState::Before => self.before_text(),
            ParserState::Text => self.in_text(),
            ParserState::Bare { name, nesting, seen } => self.in_bare(name, nesting, seen),
            ParserState::Name => self.in_name(),
            ParserState::Arguments(nesting) => self.in_arguments(nesting),
            ParserState::Parameters { first, seen } => self.in_parameters(first, seen),
            ParserState::Python { first, scan } => self.in_python(first, scan),
            ParserState::Notated { first, progress } => self.in_notated(first, progress),
            ParserState::AfterCall => self.after_call(),
            ParserState::Done => {
                self.take(self.held.len());
                false
            }
        }
    }

    fn at_start(&mut self) -> bool {
        let open = self.thinking.map_or("", |thinking| thinking.open.trim_start());
        let space = self.held.len() - self.held.trim_start().len();
        match match_tag(&self.held[space..], open) {
            TagMatch::There => {
                self.take(space + open.len());
                self.turn(ParserState::Reasoning { begun: false })
            }
            TagMatch::Open => false,
            TagMatch::Missing => self.turn(ParserState::Before),
        }
    }

    /// Emits reasoning without the white space around it.
    fn in_reasoning(&mut self, begun: bool) -> bool {
        if !begun {
            let space = self.held.len() - self.held.trim_start().len();
            self.take(space);
            self.state = ParserState::Reasoning { begun: !self.held.is_empty() };
        }
        let close = self.close();
        if let Some(at) = self.held.find(close) {
            let reasoning = self.take(at).trim_end().to_owned();
            self.take(close.len());
            self.reasoning_text(reasoning);
            self.reasoned = true;
            return self.turn(ParserState::Before);
        }
        let end = self.held.len() - partial(&self.held, close);
        let ready = self.take(self.held[..end].trim_end().len());
        self.reasoning_text(ready);
        false
    }

    /// Skips headers and white space of the family before the answer, and finds out what follows: text, a call or further reasoning.
    fn before_text(&mut self) -> bool {
        let (head, trimmed) = (self.thinking.map_or("", |thinking| thinking.head.trim_start()), self.held.trim_start());
        let space = self.held.len() - trimmed.len();
        let bare = if self.bare.is_empty() { BareCall::No } else { bare_calls::beginning(trimmed, &self.bare) };
        // The family's own syntax comes first: in some families it also is JSON without tags, and can hold several calls.
        let header = self.syntax.map_or("", |syntax| syntax.header.trim_start());
        let (header_due, header_len) = match_with_placeholders(trimmed, header, "");
        // Some models reason several times in a row.
        let open = self.thinking.map_or("", |thinking| thinking.open.trim());
        let reopens = (self.reasoned && !self.formatted && !trimmed.is_empty()).then(|| match_tag(trimmed, open));
        match (match_tag(trimmed, head), match_tag(trimmed, &self.lead), bare) {
            (TagMatch::There, ..) if !head.is_empty() => {
                self.take(space + head.len());
                self.turn(ParserState::Text)
            }
            _ if matches!(reopens, Some(TagMatch::There)) => {
                self.take(space + open.len());
                self.resumed = true;
                self.turn(ParserState::Reasoning { begun: false })
            }
            _ if matches!(header_due, TagMatch::There) && !header.is_empty() => {
                self.take(space + header_len);
                true
            }
            (_, TagMatch::There, _) if !self.lead.is_empty() => {
                let separator = self.separator();
                self.take(separator);
                self.begin_call(space - separator + self.lead.len())
            }
            (.., BareCall::At(at)) => self.turn(ParserState::Bare { name: space + at, nesting: Nesting::default(), seen: 0 }),
            (TagMatch::Open, ..) | (_, TagMatch::Open, _) => false,
            _ if matches!(reopens, Some(TagMatch::Open)) => false,
            _ if matches!(header_due, TagMatch::Open) && !trimmed.is_empty() => false,
            (.., BareCall::Open) if !trimmed.is_empty() => false,
            _ if self.thinking.is_some() && trimmed.is_empty() => false,
            _ => self.begin_text(),
        }
    }

    /// Skips the separator between reasoning and the text.
    fn begin_text(&mut self) -> bool {
        let separator = self.separator();
        self.take(separator);
        self.turn(ParserState::Text)
    }

    /// Takes the beginning of a call, which becomes text if no call follows.
    fn begin_call(&mut self, len: usize) -> bool {
        let begun = self.take(len);
        if self.calls == 0 {
            self.unsure = begun;
        }
        self.turn(ParserState::Name)
    }

    fn in_bare(&mut self, name: usize, mut nesting: Nesting, seen: usize) -> bool {
        let Some(end) = self.held.as_bytes()[seen..].iter().position(|byte| nesting.step(*byte)) else {
            self.state = ParserState::Bare { name, nesting, seen: self.held.len() };
            return false;
        };
        let Some((function, arguments, value)) = bare_calls::call(&self.held[name..=seen + end]) else {
            return self.begin_text();
        };
        let repeated = self.answered.iter().any(|answered| answered.0 == function && answered.1 == value);
        let call = Repeated { name: function.to_owned(), arguments: arguments.to_owned() };
        match repeated {
            true => self.repeated = Some(call),
            false => self.pieces.extend(call.into_pieces()),
        }
        self.calls = 1;
        self.turn(ParserState::Done)
    }

    fn in_text(&mut self) -> bool {
        let from = self.position;
        let tail = self.thinking.map_or("", |thinking| thinking.tail);
        let lead = if self.syntax.is_some_and(|syntax| syntax.follows_text) { self.lead.as_str() } else { "" };
        let found = |tag: &str| if tag.is_empty() { None } else { self.held.find(tag).map(|at| (at, tag.len())) };
        match (found(tail), found(lead)) {
            // After the text, only calls count.
            (Some((at, len)), call) if call.is_none_or(|call| at < call.0) => {
                let text = self.take(at);
                self.text(from, text);
                self.take(len);
                self.text_ended = true;
                true
            }
            (_, Some((at, len))) => {
                // White space before a call does not belong to the text.
                let end = self.held[..at].trim_end().len();
                let text = self.take(end);
                self.text(from, text);
                self.begin_call(at - end + len)
            }
            _ if tail.is_empty() && lead.is_empty() => {
                let text = self.take(self.held.len());
                self.text(from, text);
                false
            }
            _ => {
                let end = self.held.len() - partial(&self.held, lead).max(partial(&self.held, tail));
                let ready = self.take(self.held[..end].trim_end().len());
                self.text(from, ready);
                false
            }
        }
    }

    /// Takes the rest of the text before the name, the name, and the text after it.
    fn in_name(&mut self) -> bool {
        let (before, between) = self.syntax.map_or(("", ""), |syntax| (split(syntax.before).1, syntax.between));
        let (mut matched, name_at) = match_with_placeholders(&self.held, before, "");
        if matches!(matched, TagMatch::There) {
            let fits = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
            let rest = &self.held[name_at..];
            let len = rest.find(|c| !fits(c)).unwrap_or(rest.len());
            if len == rest.len() && len <= MAX_NAME {
                return false;
            }
            let (name, rest) = rest.split_at(len);
            let end;
            (matched, end) = if name.is_empty() { (TagMatch::Missing, 0) } else { match_with_placeholders(rest, between, name) };
            if matches!(matched, TagMatch::There) {
                let name = name.to_owned();
                self.take(name_at + name.len() + end);
                let parameters = self.parameters.iter().find(|(function, _)| *function == name);
                self.called = parameters.map(|(_, parameters)| parameters.clone()).unwrap_or_default();
                self.pieces.push(Piece::CallStart { call: self.calls, name });
                self.unsure.clear();
                self.calls += 1;
                return self.turn(match self.syntax.map(|syntax| syntax.arguments) {
                    Some(Arguments::Tagged(_)) => ParserState::Parameters { first: true, seen: 0 },
                    Some(Arguments::Python) => ParserState::Python { first: true, scan: Scan::default() },
                    Some(Arguments::Notated(_)) => ParserState::Notated { first: true, progress: MemberScan::default() },
                    Some(Arguments::Json) | None => ParserState::Arguments(Nesting::default()),
                });
            }
        }
        match matched {
            TagMatch::There | TagMatch::Open => false,
            // This is no call, so the presumed beginning of the first call is text.
            TagMatch::Missing if self.calls == 0 => {
                let text = std::mem::take(&mut self.unsure);
                self.text(self.position - text.chars().count(), text);
                self.turn(ParserState::Text)
            }
            TagMatch::Missing => self.turn(ParserState::Done),
        }
    }

    fn in_arguments(&mut self, mut nesting: Nesting) -> bool {
        let end = self.held.bytes().position(|byte| nesting.step(byte)).map(|at| at + 1);
        let piece = self.take(end.unwrap_or(self.held.len()));
        if !piece.is_empty() {
            self.pieces.push(Piece::Arguments { call: self.calls - 1, text: piece });
        }
        self.state = if end.is_some() { ParserState::AfterCall } else { ParserState::Arguments(nesting) };
        end.is_some()
    }

    /// Takes an argument once its tag is closed.
    fn in_parameters(&mut self, first: bool, seen: usize) -> bool {
        let Some(tags) = self.syntax.and_then(Syntax::tagged) else { return self.turn(ParserState::Done) };
        let space = self.held.len() - self.held.trim_start().len();
        match match_tag(&self.held[space..], tags.before) {
            TagMatch::There => {}
            TagMatch::Open => return false,
            TagMatch::Missing => {
                self.end_arguments(first);
                return self.turn(ParserState::AfterCall);
            }
        }
        let key_at = space + tags.before.len();
        // The tag after the key: where it begins, where it ends, and whether a string follows it.
        let found = |mid: &'static str, is_text: bool| {
            let (mid, after) = (mid.trim_end(), &self.held[key_at..]);
            let fixed = split(mid).0;
            after.match_indices(fixed).find_map(|(at, _)| match match_with_placeholders(&after[at..], mid, "") {
                (TagMatch::There, len) => Some((key_at + at, len, is_text)),
                _ => None,
            })
        };
        let nearest = [found(tags.text, true), found(tags.json, false)].into_iter().flatten().min_by_key(|mid| (mid.0, !mid.2));
        let Some((key_end, len, is_text)) = nearest else { return false };
        let is_text = if tags.text == tags.json { None } else { Some(is_text) };
        let value_at = key_end + len;
        let mut from = value_at.max(seen.saturating_sub(tags.close().len()));
        while !self.held.is_char_boundary(from) {
            from -= 1;
        }
        let Some(value_end) = self.held[from..].find(tags.close()).map(|at| at + from) else {
            self.state = ParserState::Parameters { first, seen: self.held.len() };
            return false;
        };
        let (key, value) = (&self.held[key_at..key_end], tags.inside(&self.held[value_at..value_end]));
        let (open, value) = (if first { "{" } else { ", " }, self.called.value(key, value, is_text));
        let text = format!("{open}{}: {value}", Value::from(key));
        self.take(value_end + tags.close().len());
        self.pieces.push(Piece::Arguments { call: self.calls - 1, text });
        self.turn(ParserState::Parameters { first: false, seen: 0 })
    }

    /// Takes an argument once its value has ended.
    fn in_python(&mut self, first: bool, mut scan: Scan) -> bool {
        let separators = |c: char| c.is_whitespace() || (c == ',' && !first);
        let key_at = self.held.len() - self.held.trim_start_matches(separators).len();
        let rest = &self.held[key_at..];
        if rest.starts_with(')') {
            self.take(key_at);
            self.end_arguments(first);
            return self.turn(ParserState::AfterCall);
        }
        let key = rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default();
        match rest.as_bytes().get(key.len()) {
            None => return false,
            Some(b'=') if !key.is_empty() => {}
            Some(_) => return self.turn(ParserState::Done),
        }
        let value = &rest[key.len() + 1..];
        let Some(end) = scan.end(value) else {
            self.state = ParserState::Python { first, scan };
            return false;
        };
        let open = if first { "{" } else { ", " };
        let text = format!("{open}{}: {}", Value::from(key), literal::json(&value[..end]));
        let len = key_at + key.len() + 1 + end;
        self.take(len);
        self.pieces.push(Piece::Arguments { call: self.calls - 1, text });
        self.turn(ParserState::Python { first: false, scan: Scan::default() })
    }

    /// Takes an argument in the family's own notation once its value has ended.
    fn in_notated(&mut self, first: bool, mut progress: MemberScan) -> bool {
        let Some(Arguments::Notated(notation)) = self.syntax.map(|syntax| syntax.arguments) else { return self.turn(ParserState::Done) };
        match progress.next(notation, &self.held) {
            notated::NextMember::Open => {
                self.state = ParserState::Notated { first, progress };
                false
            }
            notated::NextMember::Member(len) => {
                let member = self.take(len);
                match notated::member(notation, &member, &self.called) {
                    Some((key, value)) => {
                        let text = format!("{}{}: {value}", if first { "{" } else { ", " }, Value::from(key));
                        self.pieces.push(Piece::Arguments { call: self.calls - 1, text });
                        self.turn(ParserState::Notated { first: false, progress: MemberScan::default() })
                    }
                    None => self.turn(ParserState::Notated { first, progress: MemberScan::default() }),
                }
            }
            notated::NextMember::End => {
                self.end_arguments(first);
                self.turn(ParserState::AfterCall)
            }
        }
    }

    pub(super) fn end_arguments(&mut self, first: bool) {
        let text = if first { "{}" } else { "}" };
        self.pieces.push(Piece::Arguments { call: self.calls - 1, text: text.into() });
    }

    fn after_call(&mut self) -> bool {
        let Some(syntax) = self.syntax.filter(|syntax| syntax.repeats()) else { return self.turn(ParserState::Done) };
        // White space may stand between the tags of two calls.
        let mut at = 0;
        for (tag, may_lack) in [(syntax.extra, true), (syntax.after, false), (syntax.separator, false), (split(syntax.before).0, false)] {
            let rest = &self.held[at..];
            let trimmed = rest.trim_start();
            match match_with_placeholders(trimmed, tag.trim_start(), "") {
                (TagMatch::There, len) => at += rest.len() - trimmed.len() + len,
                (TagMatch::Open, _) => return false,
                (TagMatch::Missing, _) if may_lack => {}
                (TagMatch::Missing, _) => return self.turn(ParserState::Done),
            }
        }
        let rest = self.held[at..].trim_start();
        if rest.is_empty() {
            return false;
        }
        self.take(self.held.len() - rest.len());
        self.turn(ParserState::Name)
    }
}
