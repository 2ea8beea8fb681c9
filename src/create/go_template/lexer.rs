//! Splits a template of Go's into texts and actions, and actions into tokens.

use super::error::GoTemplateError;

/// A part of a template.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    Text(String),
    Action(Vec<Token>, usize),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Token {
    Word(String),
    Dot,
    /// `.A.B`. `joined`: nothing separates it from the token before, as in `(f x).A`.
    Field {
        names: Vec<String>,
        joined: bool,
    },
    /// A variable without `$`, and its fields.
    Variable(String, Vec<String>),
    Text(String),
    Number(String),
    Pipe,
    Comma,
    /// `=`
    Set,
    /// `:=`
    Declare,
    Open,
    Close,
}

/// The most actions of a template.
const MAX_ACTIONS: usize = 4096;

fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n')
}

pub fn lex(source: &str) -> Result<Vec<Piece>, GoTemplateError> {
    let (mut pieces, mut rest, mut line, mut trims) = (Vec::new(), source, 1, false);
    while let Some(at) = rest.find("{{") {
        let (mut text, inside) = (&rest[..at], &rest[at + 2..]);
        let next = line + lines(text);
        if trims {
            text = text.trim_start_matches(is_space);
        }
        let trimmed_before = inside.strip_prefix('-').filter(|after| after.starts_with(is_space));
        if trimmed_before.is_some() {
            text = text.trim_end_matches(is_space);
        }
        push_text(&mut pieces, text);
        line = next;
        let mut action = Action { rest: trimmed_before.unwrap_or(inside), line };
        let tokens = action.tokens()?;
        trims = action.trims_after()?;
        if let Some(tokens) = tokens {
            pieces.push(Piece::Action(tokens, line));
        }
        if pieces.len() > 2 * MAX_ACTIONS {
            return Err(GoTemplateError::new(line, format!("the template has more than {MAX_ACTIONS} actions")));
        }
        (rest, line) = (action.rest, action.line);
    }
    push_text(&mut pieces, if trims { rest.trim_start_matches(is_space) } else { rest });
    Ok(pieces)
}

fn lines(text: &str) -> usize {
    text.bytes().filter(|byte| *byte == b'\n').count()
}

fn push_text(pieces: &mut Vec<Piece>, text: &str) {
    if !text.is_empty() {
        pieces.push(Piece::Text(text.to_owned()));
    }
}

/// The rest of the source, from inside an action.
struct Action<'a> {
    rest: &'a str,
    line: usize,
}

impl<'a> Action<'a> {
    fn fault<T>(&self, what: impl Into<String>) -> Result<T, GoTemplateError> {
        Err(GoTemplateError::new(self.line, what))
    }

    fn skip(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.line += lines(taken);
        self.rest = rest;
        taken
    }

    fn take_while(&mut self, is_part: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        self.skip(end)
    }

    /// Reads up to `}}`. `None`: the action is a comment.
    fn tokens(&mut self) -> Result<Option<Vec<Token>>, GoTemplateError> {
        let opening = self.rest.trim_start_matches(is_space);
        if opening.starts_with("/*") {
            let Some(end) = self.rest.find("*/") else { return self.fault("the comment does not end: expected `*/`") };
            self.skip(end + 2);
            self.take_while(is_space);
            // `- }}` keeps its sign for `trims_after`.
            return match self.ends() {
                true => Ok(None),
                false => self.fault("expected `}}` after the comment"),
            };
        }
        let (mut tokens, mut spaced): (Vec<Token>, bool) = (Vec::new(), true);
        loop {
            spaced |= !self.take_while(is_space).is_empty();
            if self.ends() && (spaced || !self.rest.starts_with('-')) {
                return Ok(Some(tokens));
            }
            let joined = !spaced && tokens.last() == Some(&Token::Close);
            tokens.push(self.token(joined)?);
            spaced = false;
        }
    }

    /// Whether the action ends here.
    fn ends(&self) -> bool {
        self.rest.starts_with("}}") || self.rest.starts_with("-}}")
    }

    /// Reads the end of the action. Returns whether it trims the text after it.
    fn trims_after(&mut self) -> Result<bool, GoTemplateError> {
        let trims = self.rest.starts_with('-');
        self.skip(if trims { 3 } else { 2 });
        Ok(trims)
    }

    fn token(&mut self, joined: bool) -> Result<Token, GoTemplateError> {
        let Some(first) = self.rest.chars().next() else { return self.fault("the action does not end: expected `}}`") };
        let single = match first {
            '|' => Some(Token::Pipe),
            ',' => Some(Token::Comma),
            '=' => Some(Token::Set),
            '(' => Some(Token::Open),
            ')' => Some(Token::Close),
            _ => None,
        };
        if let Some(token) = single {
            self.skip(1);
            return Ok(token);
        }
        match first {
            ':' if self.rest.starts_with(":=") => {
                self.skip(2);
                Ok(Token::Declare)
            }
            '.' => {
                let names = self.fields();
                if names.is_empty() {
                    self.skip(1);
                    return Ok(Token::Dot);
                }
                Ok(Token::Field { names, joined })
            }
            '$' => {
                self.skip(1);
                let name = self.take_while(is_word).to_owned();
                Ok(Token::Variable(name, self.fields()))
            }
            '"' => self.quoted(),
            '`' => {
                self.skip(1);
                let Some(end) = self.rest.find('`') else { return self.fault("the text in back quotes does not end") };
                let text = self.skip(end).to_owned();
                self.skip(1);
                Ok(Token::Text(text))
            }
            c if c.is_ascii_digit() || matches!(c, '-' | '+') => self.number(),
            c if is_word(c) => Ok(Token::Word(self.take_while(is_word).to_owned())),
            c => self.fault(format!("the character {c:?} is not expected in an action")),
        }
    }

    /// Reads `.A.B`.
    fn fields(&mut self) -> Vec<String> {
        let mut names = Vec::new();
        while self.rest.strip_prefix('.').is_some_and(|after| after.starts_with(|c: char| c.is_alphabetic() || c == '_')) {
            self.skip(1);
            names.push(self.take_while(is_word).to_owned());
        }
        names
    }

    fn number(&mut self) -> Result<Token, GoTemplateError> {
        let sign = self.rest.starts_with(['-', '+']);
        let digits =
            self.rest[usize::from(sign)..].find(|c: char| !is_word(c) && c != '.').map_or(self.rest.len(), |end| end + usize::from(sign));
        let text = self.skip(digits);
        match text.parse::<i64>() {
            Ok(number) => Ok(Token::Number(number.to_string())),
            Err(_) => self.fault(format!("{text:?} is not a decimal integer, the only kind of number here")),
        }
    }

    fn quoted(&mut self) -> Result<Token, GoTemplateError> {
        self.skip(1);
        let mut text = String::new();
        loop {
            let Some(c) = self.rest.chars().next().filter(|c| *c != '\n') else { return self.fault("the text in quotes does not end") };
            self.skip(c.len_utf8());
            match c {
                '"' => return Ok(Token::Text(text)),
                '\\' => text.push(self.escape()?),
                c => text.push(c),
            }
        }
    }

    fn escape(&mut self) -> Result<char, GoTemplateError> {
        let Some(c) = self.rest.chars().next() else { return self.fault("the text in quotes does not end") };
        self.skip(c.len_utf8());
        let digits = match c {
            'n' => return Ok('\n'),
            't' => return Ok('\t'),
            'r' => return Ok('\r'),
            '\\' | '"' | '\'' => return Ok(c),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => return self.fault(format!("`\\{}` is not an escape that is supported here", c.escape_debug())),
        };
        let hex = self.rest.get(..digits).filter(|hex| hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let code = hex.and_then(|hex| u32::from_str_radix(hex, 16).ok());
        // `\x` gives a byte, which above 7F is no character.
        let code = code.filter(|code| c != 'x' || *code < 0x80);
        let Some(character) = code.and_then(char::from_u32) else { return self.fault(format!("`\\{c}` does not give a character")) };
        self.skip(digits);
        Ok(character)
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}
