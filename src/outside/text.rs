//! Texts of others (models, files, servers, hubs, names of files) in what this program prints.

use std::borrow::Cow;

/// Whether a character could rewrite the screen, the title or the clipboard, or show another text than there is. Line breaks and tabs
/// could not.
pub fn is_unsafe(c: char) -> bool {
    let reorders = matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    reorders || c.is_control() && !matches!(c, '\n' | '\t')
}

/// A text with its unsafe characters escaped, as in `\u{1b}` and `\r`. Line breaks and tabs stay.
pub fn visible(text: &str) -> Cow<'_, str> {
    escaped(text, is_unsafe, |c, out| out.extend(c.escape_default()))
}

/// A text for one line or one cell of a table: as [`visible`], with line breaks and tabs escaped too.
pub fn in_line(text: &str) -> Cow<'_, str> {
    escaped(text, |c| is_unsafe(c) || c.is_control(), |c, out| out.extend(c.escape_default()))
}

/// JSON with its unsafe characters escaped. It means the same: they can only stand in its strings.
pub fn in_json(json: &str) -> Cow<'_, str> {
    escaped(json, is_unsafe, |c, out| out.push_str(&format!("\\u{:04x}", u32::from(c))))
}

fn escaped<'a>(text: &'a str, is_chosen: impl Fn(char) -> bool, escape: impl Fn(char, &mut String)) -> Cow<'a, str> {
    if !text.contains(&is_chosen) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_chosen(c) { escape(c, &mut out) } else { out.push(c) }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_controls_a_terminal_is_escaped_and_the_rest_stays() {
        let cases = [
            ("plain, é 漢 👩‍🔬 \u{200f}שלום\n\ttext", "plain, é 漢 👩‍🔬 \u{200f}שלום\n\ttext"),
            ("\u{1b}]0;title\u{7}\u{1b}[2J", "\\u{1b}]0;title\\u{7}\\u{1b}[2J"),
            ("a\u{9b}31m\u{7f}\u{0}\u{8}", "a\\u{9b}31m\\u{7f}\\u{0}\\u{8}"),
            ("a\rb\r\nc", "a\\rb\\r\nc"),
            ("\u{202e}txt.exe\u{2066}", "\\u{202e}txt.exe\\u{2066}"),
        ];
        for (text, safe) in cases {
            assert_eq!(visible(text), safe);
        }
        assert_eq!(in_line("a\n\tb\r\u{202e}"), "a\\n\\tb\\r\\u{202e}");
    }

    #[test]
    fn json_means_the_same() {
        let json = "{\n\t\"a\": \"\u{7f}\u{9b}\u{202e}é\"\n}";
        assert_eq!(in_json(json), "{\n\t\"a\": \"\\u007f\\u009b\\u202eé\"\n}");
    }
}
