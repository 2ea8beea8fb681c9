//! Finds the end of a Python literal while the model writes it, and converts the literal to JSON.

use serde_json::Value;

/// The progress of the search for a literal's end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scan {
    seen: usize,
    depth: u32,
    quote: Option<u8>,
    escaped: bool,
}

impl Scan {
    /// The position of the comma or bracket after the literal with which `text` begins. `None`: the literal may not be complete yet.
    pub(crate) fn end(&mut self, text: &str) -> Option<usize> {
        for (at, byte) in text.bytes().enumerate().skip(self.seen) {
            match (self.quote, byte) {
                _ if self.escaped => self.escaped = false,
                (Some(_), b'\\') => self.escaped = true,
                (Some(quote), _) => self.quote = Some(quote).filter(|quote| *quote != byte),
                (None, b'"' | b'\'') => self.quote = Some(byte),
                (None, b'[' | b'{' | b'(') => self.depth += 1,
                (None, b',' | b')' | b']' | b'}') if self.depth == 0 => return Some(at),
                (None, b')' | b']' | b'}') => self.depth -= 1,
                _ => {}
            }
        }
        self.seen = text.len();
        None
    }
}

/// Converts a literal to JSON. Text that is no literal becomes a string.
pub(crate) fn json(text: &str) -> String {
    let text = text.trim();
    json_if_any(text).unwrap_or_else(|| Value::from(text).to_string())
}

/// Converts text to JSON if it is a literal.
pub(crate) fn json_if_any(text: &str) -> Option<String> {
    let is_json = |text: &str| serde_json::from_str::<Value>(text).is_ok();
    let text = text.trim();
    if is_json(text) {
        return Some(text.to_owned());
    }
    Some(converted(text)).filter(|converted| is_json(converted))
}

fn converted(text: &str) -> String {
    let (mut out, mut chars) = (String::new(), text.chars().peekable());
    while let Some(c) = chars.next() {
        match c {
            '"' | '\'' => {
                let mut string = String::new();
                while let Some(inner) = chars.next().filter(|inner| *inner != c) {
                    match (inner, if inner == '\\' { chars.next() } else { None }) {
                        (_, None) => string.push(inner),
                        (_, Some('n')) => string.push('\n'),
                        (_, Some('t')) => string.push('\t'),
                        (_, Some('r')) => string.push('\r'),
                        (_, Some(mark @ ('\\' | '\'' | '"'))) => string.push(mark),
                        (_, Some(other)) => string.extend(['\\', other]),
                    }
                }
                out.push_str(&Value::from(string).to_string());
            }
            '(' => out.push('['),
            ')' => out.push(']'),
            c if c.is_ascii_alphabetic() => {
                let mut word = String::from(c);
                while let Some(more) = chars.next_if(char::is_ascii_alphanumeric) {
                    word.push(more);
                }
                out.push_str(match word.as_str() {
                    "True" => "true",
                    "False" => "false",
                    "None" => "null",
                    other => other,
                });
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_become_json() {
        for (text, due) in [
            ("'it\\'s'", "\"it's\""),
            ("\"a\\u00e9\"", "\"a\\u00e9\""),
            ("[True, None, 'x,)']", "[true, null, \"x,)\"]"),
            ("{'a': (1, 2.5)}", "{\"a\": [1, 2.5]}"),
            ("-7", "-7"),
            ("word", "\"word\""),
        ] {
            assert_eq!(json(text), due, "{text}");
            let whole = format!("{text}, b=1)");
            assert_eq!(Scan::default().end(&whole), Some(text.len()), "{text}");
            let mut scan = Scan::default();
            for end in (0..=text.len()).filter(|end| text.is_char_boundary(*end)) {
                assert_eq!(scan.end(&text[..end]), None, "{text}");
            }
            assert_eq!(scan.end(&whole), Some(text.len()), "{text}");
        }
    }
}
