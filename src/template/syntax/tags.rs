//! Reads the tokens inside a tag.

use std::sync::Arc;

use num_bigint::BigInt;

use super::chars::is_word;
use super::escapes::unescape;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// Text between tags.
    Text(String),
    PrintStart,
    PrintEnd,
    TagStart,
    TagEnd,
    Name(Arc<str>),
    String(String),
    Int(BigInt),
    Float(f64),
    Sign(&'static str),
    End,
}

impl Token {
    /// The token as errors show it.
    pub fn shown(&self) -> String {
        match self {
            Self::Text(_) => "text".into(),
            Self::PrintStart => "`{{`".into(),
            Self::PrintEnd => "the end of the expression".into(),
            Self::TagStart => "`{%`".into(),
            Self::TagEnd => "the end of the tag".into(),
            Self::Name(name) => format!("`{name}`"),
            Self::String(_) => "a string".into(),
            Self::Int(_) | Self::Float(_) => "a number".into(),
            Self::Sign(sign) => format!("`{sign}`"),
            Self::End => "the end of the template".into(),
        }
    }
}

const SIGNS: [&str; 26] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<", "=", ".", ":", "|", ",", ";",
];

/// The most decimal digits that Python reads as an integer.
const MAX_DIGITS: usize = 4300;

/// The token at the start of `rest`, which begins with no white space, and the token's length [bytes]. A number after a dot has no
/// fraction.
pub(super) fn token(rest: &str, after_dot: bool) -> Result<(Token, usize), String> {
    let first = rest.chars().next().unwrap_or_default();
    match first {
        '0'..='9' => number(rest, after_dot),
        '\'' | '"' => string(rest, first),
        c if is_word(c) => {
            let length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            Ok((Token::Name(rest[..length].into()), length))
        }
        c => match SIGNS.into_iter().find(|sign| rest.starts_with(sign)) {
            Some(sign) => Ok((Token::Sign(sign), sign.len())),
            None => Err(format!("unexpected character `{c}`")),
        },
    }
}

fn string(rest: &str, quote: char) -> Result<(Token, usize), String> {
    let bytes = rest.as_bytes();
    let mut at = 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            byte if char::from(byte) == quote => return Ok((Token::String(unescape(&rest[1..at])?), at + 1)),
            _ => at += 1,
        }
    }
    Err(format!("a string has no end: expected `{quote}`"))
}

/// The length of a run of digits, which may have single underscores between them. `first`: an underscore may come first.
fn digits(text: &str, radix: u32, first: bool) -> usize {
    let (mut end, mut may_join) = (0, first);
    for (at, c) in text.char_indices() {
        match c {
            c if c.is_digit(radix) => (end, may_join) = (at + 1, true),
            '_' if may_join => may_join = false,
            _ => break,
        }
    }
    end
}

fn number(rest: &str, after_dot: bool) -> Result<(Token, usize), String> {
    let whole = digits(rest, 10, false);
    if !after_dot && let Some(length) = float(rest, whole) {
        let text = rest[..length].replace('_', "");
        return text.parse().map(|number| (Token::Float(number), length)).map_err(|_| format!("`{text}` is not a number"));
    }
    let prefix = rest.get(..2).unwrap_or_default().to_ascii_lowercase();
    let radix = [("0b", 2), ("0o", 8), ("0x", 16)].into_iter().find(|(start, _)| *start == prefix).map_or(10, |(_, radix)| radix);
    let (skip, length) = if radix == 10 { (0, whole) } else { (2, digits(&rest[2..], radix, true)) };
    if radix != 10 && length > 0 {
        return integer(&rest[2..2 + length], radix).map(|token| (token, 2 + length));
    }
    // Zeros before other digits are a number of their own, and the parser refuses two numbers in a row.
    let zeros = rest[..whole].starts_with('0') && rest[..whole].bytes().any(|byte| (b'1'..=b'9').contains(&byte));
    let length = if zeros || skip > 0 { rest.bytes().take_while(|byte| *byte == b'0').count() } else { whole };
    integer(&rest[..length], 10).map(|token| (token, length))
}

fn integer(text: &str, radix: u32) -> Result<Token, String> {
    let text = text.replace('_', "");
    if text.len() > MAX_DIGITS {
        return Err(format!("a number has {} digits, expected at most {MAX_DIGITS}", text.len()));
    }
    BigInt::parse_bytes(text.as_bytes(), radix).map(Token::Int).ok_or_else(|| format!("`{text}` is not a number"))
}

/// The length of a number with a fraction or an exponent. Its whole part has `whole` bytes.
fn float(rest: &str, whole: usize) -> Option<usize> {
    let fraction = rest[whole..].strip_prefix('.').map(|rest| digits(rest, 10, false)).filter(|length| *length > 0);
    let mantissa = whole + fraction.map_or(0, |length| length + 1);
    let exponent = rest[mantissa..].strip_prefix(['e', 'E']).and_then(|tail| {
        let sign = usize::from(tail.starts_with(['+', '-']));
        Some(digits(&tail[sign..], 10, false)).filter(|length| *length > 0).map(|length| 1 + sign + length)
    });
    (fraction.is_some() || exponent.is_some()).then(|| mantissa + exponent.unwrap_or(0))
}
