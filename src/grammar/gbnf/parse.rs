//! Parses the text of a GBNF grammar.

use std::collections::HashMap;

use super::chars::Chars;
use super::expr::{Expr, Grammar};

/// The deepest nesting of parentheses. Later passes recurse as deep.
const MAX_DEPTH: usize = 64;
/// The most nodes of all rules together.
const MAX_NODES: usize = 20_000;
/// The highest bound of a repetition.
const MAX_REPEAT: u32 = 10_000;

/// # Errors
/// The grammar is wrong. The text says why and in which line.
pub fn parse(text: &str) -> Result<Grammar, String> {
    let mut parser = Parser { text, at: 0, numbers: HashMap::new(), names: Vec::new(), bodies: Vec::new(), used: Vec::new(), nodes: 0 };
    parser.number("root");
    parser.grammar()?;
    parser.finish()
}

struct Parser<'a> {
    text: &'a str,
    /// The next byte.
    at: usize,
    numbers: HashMap<String, usize>,
    names: Vec<String>,
    bodies: Vec<Option<Expr>>,
    /// The position at which each rule is first named.
    used: Vec<usize>,
    nodes: usize,
}

impl Parser<'_> {
    fn grammar(&mut self) -> Result<(), String> {
        self.space(true);
        while self.peek().is_some() {
            let start = self.at;
            let name = self.name().ok_or_else(|| self.error(start, "expected the name of a rule"))?;
            self.space(false);
            if !self.take("::=") {
                return Err(self.error(self.at, &format!("expected `::=` after `{name}`")));
            }
            self.space(true);
            let body = self.alternatives(0)?;
            let number = self.number(&name);
            if self.bodies[number].replace(body).is_some() {
                return Err(self.error(start, &format!("the rule `{name}` is defined a second time")));
            }
            if !matches!(self.peek(), None | Some('\n' | '\r')) {
                return Err(self.error(self.at, "expected the end of the line, `|` or another item"));
            }
            self.space(true);
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Grammar, String> {
        if self.bodies[0].is_none() {
            return Err("the grammar has no rule `root`, which it must begin with".into());
        }
        let mut bodies = Vec::with_capacity(self.bodies.len());
        for (number, body) in std::mem::take(&mut self.bodies).into_iter().enumerate() {
            bodies.push(body.ok_or_else(|| self.error(self.used[number], &format!("there is no rule `{}`", self.names[number])))?);
        }
        Ok(Grammar { names: self.names, bodies })
    }

    fn alternatives(&mut self, depth: usize) -> Result<Expr, String> {
        if depth > MAX_DEPTH {
            return Err(self.error(self.at, &format!("parentheses are nested deeper than {MAX_DEPTH} levels")));
        }
        let mut members = vec![self.sequence(depth)?];
        loop {
            if depth == 0 {
                self.leading_bar();
            }
            if !self.take("|") {
                break;
            }
            self.space(true);
            members.push(self.sequence(depth)?);
        }
        Ok(Expr::alt(members))
    }

    /// Skips line breaks if the next line continues with `|`.
    fn leading_bar(&mut self) {
        let before = self.at;
        self.space(true);
        if self.peek() != Some('|') {
            self.at = before;
        }
    }

    fn sequence(&mut self, depth: usize) -> Result<Expr, String> {
        let mut items = Vec::new();
        loop {
            self.space(depth > 0);
            let start = self.at;
            let Some(item) = self.item(depth)? else { return Ok(Expr::seq(items)) };
            let item = self.repeated(item)?;
            self.nodes += item.size();
            if self.nodes > MAX_NODES {
                return Err(self.error(start, &format!("the grammar has more than {MAX_NODES} parts")));
            }
            items.push(item);
        }
    }

    /// Parses an item. `None` if no item begins here.
    fn item(&mut self, depth: usize) -> Result<Option<Expr>, String> {
        let start = self.at;
        Ok(Some(match self.peek() {
            Some('"') => self.literal()?,
            Some('[') => Expr::Chars(self.class()?),
            Some('.') => {
                self.at += 1;
                Expr::Chars(Chars::all())
            }
            Some('(') => {
                self.at += 1;
                let inner = self.alternatives(depth + 1)?;
                self.space(true);
                if !self.take(")") {
                    return Err(self.error(start, "this parenthesis is not closed"));
                }
                inner
            }
            Some('<' | '!') => return Err(self.error(start, "tokens (`<…>`) are not supported in a grammar: write their text")),
            Some('|' | ')' | '\n' | '\r') | None => return Ok(None),
            Some(found) => {
                let name = self.name().ok_or_else(|| self.error(start, &format!("`{}` does not begin an item", found.escape_default())))?;
                let number = self.number(&name);
                self.used[number] = self.used[number].min(start);
                Expr::Rule(number)
            }
        }))
    }

    fn repeated(&mut self, item: Expr) -> Result<Expr, String> {
        let mut item = item;
        loop {
            self.space(false);
            let start = self.at;
            let (min, max) = match self.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => self.bounds()?,
                _ => return Ok(item),
            };
            self.at += 1;
            if item.depth() > 2 * MAX_DEPTH {
                return Err(self.error(start, "there are too many repetitions of one item"));
            }
            item = item.repeat(min, max);
        }
    }

    /// Parses `{m}`, `{m,}`, `{,n}` or `{m,n}`, including the closing brace.
    fn bounds(&mut self) -> Result<(u32, Option<u32>), String> {
        let start = self.at;
        let length = self.text[start..].find('}').ok_or_else(|| self.error(start, "this brace is not closed"))?;
        let inner = &self.text[start + 1..start + length];
        let number = |text: &str| match text.trim().parse() {
            Ok(number) if number <= MAX_REPEAT => Ok(number),
            _ => Err(self.error(start, &format!("a repetition has two bounds from 0 to {MAX_REPEAT}, as in {{1,5}}"))),
        };
        let (min, max) = match inner.split_once(',') {
            None => (number(inner)?, Some(number(inner)?)),
            Some((min, max)) => {
                let max = if max.trim().is_empty() { None } else { Some(number(max)?) };
                (if min.trim().is_empty() { 0 } else { number(min)? }, max)
            }
        };
        if max.is_some_and(|max| max < min) {
            return Err(self.error(start, "the lower bound of a repetition is above the upper one"));
        }
        self.at += length;
        Ok((min, max))
    }

    fn literal(&mut self) -> Result<Expr, String> {
        let start = self.at;
        self.at += 1;
        let mut items = Vec::new();
        loop {
            match self.peek() {
                None | Some('\n') => return Err(self.error(start, "this text is not closed")),
                Some('"') => break,
                Some(_) => items.push(Expr::Chars(Chars::one(self.character()?))),
            }
        }
        self.at += 1;
        Ok(Expr::seq(items))
    }

    fn class(&mut self) -> Result<Chars, String> {
        let start = self.at;
        self.at += 1;
        let negated = self.take("^");
        let mut ranges = Vec::new();
        loop {
            match self.peek() {
                None | Some('\n') => return Err(self.error(start, "this bracket is not closed")),
                Some(']') => break,
                Some(_) => {}
            }
            let first = self.character()?;
            let ranged = self.text[self.at..].starts_with('-') && !self.text[self.at..].starts_with("-]");
            let last = if ranged {
                self.at += 1;
                self.character()?
            } else {
                first
            };
            if last < first {
                return Err(self.error(start, "the ends of a range are in the wrong order"));
            }
            ranges.push((first.into(), last.into()));
        }
        self.at += 1;
        let chars = Chars::of(ranges);
        let chars = if negated { chars.complement() } else { chars };
        if chars.is_empty() {
            return Err(self.error(start, "these brackets match no character"));
        }
        Ok(chars)
    }

    /// Parses the next character of a text or a class, which may be escaped.
    fn character(&mut self) -> Result<char, String> {
        let start = self.at;
        let mut chars = self.text[start..].chars();
        let end = || self.error(start, "the grammar ends inside a text");
        let c = chars.next().ok_or_else(end)?;
        if c != '\\' {
            self.at += c.len_utf8();
            return Ok(c);
        }
        let escape = chars.next().ok_or_else(end)?;
        self.at += 1 + escape.len_utf8();
        let digits = match escape {
            'n' => return Ok('\n'),
            'r' => return Ok('\r'),
            't' => return Ok('\t'),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            '"' | '\\' | '[' | ']' | '-' | '^' | '/' | '\'' => return Ok(escape),
            _ => return Err(self.error(start, &format!("`\\{}` is not an escape", escape.escape_default()))),
        };
        let code = self.text.get(self.at..self.at + digits).filter(|code| code.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let code = code.and_then(|code| u32::from_str_radix(code, 16).ok()).and_then(char::from_u32);
        self.at += digits;
        code.ok_or_else(|| self.error(start, &format!("`\\{escape}` needs {digits} hexadecimal digits that name a character")))
    }

    fn name(&mut self) -> Option<String> {
        let rest = &self.text[self.at..];
        let name = &rest[..rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_')).unwrap_or(rest.len())];
        self.at += name.len();
        (!name.is_empty()).then(|| name.to_owned())
    }

    /// The number of the rule `name`, which may be defined further down.
    fn number(&mut self, name: &str) -> usize {
        let next = self.names.len();
        let number = *self.numbers.entry(name.to_owned()).or_insert(next);
        if number == next {
            self.names.push(name.to_owned());
            self.bodies.push(None);
            self.used.push(usize::MAX);
        }
        number
    }

    /// Skips spaces and comments, and also line breaks if `lines` is set.
    fn space(&mut self, lines: bool) {
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' => self.at += 1,
                '\n' | '\r' if lines => self.at += 1,
                '#' => self.at += self.text[self.at..].find('\n').unwrap_or(self.text.len() - self.at),
                _ => break,
            }
        }
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn take(&mut self, text: &str) -> bool {
        let found = self.text[self.at..].starts_with(text);
        self.at += if found { text.len() } else { 0 };
        found
    }

    fn error(&self, at: usize, what: &str) -> String {
        let line = 1 + self.text.as_bytes()[..at.min(self.text.len())].iter().filter(|byte| **byte == b'\n').count();
        format!("line {line} of the grammar: {what}")
    }
}
