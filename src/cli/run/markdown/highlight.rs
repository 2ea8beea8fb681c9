//! Colours in code: comments, strings, numbers and the usual keywords.

const COMMENT: &str = "\x1b[2m";
const STRING: &str = "\x1b[32m";
const NUMBER: &str = "\x1b[33m";
const KEYWORD: &str = "\x1b[35m";
const REMOVED: &str = "\x1b[31m";
const END: &str = "\x1b[0m";

/// Keywords of common languages. A word that is a keyword only elsewhere is rarely a name.
const KEYWORDS: &str = " \
    abstract and as assert async await begin bool break case catch char class const continue crate def default defer del do done \
    double elif else elsif end enum esac except export extends extern false fi final finally float fn for foreach from func function \
    global go goto if impl implements import in include instanceof int interface internal is lambda let local long loop match mod \
    module mut namespace new nil None nonlocal not null object of operator or override package pass private protected public pub raise \
    ref require return self Self short signed static str string struct super switch template then this throw throws trait true True \
    False try type typedef typeof undefined union unless unsafe unsigned until use using var virtual void volatile when where while \
    with yield SELECT FROM WHERE INSERT INTO VALUES UPDATE SET DELETE CREATE TABLE JOIN LEFT RIGHT INNER ON GROUP BY ORDER HAVING \
    LIMIT AS AND OR NOT NULL ";

/// The syntax of a language, as far as highlighting needs it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Language {
    /// The starts of comments that end with their line.
    comments: &'static [&'static str],
    /// Whether `'` begins a string.
    has_single: bool,
    is_diff: bool,
    /// Whether there are colours at all.
    is_known: bool,
}

impl Language {
    /// Returns a language by the name after a fence.
    pub fn named(name: &str) -> Self {
        let known = Self { has_single: true, is_known: true, ..Self::default() };
        match name.to_ascii_lowercase().as_str() {
            "" | "text" | "txt" | "plain" | "plaintext" | "console" | "output" | "markdown" | "md" => Self::default(),
            "diff" | "patch" => Self { is_diff: true, is_known: true, ..Self::default() },
            "rust" | "rs" => Self { comments: &["//"], has_single: false, ..known },
            "python" | "py" | "bash" | "sh" | "shell" | "zsh" | "ruby" | "rb" | "yaml" | "yml" | "toml" | "r" | "perl" | "make"
            | "makefile" | "dockerfile" | "ini" | "nix" | "elixir" | "julia" => Self { comments: &["#"], ..known },
            "sql" | "lua" | "haskell" | "hs" | "ada" => Self { comments: &["--"], ..known },
            "json" => known,
            "html" | "xml" | "css" => Self { has_single: false, ..known },
            "php" => Self { comments: &["//", "#"], ..known },
            _ => Self { comments: &["//"], ..known },
        }
    }

    /// Colours a line of code.
    pub fn coloured(self, line: &str) -> String {
        if !self.is_known {
            return line.to_owned();
        }
        if self.is_diff {
            let code = if line.starts_with('+') {
                STRING
            } else if line.starts_with('-') {
                REMOVED
            } else {
                ""
            };
            return if code.is_empty() { line.to_owned() } else { format!("{code}{line}{END}") };
        }
        let (mut shown, mut rest, mut before) = (String::with_capacity(2 * line.len()), line, ' ');
        while let Some(c) = rest.chars().next() {
            let (len, code) = self.token(rest, c, before);
            let token = &rest[..len];
            if code.is_empty() {
                shown.push_str(token)
            } else {
                shown.push_str(&format!("{code}{token}{END}"))
            }
            before = token.chars().next_back().unwrap_or(' ');
            rest = &rest[len..];
        }
        shown
    }

    /// The length of the token at the start of `rest`, and its colour.
    fn token(self, rest: &str, c: char, before: char) -> (usize, &'static str) {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let word = || rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
        // A mark inside a word, as in `$#` or `http://`, begins no comment.
        let begins = before.is_whitespace() || ";){}".contains(before);
        if begins && self.comments.iter().any(|mark| rest.starts_with(mark)) {
            return (rest.len(), COMMENT);
        }
        match c {
            '"' | '`' => (string(rest, c), STRING),
            '\'' if self.has_single && !is_word(before) => (string(rest, c), STRING),
            c if c.is_ascii_digit() && !is_word(before) => (number(rest), NUMBER),
            c if is_word(c) => {
                let len = word();
                let is_keyword = KEYWORDS.contains(&format!(" {} ", &rest[..len]));
                (len, if is_keyword { KEYWORD } else { "" })
            }
            c => (c.len_utf8(), ""),
        }
    }
}

/// The length of a string up to its end, or to the end of the line.
fn string(text: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            c if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

fn number(text: &str) -> usize {
    text.find(|c: char| !c.is_ascii_alphanumeric() && c != '.' && c != '_').unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marked(language: &str, line: &str) -> String {
        let shown = Language::named(language).coloured(line);
        let names = [(COMMENT, "<c>"), (STRING, "<s>"), (NUMBER, "<n>"), (KEYWORD, "<k>"), (REMOVED, "<r>"), (END, "</>")];
        names.iter().fold(shown, |text, (code, name)| text.replace(code, name))
    }

    #[test]
    fn code_is_coloured() {
        assert_eq!(marked("python", "def f(x): # it's"), "<k>def</> f(x): <c># it's</>");
        assert_eq!(marked("rust", "let s: &'a str = \"a\\\"b\"; // c"), "<k>let</> s: &'a <k>str</> = <s>\"a\\\"b\"</>; <c>// c</>");
        assert_eq!(marked("js", "x1 = 'a' + 0xff"), "x1 = <s>'a'</> + <n>0xff</>");
        assert_eq!(marked("sh", "echo $# \"https://a\""), "echo $# <s>\"https://a\"</>");
        assert_eq!(marked("diff", "-old"), "<r>-old</>");
        assert_eq!(marked("", "if 1"), "if 1");
    }
}
