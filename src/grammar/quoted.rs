//! Rewrites a grammar of a text as a grammar of the same text inside a JSON string.
//!
//! Each character is written in one way (a line break is `\n`, a quote is `\"`), and no character's form begins another's. So it is enough
//! to rewrite the terminals character by character: the rules stay, and the longest match stays the longest match. The complement of a
//! terminal is not the complement of its rewritten form, so `~TERMINAL` is refused. So is everything that is not a text, such as tokens and
//! other grammars.

use std::collections::BTreeMap;

use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir, HirKind, Look, Repetition};

use super::literal::lark_string;

/// The regular expressions of Lark's library that grammars import most often.
const COMMON: [(&str, &str); 24] = [
    ("DIGIT", "[0-9]"),
    ("HEXDIGIT", "[0-9a-fA-F]"),
    ("INT", "[0-9]+"),
    ("SIGNED_INT", "[+-]?[0-9]+"),
    ("DECIMAL", r"[0-9]+\.[0-9]*|\.[0-9]+"),
    ("FLOAT", r"[0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"),
    ("SIGNED_FLOAT", r"[+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)"),
    ("NUMBER", r"([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?"),
    ("SIGNED_NUMBER", r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?"),
    ("ESCAPED_STRING", r#""([^"\\]|\\.)*""#),
    ("LCASE_LETTER", "[a-z]"),
    ("UCASE_LETTER", "[A-Z]"),
    ("LETTER", "[A-Za-z]"),
    ("WORD", "[A-Za-z]+"),
    ("CNAME", "[A-Za-z_][A-Za-z_0-9]*"),
    ("WS_INLINE", r"[ \t]+"),
    ("WS", r"[ \t\f\r\n]+"),
    ("CR", r"\r"),
    ("LF", r"\n"),
    ("NEWLINE", r"(\r?\n)+"),
    ("SH_COMMENT", r"#[^\n]*"),
    ("CPP_COMMENT", r"//[^\n]*"),
    ("C_COMMENT", r"/\*[^*]*\*+([^/*][^*]*\*+)*/"),
    ("SQL_COMMENT", r"--[^\n]*"),
];

/// Rewrites a grammar in Lark's syntax. The result has at most about `most` bytes: a `.` becomes 70.
///
/// # Errors
/// The grammar is not valid Lark, or holds something that has no meaning inside a string, or the result would be too long.
pub fn lark(text: &str, most: usize) -> Result<String, String> {
    let mut reader = Reader { rest: text, out: String::new(), most };
    while let Some(c) = reader.rest.chars().next() {
        reader.item(c)?;
        reader.check()?;
    }
    Ok(reader.out)
}

struct Reader<'a> {
    rest: &'a str,
    out: String,
    most: usize,
}

impl<'a> Reader<'a> {
    fn item(&mut self, c: char) -> Result<(), String> {
        match c {
            '#' => drop(self.until_line_end()),
            '/' if self.rest.starts_with("//") => drop(self.until_line_end()),
            '"' => self.string()?,
            '/' => self.regex()?,
            '%' => self.statement()?,
            '~' if !self.rest[1..].trim_start().starts_with(|c: char| c.is_ascii_digit()) => {
                return Err("`~` before a terminal cannot be followed inside a JSON string".into());
            }
            '<' | '@' => return Err(format!("`{c}` begins a token or another grammar, and the input is a text")),
            _ => {
                self.out.push(c);
                self.rest = &self.rest[c.len_utf8()..];
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        match self.out.len() > self.most {
            true => Err(format!("the grammar is too large: inside a JSON string it has more than {} bytes", self.most)),
            false => Ok(()),
        }
    }

    fn until_line_end(&mut self) -> &'a str {
        let (line, rest) = self.rest.split_at(self.rest.find('\n').unwrap_or(self.rest.len()));
        self.rest = rest;
        line
    }

    /// Reads a text between two `mark`s. Returns the text without the marks and with its escapes as written.
    fn between(&mut self, mark: char) -> Result<&'a str, String> {
        let mut escaped = false;
        for (at, c) in self.rest.char_indices().skip(1) {
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                _ if c == mark => {
                    let inner = &self.rest[1..at];
                    self.rest = &self.rest[at + 1..];
                    return Ok(inner);
                }
                _ => {}
            }
        }
        Err(format!("the text that begins with {} is not closed", self.rest.chars().take(20).collect::<String>()))
    }

    /// Reads a literal or a range of characters.
    fn string(&mut self) -> Result<(), String> {
        let text = unescaped(self.between('"')?)?;
        if let Some(rest) = self.rest.trim_start_matches([' ', '\t']).strip_prefix("..") {
            self.rest = rest.trim_start_matches([' ', '\t']);
            if !self.rest.starts_with('"') {
                return Err("a range needs a string after its `..`".into());
            }
            let last = unescaped(self.between('"')?)?;
            let class = match (&*text.chars().collect::<Vec<_>>(), &*last.chars().collect::<Vec<_>>()) {
                ([first], [last]) if first <= last => ClassUnicode::new([ClassUnicodeRange::new(*first, *last)]),
                _ => return Err(format!("{} is not a range of characters", [lark_string(&text), lark_string(&last)].join(".."))),
            };
            self.write(&Hir::class(Class::Unicode(class)))
        } else if let Some(rest) = self.rest.strip_prefix('i') {
            self.rest = rest;
            self.write(&parsed(&format!("(?i){}", regex_syntax::escape(&text)))?)
        } else {
            self.out += &lark_string(&text.chars().map(quoted).collect::<String>());
            Ok(())
        }
    }

    fn regex(&mut self) -> Result<(), String> {
        let pattern = self.between('/')?;
        let (flags, rest) = self.rest.split_at(self.rest.find(|c| !"imslux".contains(c)).unwrap_or(self.rest.len()));
        self.rest = rest;
        let pattern = if flags.is_empty() { pattern.to_owned() } else { format!("(?{flags}){pattern}") };
        self.write(&parsed(&pattern)?)
    }

    fn statement(&mut self) -> Result<(), String> {
        if let Some(rest) = self.rest.strip_prefix("%ignore") {
            self.out += "%ignore";
            self.rest = rest;
            return Ok(());
        }
        let line = self.until_line_end();
        let Some(import) = line.strip_prefix("%import") else {
            return Err(format!("`{}` is not supported here", line.split_whitespace().next().unwrap_or_default()));
        };
        let import = import.split("//").next().unwrap_or_default().trim();
        let names =
            import.strip_prefix("common").map(str::trim_start).ok_or_else(|| format!("only `common` can be imported, not {import}"))?;
        match (names.strip_prefix('.'), names.strip_prefix('(').and_then(|names| names.strip_suffix(')'))) {
            (Some(name), _) => {
                let (name, alias) = name.split_once("->").unwrap_or((name, name));
                self.import(name.trim(), alias.trim())
            }
            (None, Some(names)) => names.split(',').map(str::trim).try_for_each(|name| self.import(name, name)),
            (None, None) => Err(format!("{line} is not an import")),
        }
    }

    fn import(&mut self, name: &str, alias: &str) -> Result<(), String> {
        let (_, pattern) = COMMON.iter().find(|(known, _)| *known == name).ok_or_else(|| format!("there is no common.{name}"))?;
        self.out += &format!("{alias}: ");
        self.write(&parsed(pattern)?)?;
        self.out.push('\n');
        Ok(())
    }

    /// Writes the quoted form of a terminal.
    fn write(&mut self, hir: &Hir) -> Result<(), String> {
        let start = self.out.len();
        // A long terminal is written part by part, so that writing stops once it is too long.
        let parts = if let HirKind::Concat(parts) = hir.kind() { parts.as_slice() } else { std::slice::from_ref(hir) };
        for (i, part) in parts.iter().enumerate() {
            let image = image(part, i == 0, i + 1 == parts.len())?;
            if !matches!(image.kind(), HirKind::Empty) {
                let pattern = image.to_string().replace('/', "\\/");
                self.out += if self.out.len() == start { "/" } else { "" };
                self.out += &pattern;
                self.check()?;
            }
        }
        self.out += if self.out.len() == start { "\"\"" } else { "/" };
        Ok(())
    }
}

fn parsed(pattern: &str) -> Result<Hir, String> {
    regex_syntax::Parser::new().parse(pattern).map_err(|error| error.to_string())
}

/// A string literal's text. Besides JSON's escapes, `\xHH` is allowed.
fn unescaped(literal: &str) -> Result<String, String> {
    let mut json = String::with_capacity(literal.len() + 2);
    let mut chars = literal.chars();
    while let Some(c) = chars.next() {
        match (c, if c == '\\' { chars.next() } else { None }) {
            ('\\', Some('x')) => json += "\\u00",
            ('\\', Some(next)) => json.extend(['\\', next]),
            (other, _) => json.push(other),
        }
    }
    serde_json::from_str(&format!("\"{json}\"")).map_err(|error| format!("a string of the grammar: {error}"))
}

/// A character inside a JSON string.
fn quoted(c: char) -> String {
    match c {
        '"' | '\\' => format!("\\{c}"),
        '\n' => "\\n".into(),
        '\r' => "\\r".into(),
        '\t' => "\\t".into(),
        '\u{8}' => "\\b".into(),
        '\u{c}' => "\\f".into(),
        control if control < ' ' => format!("\\u{:04x}", u32::from(control)),
        other => other.into(),
    }
}

fn needs_escape(c: char) -> bool {
    c < ' ' || c == '"' || c == '\\'
}

/// Rewrites an expression for the inside of a JSON string. `first`, `last`: whether the expression begins and ends the terminal.
fn image(hir: &Hir, first: bool, last: bool) -> Result<Hir, String> {
    Ok(match hir.kind() {
        HirKind::Empty => Hir::empty(),
        HirKind::Literal(literal) => {
            let text = std::str::from_utf8(&literal.0).map_err(|_| "a regular expression matches bytes that are no text")?;
            Hir::literal(text.chars().map(quoted).collect::<String>().into_bytes())
        }
        HirKind::Class(Class::Unicode(class)) => of_class(class),
        HirKind::Class(Class::Bytes(class)) => {
            of_class(&class.to_unicode_class().ok_or("a regular expression matches bytes that are no text")?)
        }
        HirKind::Look(Look::Start) if first => Hir::empty(),
        HirKind::Look(Look::End) if last => Hir::empty(),
        HirKind::Look(_) => return Err("a regular expression looks around itself (`^`, `$`, `\\b`), which no grammar can follow".into()),
        HirKind::Repetition(Repetition { min, max, greedy, sub }) => {
            Hir::repetition(Repetition { min: *min, max: *max, greedy: *greedy, sub: Box::new(image(sub, false, false)?) })
        }
        HirKind::Capture(capture) => image(&capture.sub, first, last)?,
        HirKind::Concat(parts) => {
            let part = |(i, part)| image(part, first && i == 0, last && i + 1 == parts.len());
            Hir::concat(parts.iter().enumerate().map(part).collect::<Result<_, _>>()?)
        }
        HirKind::Alternation(parts) => Hir::alternation(parts.iter().map(|part| image(part, first, last)).collect::<Result<_, _>>()?),
    })
}

fn of_class(class: &ClassUnicode) -> Hir {
    let escaped: Vec<char> = ('\0'..='\\')
        .filter(|c| needs_escape(*c) && class.ranges().iter().any(|range| (range.start()..=range.end()).contains(c)))
        .collect();
    let mut plain = class.clone();
    plain.difference(&ClassUnicode::new(escaped.iter().map(|c| ClassUnicodeRange::new(*c, *c))));
    // Forms that differ only in their last character share a prefix and a class: a dot alone has 33 of them.
    let mut by_head: BTreeMap<String, Vec<ClassUnicodeRange>> = BTreeMap::new();
    for mut form in escaped.into_iter().map(quoted) {
        let Some(last) = form.pop() else { continue };
        by_head.entry(form).or_default().push(ClassUnicodeRange::new(last, last));
    }
    let of_head = |(head, last): (String, Vec<ClassUnicodeRange>)| {
        Hir::concat(vec![Hir::literal(head.into_bytes()), Hir::class(Class::Unicode(ClassUnicode::new(last)))])
    };
    let plain = (!plain.ranges().is_empty()).then(|| Hir::class(Class::Unicode(plain)));
    Hir::alternation(plain.into_iter().chain(by_head.into_iter().map(of_head)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminals_are_rewritten_and_rules_stay() {
        for (text, due) in [
            (r#"start: "a\n" B ~ 1..3 -> x"#, r#"start: "a\\n" B ~ 1..3 -> x"#),
            ("start: \"say \\\"hi\\\"\" // a comment\nB: \"\\x41\"", "start: \"say \\\\\\\"hi\\\\\\\"\" \nB: \"A\""),
            ("A: /a\\/b/", "A: /(?:a\\/b)/"),
            ("A: /\"+/", "A: /(?:\\\\\")+/"),
            ("A: \"a\"..\"c\" | \"ab\"i", "A: /[a-c]/ | /[Aa][Bb]/"),
            ("%import common.INT -> N\n%ignore N", "N: /[0-9]+/\n\n%ignore N"),
            ("%import common (LF, CR)", "LF: /(?:\\\\n)/\nCR: /(?:\\\\r)/\n"),
            ("A: /^a$/ & /x/s", "A: /a/ & /x/"),
        ] {
            assert_eq!(lark(text, 1000).as_deref(), Ok(due), "{text}");
        }
    }

    #[test]
    fn a_class_has_one_alternative_per_beginning_of_its_escapes() {
        let dot = lark("A: /./s", 1000).unwrap();
        assert!(dot.len() < 120 && dot.matches('|').count() == 3, "{dot}");
    }

    #[test]
    fn a_rewritten_grammar_has_a_bound() {
        assert!(lark(&format!("A: /{}/", ".".repeat(20)), 1000).unwrap_err().contains("more than 1000 bytes"));
        assert!(lark(&"A: /\\w/\n".repeat(9), 1000).unwrap_err().contains("more than 1000 bytes"));
    }

    #[test]
    fn what_has_no_meaning_inside_a_string_is_refused() {
        for (text, due) in [
            ("start: ~A", "`~`"),
            ("start: <|im_end|>", "`<`"),
            ("start: @other", "`@`"),
            ("start: %json {}", "`%json`"),
            ("start: \"a", "is not closed"),
            ("A: /a(/", "unclosed"),
            ("A: /a\\bc/", "looks around"),
            ("%import python.NAME", "only `common`"),
            ("%import common.NAME", "common.NAME"),
            ("A: \"a\"..\"bc\"", "not a range"),
        ] {
            let error = lark(text, 1000).unwrap_err();
            assert!(error.contains(due), "{text}: {error}");
        }
    }
}
