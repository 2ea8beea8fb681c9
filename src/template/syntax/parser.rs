//! [`Parser`]: a cursor over tokens, with the helpers that expressions and statements share.

use std::sync::Arc;

use super::ast::{Statement, Text};
use super::lexer::{Placed, tokens};
use super::tags::Token;
use crate::failure::{Fault, Kind, Outcome};

/// The deepest nesting of expressions and blocks. Parser and interpreter recurse. Python's own limits are lower.
const MAX_DEPTH: usize = 200;

/// Tells which filters and tests exist.
pub(crate) struct Known {
    pub filter: fn(&str) -> bool,
    pub test: fn(&str) -> bool,
}

/// Names that make a macro take more than its parameters.
pub(super) const SPECIAL: [&str; 3] = ["caller", "varargs", "kwargs"];

pub(super) struct Parser {
    tokens: Vec<Placed>,
    at: usize,
    depth: usize,
    /// The number of loops around the statement, within its macro.
    pub loops: usize,
    known: Known,
    /// Filters and tests that do not exist, with their lines. Jinja permits them if a condition decides whether they run.
    pub unknown: Vec<(String, u32)>,
    /// The [`SPECIAL`] names that have been read so far.
    pub special: Vec<Text>,
    /// The names of the blocks so far.
    pub blocks: Vec<Text>,
}

/// Parses a template into its tree.
pub(crate) fn parse(source: &str, known: Known) -> Outcome<Vec<Statement>> {
    let tokens = tokens(source)?;
    let (unknown, special, blocks) = (Vec::new(), Vec::new(), Vec::new());
    let mut parser = Parser { tokens, at: 0, depth: 0, loops: 0, known, unknown, special, blocks };
    let body = parser.statements(&[])?;
    match parser.unknown.into_iter().next() {
        Some((text, line)) => Err(Fault::new(Kind::Syntax, text).at(line)),
        None => Ok(body),
    }
}

impl Parser {
    pub fn peek(&self) -> &Token {
        &self.tokens[self.at].0
    }

    pub fn look(&self) -> &Token {
        &self.tokens[(self.at + 1).min(self.tokens.len() - 1)].0
    }

    pub fn line(&self) -> u32 {
        self.tokens[self.at].1
    }

    pub fn next(&mut self) -> Token {
        let token = self.peek().clone();
        self.at = (self.at + 1).min(self.tokens.len() - 1);
        token
    }

    pub fn fault(&self, text: impl Into<String>) -> Fault {
        Fault::new(Kind::Syntax, text.into()).at(self.line())
    }

    pub fn unexpected(&self, wanted: &str) -> Fault {
        self.fault(format!("unexpected {}, expected {wanted}", self.peek().shown()))
    }

    pub fn is_sign(&self, sign: &str) -> bool {
        matches!(self.peek(), Token::Sign(found) if *found == sign)
    }

    pub fn is_word(&self, word: &str) -> bool {
        matches!(self.peek(), Token::Name(name) if **name == *word)
    }

    pub fn looks_at_word(&self, word: &str) -> bool {
        matches!(self.look(), Token::Name(name) if **name == *word)
    }

    pub fn skip_sign(&mut self, sign: &str) -> bool {
        let found = self.is_sign(sign);
        if found {
            self.next();
        }
        found
    }

    pub fn skip_word(&mut self, word: &str) -> bool {
        let found = self.is_word(word);
        if found {
            self.next();
        }
        found
    }

    pub fn expect_sign(&mut self, sign: &str) -> Outcome<()> {
        if self.skip_sign(sign) { Ok(()) } else { Err(self.unexpected(&format!("`{sign}`"))) }
    }

    pub fn expect_word(&mut self, word: &str) -> Outcome<()> {
        if self.skip_word(word) { Ok(()) } else { Err(self.unexpected(&format!("`{word}`"))) }
    }

    pub fn expect(&mut self, token: &Token) -> Outcome<()> {
        if self.peek() == token {
            self.next();
            return Ok(());
        }
        Err(self.unexpected(&token.shown()))
    }

    pub fn name(&mut self) -> Outcome<Text> {
        match self.peek() {
            Token::Name(name) => {
                let name = Arc::clone(name);
                self.next();
                Ok(name)
            }
            _ => Err(self.unexpected("a name")),
        }
    }

    /// Parses a name that may be assigned to.
    pub fn target_name(&mut self) -> Outcome<Text> {
        let line = self.line();
        let name = self.name()?;
        if matches!(&*name, "true" | "false" | "none" | "True" | "False" | "None") {
            return Err(Fault::new(Kind::Syntax, format!("cannot assign to `{name}`")).at(line));
        }
        Ok(name)
    }

    /// Runs a parser one level deeper.
    pub fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Outcome<T>) -> Outcome<T> {
        if self.depth == MAX_DEPTH {
            return Err(self.fault(format!("the template is nested too deeply, expected at most {MAX_DEPTH} levels")));
        }
        self.depth += 1;
        let result = parse(self);
        self.depth -= 1;
        result
    }

    pub fn note_filter(&mut self, name: &str, line: u32) {
        if !(self.known.filter)(name) {
            self.unknown.push((format!("there is no filter `{name}`"), line));
        }
    }

    pub fn note_test(&mut self, name: &str, line: u32) {
        if !(self.known.test)(name) {
            self.unknown.push((format!("there is no test `{name}`"), line));
        }
    }
}
