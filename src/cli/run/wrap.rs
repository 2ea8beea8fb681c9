//! Word wrap for text that arrives in parts.

use unicode_width::UnicodeWidthChar;

/// Inserts line breaks between words, so that no word is cut at the edge of the terminal. A word is shown once it is complete. Lines of
/// code (between lines that begin with three backticks) and words longer than a line are not wrapped. Codes of colours take no room.
#[derive(Debug, Default)]
pub struct Wrap {
    /// Width of the terminal [columns]. 0: no wrapping.
    pub width: usize,
    /// Columns of the current line that are shown.
    column: usize,
    /// Spaces that are held back until the next word, or dropped at a line break.
    spaces: String,
    word: String,
    word_width: usize,
    /// Whether the beginning of the word is already shown, so that no line can end before the rest.
    continues: bool,
    /// The first characters of the line.
    begin: String,
    in_code: bool,
    /// Whether backticks do not begin code, because the text is rendered already.
    pub ignores_fences: bool,
    /// The text that begins a line after an inserted break, and its width [columns].
    pub hang: (String, usize),
    /// Whether the characters belong to a code of a colour.
    in_escape: bool,
}

const FENCE: &str = "```";

impl Wrap {
    /// Takes text and returns what can be shown now.
    pub fn push(&mut self, text: &str) -> String {
        let mut shown = String::with_capacity(text.len());
        text.chars().for_each(|c| self.take(c, &mut shown));
        shown
    }

    /// Returns the text that was held back, at the end.
    pub fn finish(&mut self) -> String {
        let mut shown = String::new();
        self.end_word(&mut shown);
        shown.push_str(&std::mem::take(&mut self.spaces));
        *self = Self { width: self.width, ..Self::default() };
        shown
    }

    /// Returns the text that was held back, and then lines that are not wrapped. They begin at the start of a line.
    pub fn verbatim(&mut self, lines: &str) -> String {
        let mut shown = String::new();
        self.end_word(&mut shown);
        shown.push_str(&std::mem::take(&mut self.spaces));
        (self.column, self.continues) = (0, false);
        shown + lines
    }

    /// Columns of the current line, including the text that is held back.
    pub fn column(&self) -> usize {
        self.column + self.spaces.len() + self.word_width
    }

    fn take(&mut self, c: char, shown: &mut String) {
        if self.in_escape || c == '\x1b' {
            self.word.push(c);
            self.in_escape = c != 'm';
            return;
        }
        let is_indent = self.begin.is_empty() && c == ' ';
        if !self.ignores_fences && self.begin.len() < FENCE.len() && c != '\n' && !is_indent {
            self.begin.push(c);
            self.in_code ^= self.begin == FENCE;
        }
        match c {
            '\n' => {
                self.end_word(shown);
                // Spaces at the end of a line may matter in code.
                shown.push_str(&std::mem::take(&mut self.spaces));
                shown.push('\n');
                (self.column, self.continues) = (0, false);
                self.begin.clear();
            }
            ' ' if self.width > 0 && !self.in_code => {
                self.end_word(shown);
                self.continues = false;
                self.spaces.push(' ');
            }
            c => self.add(c, shown),
        }
    }

    fn add(&mut self, c: char, shown: &mut String) {
        let width = if c == '\t' { 8 - (self.column() % 8) } else { c.width().unwrap_or(0) };
        self.word.push(c);
        self.word_width += width;
        // Text that cannot be moved is not held back: without wrapping, in code, and in words as long as a line. A wide character (Chinese,
        // Japanese) is a word by itself.
        let is_free = self.width == 0 || self.in_code || self.word_width >= self.width;
        if is_free || self.continues || width == 2 {
            self.end_word(shown);
            self.continues |= is_free;
        }
    }

    fn end_word(&mut self, shown: &mut String) {
        if self.word.is_empty() {
            return;
        }
        let ends = self.column + self.spaces.len() + self.word_width;
        let fits = self.width == 0 || self.in_code || self.continues || ends <= self.width || self.column == 0;
        if fits {
            self.column = ends;
            shown.push_str(&self.spaces);
        } else {
            shown.push('\n');
            shown.push_str(&self.hang.0);
            self.column = self.hang.1 + self.word_width;
        }
        self.spaces.clear();
        shown.push_str(&std::mem::take(&mut self.word));
        self.word_width = 0;
        if self.width > 0 && self.column > self.width {
            // The terminal has begun another line by itself.
            self.column %= self.width;
        }
    }
}

/// The least part of a line that is left for wrapped text, as a divisor of the width.
const LEAST: usize = 2;

/// Wraps lines at a width. The further lines of a row of two columns begin at its second column. `width`: 0 for no wrapping.
pub fn in_columns(text: &str, width: usize) -> String {
    let line = |line: &str| {
        // The columns are at least two spaces apart.
        let second = line.find("  ").map(|at| line.len() - line[at..].trim_start().len());
        let columns = second.filter(|at| *at < width / LEAST).unwrap_or(0);
        let mut wrap = Wrap { width, ignores_fences: true, hang: (" ".repeat(columns), columns), ..Wrap::default() };
        let shown = wrap.push(line);
        shown + &wrap.finish()
    };
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_two_columns_hang() {
        let rows = "/set NAME VALUE   change a setting; /set alone lists them\n/bye              leave\n";
        let text = format!("{rows}\nplain words that are wrapped at the edge");
        let due = [
            "/set NAME VALUE   change a setting;",
            "                  /set alone lists",
            "                  them",
            "/bye              leave",
            "",
            "plain words that are wrapped at the",
            "edge",
        ];
        assert_eq!(in_columns(&text, 38), due.join("\n"));
        assert_eq!(in_columns(&text, 0), text);
    }

    /// Wraps the text, and checks that the result does not depend on how the text is cut.
    fn wrapped(width: usize, text: &str) -> String {
        let whole = |parts: Vec<String>| {
            let mut wrap = Wrap { width, ..Wrap::default() };
            let shown: String = parts.iter().map(|part| wrap.push(part)).collect();
            shown + &wrap.finish()
        };
        let one = whole(vec![text.to_owned()]);
        assert_eq!(whole(text.chars().map(String::from).collect()), one, "{text:?}");
        one
    }

    #[test]
    fn lines_break_between_words() {
        assert_eq!(wrapped(10, "one two three four"), "one two\nthree four");
        assert_eq!(wrapped(10, "exactly 10 and more"), "exactly 10\nand more");
        assert_eq!(wrapped(10, "a\nb  c\n\n  d"), "a\nb  c\n\n  d", "short lines stay as they are");
        assert_eq!(wrapped(0, "one two three four five six"), "one two three four five six");
    }

    #[test]
    fn a_word_that_is_longer_than_a_line_is_left_to_the_terminal() {
        assert_eq!(wrapped(5, "abcdefgh i jk"), "abcdefgh i\njk", "the terminal begins a line behind the fifth");
        assert_eq!(wrapped(8, "see https://example.com/x now"), "see\nhttps://example.com/x\nnow");
    }

    #[test]
    fn code_keeps_its_lines() {
        let code = "```py\nprint('a b c d e f g')  \n```\n";
        assert_eq!(wrapped(10, code), code);
        assert_eq!(wrapped(10, &format!("{code}one two three")), format!("{code}one two\nthree"));
    }

    #[test]
    fn wide_characters_take_two_columns() {
        assert_eq!(wrapped(6, "漢字漢字"), "漢字漢\n字");
        assert_eq!(wrapped(6, "e\u{301}e\u{301}e\u{301} ab cd"), "e\u{301}e\u{301}e\u{301} ab\ncd");
    }

    #[test]
    fn codes_take_no_room_and_lines_hang() {
        assert_eq!(wrapped(10, "one \x1b[1mtwo\x1b[22m three"), "one \x1b[1mtwo\x1b[22m\nthree");
        let mut wrap = Wrap { width: 10, hang: ("  ".into(), 2), ..Wrap::default() };
        let shown = wrap.push("- one two three four\n");
        assert_eq!(shown + &wrap.finish(), "- one two\n  three\n  four\n");
    }

    #[test]
    fn a_word_is_shown_when_it_ends() {
        let mut wrap = Wrap { width: 20, ..Wrap::default() };
        assert_eq!(wrap.push("Hel"), "");
        assert_eq!(wrap.push("lo wor"), "Hello");
        assert_eq!((wrap.column(), wrap.finish().as_str()), (9, " wor"));
    }
}
