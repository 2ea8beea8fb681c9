//! Extraction of the text of a custom tool's call, which the model writes as the arguments `{"input": "…"}`.

use serde_json::{Value, json};

/// Makes the arguments of a call whose text is `input`.
pub fn arguments_of(input: &str) -> String {
    json!({ "input": input }).to_string()
}

/// Returns the text in complete arguments.
pub fn text_of(arguments: &str) -> String {
    InputText::default().push(arguments)
}

/// Extracts the text from arguments that arrive in pieces.
#[derive(Clone, Debug, Default)]
pub struct InputText {
    place: ScanState,
    /// An incomplete escape sequence.
    escape: String,
    /// The first half of a surrogate pair, whose second half is another escape.
    high: Option<u16>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ScanState {
    /// Before the colon after the key.
    #[default]
    Key,
    /// After the colon.
    Colon,
    Text,
    Past,
}

impl InputText {
    /// Adds a piece of the arguments. Returns the new part of the text.
    pub fn push(&mut self, arguments: &str) -> String {
        let mut text = String::with_capacity(arguments.len());
        for c in arguments.chars() {
            match (self.place, c) {
                (ScanState::Key, ':') => self.place = ScanState::Colon,
                (ScanState::Colon, '"') => self.place = ScanState::Text,
                (ScanState::Text, _) if !self.escape.is_empty() => self.escaped(c, &mut text),
                (ScanState::Text, '\\') => self.escape.push('\\'),
                (ScanState::Text, '"') => self.place = ScanState::Past,
                (ScanState::Text, c) => {
                    self.half(None, &mut text);
                    text.push(c);
                }
                _ => {}
            }
        }
        text
    }

    /// Adds a character of an escape sequence.
    fn escaped(&mut self, c: char, text: &mut String) {
        self.escape.push(c);
        if self.escape.starts_with("\\u") {
            if self.escape.len() < 6 {
                return;
            }
            let unit = u16::from_str_radix(self.escape.get(2..).unwrap_or_default(), 16).unwrap_or(0xfffd);
            self.half(Some(unit), text);
        } else {
            self.half(None, text);
            // The escape is valid JSON, because the arguments follow a grammar.
            let value: Value = serde_json::from_str(&format!("\"{}\"", self.escape)).unwrap_or_default();
            text.push_str(value.as_str().unwrap_or_default());
        }
        self.escape.clear();
    }

    /// Adds a UTF-16 unit, or `None` if no escape follows. An unpaired surrogate becomes the replacement character.
    fn half(&mut self, unit: Option<u16>, text: &mut String) {
        let units: Vec<u16> = self.high.take().into_iter().chain(unit).collect();
        if let ([high @ 0xd800..=0xdbff], Some(_)) = (&units[..], unit) {
            self.high = Some(*high);
            return;
        }
        text.push_str(&String::from_utf16_lossy(&units));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_comes_back_out_of_its_arguments() {
        for text in ["", "plain", "a\"b\\c\n\t\u{1}é€😀", "{\"input\": \"x\"}", "\\u0041"] {
            assert_eq!(text_of(&arguments_of(text)), text);
            let mut reader = InputText::default();
            let pieces: String = arguments_of(text).chars().map(|c| reader.push(c.encode_utf8(&mut [0; 4]))).collect();
            assert_eq!(pieces, text);
        }
    }

    #[test]
    fn escapes_of_every_kind_are_read() {
        assert_eq!(text_of(r#" { "input" : "\u0041\/\ud83d\ude00\b" } "#), "A/😀\u{8}");
        assert_eq!(text_of(r#"{"input": "\ud83dx\ud83d\u0041"#), "\u{fffd}x\u{fffd}A");
        assert_eq!(text_of(r#"{"input": "cut \u00"#), "cut ");
    }
}
