//! Renders Markdown that arrives in parts for a terminal. What is shown once stays, so everything that only further text can explain is
//! held back: the beginning of a line, an open emphasis, a table. No letter is lost or moved.

mod highlight;
mod inline;
mod table;

use highlight::Language;
use inline::{BOLD, DIM, Inline};

use super::wrap::Wrap;

/// The longest line of code, row of a table or beginning of a line that is held back [bytes].
const MAX_LINE: usize = 4000;
/// The most text of a table that is held back [bytes].
const MAX_TABLE: usize = 64 << 10;
/// Columns of a rule.
const RULE: usize = 24;

/// A renderer. The text must be free of control characters.
#[derive(Debug, Default)]
pub struct Markdown {
    wrap: Wrap,
    /// The beginning of a line whose kind is not known yet, or a line of code.
    line: String,
    inline: Inline,
    state: State,
    /// Rows of a table that is not shown yet.
    rows: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq)]
enum State {
    /// At the beginning of a line.
    #[default]
    Start,
    /// In a line whose text is shown as it comes. Holds the code that ends the line's style.
    Text(&'static str),
    /// In a block of code that began with this fence.
    Code { fence: char, count: usize, language: Language, is_long: bool },
}

/// The block that a line begins.
enum Beginning<'a> {
    Unknown,
    Heading(usize),
    /// A mark, and the text behind it.
    Item(String, &'a str),
    Quote(&'a str),
    Text,
}

impl Markdown {
    /// Takes text and returns what can be shown now. `width`: the terminal's [columns], 0 for no wrapping.
    pub fn push(&mut self, text: &str, width: usize) -> String {
        (self.wrap.width, self.wrap.ignores_fences) = (width, true);
        let mut shown = String::with_capacity(text.len());
        text.chars().for_each(|c| self.take(c, &mut shown));
        shown
    }

    /// Returns the text that was held back, at the end.
    pub fn finish(&mut self) -> String {
        let mut shown = String::new();
        if self.state != State::Start || !self.line.is_empty() {
            self.take('\n', &mut shown);
        }
        self.show_table(&mut shown);
        shown.push_str(&self.wrap.finish());
        // The line break was not in the text.
        if shown.ends_with('\n') {
            shown.pop();
        }
        *self = Self::default();
        shown
    }

    /// Whether a line is begun on the screen.
    pub fn is_in_line(&self) -> bool {
        self.wrap.column() > 0
    }

    fn take(&mut self, c: char, shown: &mut String) {
        match self.state {
            State::Start => self.begin(c, shown),
            State::Text(end) if c == '\n' => {
                let rest = self.inline.finish();
                self.flow(&format!("{rest}{end}\n"), shown);
                self.wrap.hang = Default::default();
                self.state = State::Start;
            }
            State::Text(_) => {
                let text = self.inline.push(c);
                self.flow(&text, shown);
            }
            State::Code { .. } => self.code(c, shown),
        }
    }

    fn flow(&mut self, text: &str, shown: &mut String) {
        shown.push_str(&self.wrap.push(text));
    }

    /// Takes a character at the beginning of a line.
    fn begin(&mut self, c: char, shown: &mut String) {
        if c == '\n' {
            let line = std::mem::take(&mut self.line);
            return self.whole(&line, shown);
        }
        self.line.push(c);
        let line = std::mem::take(&mut self.line);
        if line.len() <= MAX_LINE && matches!(beginning(&line), Beginning::Unknown) {
            self.line = line;
            return;
        }
        match beginning(&line) {
            Beginning::Heading(level) => {
                self.start(("", 0), BOLD.0, BOLD.1, shown);
                self.inline.is_bold = true;
                let text = line.trim_start()[level..].trim_start();
                self.text(text, shown);
            }
            Beginning::Item(mark, text) => {
                let columns = mark.chars().count();
                self.start((&" ".repeat(columns), columns), &mark, "", shown);
                self.text(text, shown);
            }
            Beginning::Quote(text) => {
                let bar = format!("{}│{} ", DIM.0, DIM.1);
                self.start((&bar, 2), &bar, "", shown);
                self.text(text, shown);
            }
            Beginning::Unknown | Beginning::Text => {
                let indent: String = line.chars().take_while(|c| *c == ' ').collect();
                self.start((&indent, indent.len()), "", "", shown);
                self.text(&line, shown);
            }
        }
    }

    /// Begins a line of text with `before`. `hang`: what begins its further lines, and how many columns that takes. `end`: the code that
    /// ends the line's style.
    fn start(&mut self, hang: (&str, usize), before: &str, end: &'static str, shown: &mut String) {
        self.show_table(shown);
        self.wrap.hang = (hang.0.to_owned(), hang.1);
        self.state = State::Text(end);
        self.flow(before, shown);
    }

    fn text(&mut self, text: &str, shown: &mut String) {
        for c in text.chars() {
            let known = self.inline.push(c);
            self.flow(&known, shown);
        }
    }

    /// Takes a whole line whose kind its beginning did not tell.
    fn whole(&mut self, line: &str, shown: &mut String) {
        let text = line.trim();
        if text.starts_with('|') {
            let held: usize = self.rows.iter().map(String::len).sum();
            self.rows.push(line.to_owned());
            if held + line.len() > MAX_TABLE {
                self.show_table(shown);
            }
            return;
        }
        self.show_table(shown);
        if let Some((fence, count, info)) = fence(text) {
            let name = info.split([' ', '{', ',']).next().unwrap_or_default();
            self.state = State::Code { fence, count, language: Language::named(name), is_long: false };
            if !info.is_empty() {
                self.flow(&format!("{}{info}{}\n", DIM.0, DIM.1), shown);
            }
            return;
        }
        if is_rule(text) {
            return self.flow(&format!("{}{}{}\n", DIM.0, "─".repeat(RULE), DIM.1), shown);
        }
        // A line that is no more than a mark, such as `-` or `#`.
        self.text(line, shown);
        let rest = self.inline.finish();
        self.flow(&format!("{rest}\n"), shown);
    }

    fn code(&mut self, c: char, shown: &mut String) {
        let State::Code { fence, count, language, is_long } = self.state.clone() else { return };
        let is_end = c == '\n';
        if !is_end {
            self.line.push(c);
            if self.line.len() > MAX_LINE {
                let part = language.coloured(&std::mem::take(&mut self.line));
                self.verbatim(&part, shown);
                self.state = State::Code { fence, count, language, is_long: true };
            }
            return;
        }
        let line = std::mem::take(&mut self.line);
        let text = line.trim();
        if !is_long && text.len() >= count && text.chars().all(|c| c == fence) {
            self.state = State::Start;
            return;
        }
        self.verbatim(&(language.coloured(&line) + "\n"), shown);
        self.state = State::Code { fence, count, language, is_long: false };
    }

    fn verbatim(&mut self, text: &str, shown: &mut String) {
        shown.push_str(&self.wrap.verbatim(text));
    }

    fn show_table(&mut self, shown: &mut String) {
        let rows = std::mem::take(&mut self.rows);
        let is_table = rows.len() > 1 && table::is_separator(&rows[1]);
        let lines =
            if is_table { table::table(&rows, self.wrap.width) } else { rows.iter().map(|row| inline::rendered(row, false)).collect() };
        for line in lines {
            self.flow(&(line + "\n"), shown);
        }
    }
}

/// The block that a line begins, as far as the known part of the line tells. The last character of `line` has just arrived.
fn beginning(line: &str) -> Beginning<'_> {
    let text = line.trim_start_matches([' ', '\t']);
    let indent = &line[..line.len() - text.len()];
    let Some(first) = text.chars().next() else { return Beginning::Unknown };
    let behind = text.trim_start_matches(first);
    let run = text.len() - behind.len();
    match first {
        // Rows and fences are judged as whole lines.
        '|' => Beginning::Unknown,
        '`' | '~' if behind.is_empty() || run >= 3 => match first == '`' && behind.contains('`') {
            true => Beginning::Text,
            false => Beginning::Unknown,
        },
        '#' if run <= 6 && behind.is_empty() => Beginning::Unknown,
        '#' if run <= 6 && behind.starts_with(' ') => match behind.trim_start().is_empty() {
            true => Beginning::Unknown,
            false => Beginning::Heading(run),
        },
        '>' => match text[1..].strip_prefix(' ').unwrap_or(&text[1..]) {
            "" => Beginning::Unknown,
            rest => Beginning::Quote(rest),
        },
        '-' | '*' | '+' | '_' => match text.chars().all(|c| c == first || c == ' ') {
            // It may be a rule.
            true => Beginning::Unknown,
            false => match text[1..].strip_prefix(' ').filter(|_| first != '_') {
                Some(rest) => Beginning::Item(format!("{indent}• "), rest.trim_start()),
                None => Beginning::Text,
            },
        },
        '0'..='9' => {
            let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            match (digits <= 9, text[digits..].chars().next(), text.get(digits + 1..)) {
                (true, None, _) | (true, Some('.' | ')'), Some("" | " ")) => Beginning::Unknown,
                (true, Some('.' | ')'), Some(rest)) if rest.starts_with(' ') => {
                    Beginning::Item(format!("{indent}{} ", &text[..=digits]), rest.trim_start())
                }
                _ => Beginning::Text,
            }
        }
        _ => Beginning::Text,
    }
}

/// The character of a fence, their number, and the text behind them.
fn fence(text: &str) -> Option<(char, usize, &str)> {
    let first = text.chars().next().filter(|c| ['`', '~'].contains(c))?;
    let info = text.trim_start_matches(first);
    let count = text.len() - info.len();
    (count >= 3 && !(first == '`' && info.contains('`'))).then(|| (first, count, info.trim()))
}

fn is_rule(text: &str) -> bool {
    let marks: String = text.chars().filter(|c| *c != ' ').collect();
    marks.len() >= 3 && ['-', '*', '_'].iter().any(|mark| marks.chars().all(|c| c == *mark))
}

#[cfg(test)]
mod tests;
