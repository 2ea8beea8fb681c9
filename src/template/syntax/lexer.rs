//! Splits a template's text into tokens, with Jinja's control of white space: `trim_blocks`, `lstrip_blocks`, and the signs `-` and `+` in
//! tags.

use super::chars::is_space;
use super::tags::{self, Token};
use crate::failure::{Fault, Kind, Outcome};

/// The longest tag without the contents of its string literals [bytes]. The longest one in 51 real templates has 299 bytes. The interpreter
/// recurses once per operator, filter or attribute of an expression, and so does dropping the expression's tree. A literal is one token of
/// any length: some templates carry a whole system message in one.
pub(crate) const MAX_TAG: usize = 4 << 10;

/// A token and its line, counted from 1.
pub(super) type Placed = (Token, u32);

pub(super) fn tokens(source: &str) -> Outcome<Vec<Placed>> {
    Ok(measured(source)?.0)
}

/// The tokens, and the length of the longest tag without the contents of its strings.
pub(super) fn measured(source: &str) -> Outcome<(Vec<Placed>, usize)> {
    let mut source = source.replace("\r\n", "\n").replace('\r', "\n");
    // Jinja drops the last line break of a template.
    if source.ends_with('\n') {
        source.pop();
    }
    let mut lexer = Lexer { source: &source, at: 0, line: 1, starts_line: true, longest: 0, tokens: Vec::new() };
    lexer.run()?;
    let line = lexer.line;
    let (mut tokens, longest) = (lexer.tokens, lexer.longest);
    tokens.push((Token::End, line));
    Ok((tokens, longest))
}

struct Lexer<'a> {
    source: &'a str,
    at: usize,
    line: u32,
    /// Whether the last match ended with a line break.
    starts_line: bool,
    /// The length of the longest tag so far.
    longest: usize,
    tokens: Vec<Placed>,
}

fn lines(text: &str) -> u32 {
    text.bytes().filter(|byte| *byte == b'\n').count() as u32
}

impl Lexer<'_> {
    fn run(&mut self) -> Outcome<()> {
        loop {
            let rest = &self.source[self.at..];
            let Some(start) = next_tag(rest) else {
                self.data(rest.to_owned());
                return Ok(());
            };
            let opener = rest.as_bytes()[start + 1];
            let sign = rest[start + 2..].chars().next().filter(|c| matches!(c, '-' | '+'));
            let text = self.stripped(&rest[..start], sign, opener != b'{');
            self.data(text);
            self.line += lines(&rest[..start]);
            self.at += start + 2 + usize::from(sign.is_some());
            match opener {
                b'#' => self.comment()?,
                b'{' => self.tag(Token::PrintStart, Token::PrintEnd, "}}")?,
                _ if let Some(length) = raw_start(&self.source[self.at..]) => self.raw(length)?,
                _ => self.tag(Token::TagStart, Token::TagEnd, "%}")?,
            }
        }
    }

    fn data(&mut self, text: String) {
        if !text.is_empty() {
            self.tokens.push((Token::Text(text), self.line));
        }
    }

    /// The text before a tag with that sign. `is_block`: the tag prints nothing, so white space before the tag on its line is removed.
    fn stripped(&self, text: &str, sign: Option<char>, is_block: bool) -> String {
        if sign == Some('-') {
            return text.trim_end_matches(is_space).to_owned();
        }
        let line = text.rfind('\n').map_or(0, |at| at + 1);
        let is_lone = is_block && sign.is_none() && (line > 0 || self.starts_line) && text[line..].chars().all(is_space);
        if is_lone { text[..line].to_owned() } else { text.to_owned() }
    }

    fn fault(&self, text: String) -> Fault {
        Fault::new(Kind::Syntax, text).at(self.line)
    }

    /// Advances by `length` bytes.
    fn pass(&mut self, length: usize) {
        let passed = &self.source[self.at..self.at + length];
        self.line += lines(passed);
        self.starts_line = passed.ends_with('\n');
        self.at += length;
    }

    fn comment(&mut self) -> Outcome<()> {
        let rest = &self.source[self.at..];
        let end = rest.find("#}").ok_or_else(|| self.fault("a comment has no end: expected `#}`".into()))?;
        let sign = rest[..end].chars().next_back().filter(|c| matches!(c, '-' | '+'));
        self.pass(end + 2 + tail(&rest[end + 2..], sign, true));
        Ok(())
    }

    fn raw(&mut self, start: usize) -> Outcome<()> {
        self.pass(start);
        let rest = &self.source[self.at..];
        let mut from = 0;
        while let Some(at) = rest[from..].find("{%").map(|found| from + found) {
            if let Some((sign, length)) = raw_end(&rest[at + 2..]) {
                let text = self.stripped(&rest[..at], sign, true);
                self.data(text);
                self.pass(at + 2 + length);
                return Ok(());
            }
            from = at + 2;
        }
        Err(self.fault("`raw` has no end: expected `{% endraw %}`".into()))
    }

    /// Reads the tokens of a tag up to its end. Inside brackets, the end does not count.
    fn tag(&mut self, start: Token, end: Token, closer: &str) -> Outcome<()> {
        let line = self.line;
        self.tokens.push((start, line));
        let mut open: Vec<char> = Vec::new();
        // Each end has two characters.
        let mut own_length = 4;
        loop {
            let rest = &self.source[self.at..];
            let sign = rest.chars().next().filter(|c| *c == '-' || (*c == '+' && closer == "%}"));
            let signed = usize::from(sign.is_some());
            if open.is_empty()
                && let Some(behind) = [0, signed].into_iter().find(|skip| rest[*skip..].starts_with(closer))
            {
                check_length(own_length, line)?;
                self.longest = self.longest.max(own_length);
                self.tokens.push((end, self.line));
                let behind_sign = if behind == 0 { None } else { sign };
                self.pass(behind + 2 + tail(&rest[behind + 2..], behind_sign, closer == "%}"));
                return Ok(());
            }
            if rest.is_empty() {
                check_length(own_length, line)?;
                return Err(self.fault(format!("a tag has no end: expected `{closer}`")));
            }
            let blank = rest.find(|c| !is_space(c)).unwrap_or(rest.len());
            if blank > 0 {
                own_length += blank;
                self.pass(blank);
                continue;
            }
            let after_dot = matches!(self.tokens.last(), Some((Token::Sign("."), _)));
            let (token, length) = tags::token(rest, after_dot).map_err(|text| self.fault(text))?;
            if let Token::Sign(sign) = token {
                self.balance(&mut open, sign).or_else(|fault| check_length(own_length, line).and(Err(fault)))?;
            }
            own_length += if matches!(token, Token::String(_)) { 2 } else { length };
            self.tokens.push((token, self.line));
            self.pass(length);
        }
    }

    fn balance(&self, open: &mut Vec<char>, sign: &str) -> Outcome<()> {
        match sign {
            "(" => open.push(')'),
            "[" => open.push(']'),
            "{" => open.push('}'),
            ")" | "]" | "}" => match open.pop() {
                None => return Err(self.fault(format!("unexpected `{sign}`"))),
                Some(wanted) if !sign.starts_with(wanted) => return Err(self.fault(format!("unexpected `{sign}`, expected `{wanted}`"))),
                Some(_) => {}
            },
            _ => {}
        }
        Ok(())
    }
}

fn check_length(length: usize, line: u32) -> Outcome<()> {
    if length <= MAX_TAG {
        return Ok(());
    }
    Err(Fault::new(Kind::Limit, format!("a tag has {length} bytes outside of its strings, expected at most {MAX_TAG}")).at(line))
}

fn next_tag(text: &str) -> Option<usize> {
    let mut from = 0;
    while let Some(at) = text[from..].find('{').map(|found| from + found) {
        if matches!(text.as_bytes().get(at + 1), Some(b'{' | b'%' | b'#')) {
            return Some(at);
        }
        from = at + 1;
    }
    None
}

/// The length of the white space that is removed after the end of a tag [bytes].
fn tail(rest: &str, sign: Option<char>, trims_line_break: bool) -> usize {
    match sign {
        Some('-') => rest.find(|c| !is_space(c)).unwrap_or(rest.len()),
        Some(_) => 0,
        None => usize::from(trims_line_break && rest.starts_with('\n')),
    }
}

/// The length of ` raw %}` after the opening of a tag.
fn raw_start(rest: &str) -> Option<usize> {
    let inner = rest.trim_start_matches(is_space).strip_prefix("raw")?.trim_start_matches(is_space);
    let (sign, behind) = match inner.strip_prefix("-%}") {
        Some(behind) => (Some('-'), behind),
        None => (None, inner.strip_prefix("%}")?),
    };
    Some(rest.len() - behind.len() + tail(behind, sign, false))
}

/// The sign and the length of ` endraw %}` after the opening of a tag.
fn raw_end(rest: &str) -> Option<(Option<char>, usize)> {
    let first = rest.chars().next().filter(|c| matches!(c, '-' | '+'));
    let inner = rest[usize::from(first.is_some())..].trim_start_matches(is_space).strip_prefix("endraw")?.trim_start_matches(is_space);
    let sign = inner.chars().next().filter(|c| matches!(c, '-' | '+'));
    let behind = inner[usize::from(sign.is_some())..].strip_prefix("%}")?;
    Some((first, rest.len() - behind.len() + tail(behind, sign, true)))
}
