//! Emphasis, code and links inside a line of Markdown that arrives in parts.

/// The longest text that is held back while the end of an emphasis, a code or a link is awaited. Longer ones are shown as they are written.
/// [bytes]
const MAX_HELD: usize = 240;

/// Codes before and after a styled text. Each style has its own end, so that styles can be nested.
pub const BOLD: (&str, &str) = ("\x1b[1m", "\x1b[22m");
pub const DIM: (&str, &str) = ("\x1b[2m", "\x1b[22m");
const ITALIC: (&str, &str) = ("\x1b[3m", "\x1b[23m");
const UNDERLINE: (&str, &str) = ("\x1b[4m", "\x1b[24m");
const STRUCK: (&str, &str) = ("\x1b[9m", "\x1b[29m");
const CODE: (&str, &str) = ("\x1b[36m", "\x1b[39m");

/// The part of a line that is not shown yet.
#[derive(Debug, Default)]
pub struct Inline {
    held: String,
    /// The last character that was taken out of `held`.
    before: Option<char>,
    /// Whether the line is bold anyway, as in a heading.
    pub is_bold: bool,
}

/// The meaning of the text that begins at a special character.
enum Span<'a> {
    /// A text to show as it is, and the number of bytes that it takes.
    Plain(&'a str, usize),
    Styled {
        style: (&'static str, &'static str),
        inner: &'a str,
        is_code: bool,
        len: usize,
    },
    Link {
        text: &'a str,
        address: &'a str,
        len: usize,
    },
    /// Only further text can tell.
    Open,
}

impl Inline {
    /// Takes a character and returns what can be shown now.
    pub fn push(&mut self, c: char) -> String {
        self.held.push(c);
        self.show(false)
    }

    /// Returns the rest of the line, at its end.
    pub fn finish(&mut self) -> String {
        let shown = self.show(true);
        *self = Self::default();
        shown
    }

    fn show(&mut self, ends: bool) -> String {
        let mut shown = String::new();
        let held = std::mem::take(&mut self.held);
        let mut rest = held.as_str();
        while let Some(at) = rest.find(['*', '_', '`', '~', '[', '\\']) {
            self.plain(&rest[..at], &mut shown);
            rest = &rest[at..];
            match span(rest, self.before, ends) {
                Span::Open if !ends && rest.len() < MAX_HELD => {
                    self.held = rest.to_owned();
                    return shown;
                }
                Span::Open => {
                    let run = run_of(rest);
                    self.plain(&rest[..run], &mut shown);
                    rest = &rest[run..];
                }
                Span::Plain(text, len) => {
                    self.plain(text, &mut shown);
                    rest = &rest[len..];
                }
                Span::Styled { style, inner, is_code, len } => {
                    shown.push_str(&self.styled(style, inner, is_code));
                    self.before = rest[..len].chars().next_back();
                    rest = &rest[len..];
                }
                Span::Link { text, address, len } => {
                    let text = self.styled(UNDERLINE, text, false);
                    shown.push_str(&format!("{text} ({address})"));
                    self.before = Some(')');
                    rest = &rest[len..];
                }
            }
        }
        self.plain(rest, &mut shown);
        shown
    }

    fn plain(&mut self, text: &str, shown: &mut String) {
        shown.push_str(text);
        self.before = text.chars().next_back().or(self.before);
    }

    fn styled(&self, style: (&str, &str), inner: &str, is_code: bool) -> String {
        let is_bold = self.is_bold || style == BOLD;
        let inner = if is_code { inner.to_owned() } else { rendered(inner, is_bold) };
        // The end of a second bold would end the first one.
        if style == BOLD && self.is_bold { inner } else { format!("{}{inner}{}", style.0, style.1) }
    }
}

/// Renders a whole text within a line.
pub fn rendered(text: &str, is_bold: bool) -> String {
    let mut inline = Inline { held: text.to_owned(), before: None, is_bold };
    inline.finish()
}

/// The number of equal characters at the beginning [bytes]. Special characters have one byte.
fn run_of(text: &str) -> usize {
    let first = text.chars().next();
    text.chars().take_while(|c| Some(*c) == first).count()
}

/// Parses the span that begins with the special character at the start of `text`. `ends`: the line ends behind `text`.
fn span(text: &str, before: Option<char>, ends: bool) -> Span<'_> {
    let run = run_of(text);
    if run == text.len() && !ends {
        return Span::Open;
    }
    match text.as_bytes()[0] {
        b'\\' => match text[1..].chars().next() {
            Some('*' | '_' | '`' | '#' | '~' | '|' | '>') => Span::Plain(&text[1..2], 2),
            _ => Span::Plain(&text[..1], 1),
        },
        b'`' => code(text, run),
        b'[' => link(text),
        marker => emphasis(text, marker, run, before, ends),
    }
}

fn code(text: &str, run: usize) -> Span<'_> {
    let mut at = run;
    while let Some(found) = text[at..].find('`') {
        let close = run_of(&text[at + found..]);
        if close == run {
            let inner = &text[run..at + found];
            let stripped = inner.strip_prefix(' ').and_then(|inner| inner.strip_suffix(' ')).filter(|inner| !inner.trim().is_empty());
            return Span::Styled { style: CODE, inner: stripped.unwrap_or(inner), is_code: true, len: at + found + close };
        }
        at += found + close;
    }
    Span::Open
}

fn emphasis(text: &str, marker: u8, run: usize, before: Option<char>, ends: bool) -> Span<'_> {
    let style = match (marker, run) {
        (b'~', 2) => STRUCK,
        (b'*' | b'_', 1) => ITALIC,
        (b'*' | b'_', 2) => BOLD,
        _ => return Span::Plain(&text[..run], run),
    };
    let follows = text[run..].chars().next();
    if before.is_some_and(char::is_alphanumeric) || follows.is_none_or(char::is_whitespace) {
        return Span::Plain(&text[..run], run);
    }
    let (mut at, mut last) = (run, follows);
    while at < text.len() {
        let here = text[at..].chars().next().unwrap_or_default();
        if here == '`' {
            match code(&text[at..], run_of(&text[at..])) {
                Span::Styled { len, .. } => {
                    (at, last) = (at + len, Some('`'));
                    continue;
                }
                // The code may hold the marker.
                _ if !ends => return Span::Open,
                _ => {}
            }
        }
        if here != char::from(marker) || at == run {
            (at, last) = (at + here.len_utf8(), Some(here));
            continue;
        }
        let close = run_of(&text[at..]);
        let behind = text[at + close..].chars().next();
        if behind.is_none() && !ends {
            // The run may be longer.
            return Span::Open;
        }
        let is_word = marker == b'_' && behind.is_some_and(char::is_alphanumeric);
        let fits = if run == 1 { close % 2 == 1 } else { close >= run };
        if fits && !is_word && last.is_some_and(|c| !c.is_whitespace()) {
            // A longer run also closes a span inside.
            let inner = &text[run..at + close - run];
            return Span::Styled { style, inner, is_code: false, len: at + close };
        }
        (at, last) = (at + close, Some(char::from(marker)));
    }
    Span::Open
}

fn link(text: &str) -> Span<'_> {
    let plain = Span::Plain(&text[..1], 1);
    let Some(close) = text[1..].find([']', '[']).map(|at| at + 1) else { return Span::Open };
    if text.as_bytes()[close] == b'[' {
        return plain;
    }
    match text[close + 1..].chars().next() {
        None => Span::Open,
        Some('(') => {
            let address = &text[close + 2..];
            match address.find([')', ' ', '\t', '(']) {
                None => Span::Open,
                Some(end) if end > 0 && address.as_bytes()[end] == b')' => {
                    Span::Link { text: &text[1..close], address: &address[..end], len: close + 2 + end + 1 }
                }
                Some(_) => plain,
            }
        }
        Some(_) => plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Renders a line with readable marks: `<b>` to `</b>` and so on.
    fn marked(text: &str) -> String {
        let mut inline = Inline::default();
        let mut shown: String = text.chars().map(|c| inline.push(c)).collect();
        shown += &inline.finish();
        let names = [(BOLD, "b"), (ITALIC, "i"), (UNDERLINE, "u"), (STRUCK, "s"), (CODE, "c")];
        names.iter().fold(shown, |text, (style, name)| text.replace(style.0, &format!("<{name}>")).replace(style.1, &format!("</{name}>")))
    }

    #[test]
    fn spans_are_styled() {
        for (text, due) in [
            ("a **bold** word", "a <b>bold</b> word"),
            ("*it* and _it_, ~~gone~~", "<i>it</i> and <i>it</i>, <s>gone</s>"),
            ("**all *of* it**", "<b>all <i>of</i> it</b>"),
            ("**all *of it***", "<b>all <i>of it</i></b>"),
            ("`a*b*` ``x ` y`` ` z `", "<c>a*b*</c> <c>x ` y</c> <c>z</c>"),
            ("**see `a**b`**", "<b>see <c>a**b</c></b>"),
            ("[the *page*](https://a.example/b).", "<u>the <i>page</i></u> (https://a.example/b)."),
            ("\\*not\\* \\_this\\_", "*not* _this_"),
        ] {
            assert_eq!(marked(text), due, "{text}");
        }
    }

    #[test]
    fn what_is_no_span_stays() {
        for text in [
            "2 * 3 * 4",
            "snake_case_name",
            "a*b*c",
            "5 ** 2",
            "*args, **kwargs",
            "an [index] [1]",
            "f(x)[0](y z)",
            "`open",
            "\\[x\\]",
            "a ~ b",
        ] {
            assert_eq!(marked(text), text);
        }
        let long = format!("**{}", "word ".repeat(100));
        assert_eq!(marked(&long), long);
    }

    #[test]
    fn text_is_shown_as_soon_as_it_is_known() {
        let mut inline = Inline::default();
        let mut push = |text: &str| text.chars().map(|c| inline.push(c)).collect::<String>();
        assert_eq!(push("plain wor"), "plain wor");
        assert_eq!(push("d **bo"), "d ");
        assert_eq!(push("ld** "), format!("{}bold{} ", BOLD.0, BOLD.1));
    }
}
