//! Cutting text into words before byte pairs are merged: each `tokenizer.ggml.pre` names a list of patterns. A pattern cuts each piece that the one
//! before it left into matches and the gaps between them. The patterns are those of the models' own `tokenizer.json`; they are scanned by hand, since
//! `\s+(?!\S)` needs a look-ahead and a table of classes is faster than a regex engine.

use super::chars::{CASED, LETTER, NUMBER, PUNCTUATION, SPACE, classes};

/// One pattern.
#[derive(Clone, Copy)]
enum Pattern {
    /// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
    Gpt2,
    /// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,max}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
    Llama3 { max_digits: usize },
    /// A run of a set, with one `\s` before it where `lead` is set.
    Run { set: fn(char, u8) -> bool, lead: bool, min: usize, max: usize },
    /// `\s+$`
    TrailingSpace,
}

use Pattern::{Gpt2, Llama3, Run, TrailingSpace};

const MANY: usize = usize::MAX;

const fn run(set: fn(char, u8) -> bool) -> Pattern {
    Run { set, lead: false, min: 1, max: MANY }
}

const fn led(set: fn(char, u8) -> bool) -> Pattern {
    Run { set, lead: true, min: 1, max: MANY }
}

const fn exactly(set: fn(char, u8) -> bool, count: usize) -> Pattern {
    Run { set, lead: false, min: count, max: count }
}

fn number(_: char, class: u8) -> bool {
    class & NUMBER != 0
}

fn ascii_digit(c: char, _: u8) -> bool {
    c.is_ascii_digit()
}

fn letter(_: char, class: u8) -> bool {
    class & LETTER != 0
}

fn cased(_: char, class: u8) -> bool {
    class & CASED != 0
}

fn punctuation(_: char, class: u8) -> bool {
    class & PUNCTUATION != 0
}

fn punctuation_or_sign(c: char, class: u8) -> bool {
    class & PUNCTUATION != 0 || "$+<=>^~|".contains(c)
}

fn punctuation_sign_or_grave(c: char, class: u8) -> bool {
    punctuation_or_sign(c, class) || c == '`'
}

fn line_break(c: char, _: u8) -> bool {
    c == '\r' || c == '\n'
}

fn deepseek_sign(c: char, _: u8) -> bool {
    matches!(c, '!'..='/' | ':'..='~' | '！'..='／' | '：'..='～' | '‘'..='‟' | '\u{3000}'..='。')
}

fn cjk(c: char, _: u8) -> bool {
    matches!(c, '\u{800}'..='\u{9fa5}' | '\u{ac00}'..='\u{d7ff}')
}

const GPT2: &[Pattern] = &[Gpt2];
const DIGITS_GPT2: &[Pattern] = &[exactly(number, 1), Gpt2];
const LLAMA3: &[Pattern] = &[Llama3 { max_digits: 3 }];
const QWEN2: &[Pattern] = &[Llama3 { max_digits: 1 }];
const DEFAULT: &[Pattern] = &[run(punctuation_or_sign), Gpt2, run(number), exactly(ascii_digit, 3)];
const FALCON: &[Pattern] = &[run(punctuation_sign_or_grave), Gpt2, exactly(ascii_digit, 3)];
const DEEPSEEK_LLM: &[Pattern] = &[exactly(line_break, 1), led(cased), led(deepseek_sign), TrailingSpace, run(cjk), run(number)];
const DEEPSEEK_CODER: &[Pattern] = &[exactly(line_break, 1), led(letter), led(punctuation), run(cjk), exactly(number, 1)];

/// Llama 3 and those that took over its tokenizer: whole words before merges, and a BOS before a text, though its older files do not say that.
pub(super) fn is_llama3(name: &str) -> bool {
    matches!(name, "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "lfm2")
}

/// A pre-tokenizer by its GGUF name.
pub(super) struct PreTokenizer {
    patterns: &'static [Pattern],
    /// A word that is itself a token is taken whole, whatever the merges say.
    pub(super) ignore_merges: bool,
    classes: &'static [u8],
}

impl PreTokenizer {
    /// None: not a name that is known here.
    pub(super) fn by_name(name: &str) -> Option<Self> {
        let patterns = match name {
            "default" => DEFAULT,
            "gpt-2" | "phi-2" | "jina-es" | "jina-de" | "roberta-bpe" | "mpt" | "olmo" | "jais" | "trillion" | "exaone4"
            | "granite-docling" => GPT2,
            "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone" | "minerva-7b" => DIGITS_GPT2,
            "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "lfm2" | "dbrx" | "smaug-bpe" => LLAMA3,
            "qwen2" | "deepseek-r1-qwen" | "stablelm2" | "hunyuan" | "megrez" => QWEN2,
            "falcon" => FALCON,
            "deepseek-llm" => DEEPSEEK_LLM,
            "deepseek-coder" => DEEPSEEK_CODER,
            _ => return None,
        };
        Some(Self { patterns, ignore_merges: is_llama3(name), classes: classes() })
    }

    /// Gives each word of `text` in order; together they are the text.
    pub(super) fn words<'a>(&self, text: &'a str, emit: &mut impl FnMut(&'a str)) {
        self.cut(self.patterns, text, emit);
    }

    fn cut<'a>(&self, patterns: &[Pattern], piece: &'a str, emit: &mut impl FnMut(&'a str)) {
        let Some((&pattern, rest)) = patterns.split_first() else {
            return emit(piece);
        };
        if let TrailingSpace = pattern {
            // once a piece: a search from every place in a run of spaces would take the square of its length
            let (text, spaces) = piece.split_at(piece.trim_end().len());
            return [text, spaces].into_iter().filter(|part| !part.is_empty()).for_each(|part| self.cut(rest, part, emit));
        }
        let scan = Scan { text: piece, classes: self.classes };
        let (mut at, mut gap) = (0, 0);
        while at < piece.len() {
            let end = scan.matched(pattern, at);
            if end == at {
                at += scan.at(at).2;
                continue;
            }
            if gap < at {
                self.cut(rest, &piece[gap..at], emit);
            }
            self.cut(rest, &piece[at..end], emit);
            (at, gap) = (end, end);
        }
        if gap < piece.len() {
            self.cut(rest, &piece[gap..], emit);
        }
    }
}

struct Scan<'a> {
    text: &'a str,
    classes: &'static [u8],
}

impl Scan<'_> {
    /// The character at a byte position, its classes and its length in bytes (0 at the end).
    #[inline(always)]
    fn at(&self, at: usize) -> (char, u8, usize) {
        match self.text.as_bytes().get(at) {
            None => ('\0', 0, 0),
            Some(&byte) if byte < 128 => (byte as char, self.classes[byte as usize], 1),
            Some(_) => {
                let c = self.text[at..].chars().next().unwrap_or('\0');
                (c, self.classes[c as usize], c.len_utf8())
            }
        }
    }

    /// Where the run of characters that `set` holds ends, from `at` on.
    #[inline(always)]
    fn run(&self, mut at: usize, mut max: usize, set: impl Fn(char, u8) -> bool) -> usize {
        while max > 0 {
            let (c, class, len) = self.at(at);
            if len == 0 || !set(c, class) {
                break;
            }
            at += len;
            max -= 1;
        }
        at
    }

    /// The end of the pattern's match that starts at `at`; `at` itself where it has none.
    fn matched(&self, pattern: Pattern, at: usize) -> usize {
        match pattern {
            Gpt2 => self.gpt2(at),
            Llama3 { max_digits } => self.llama3(at, max_digits),
            Run { set, lead, min, max } => {
                let (c, class, len) = self.at(at);
                if lead && class & SPACE != 0 {
                    let end = self.run(at + len, max, set);
                    if end > at + len {
                        return end;
                    }
                }
                if !set(c, class) {
                    return at;
                }
                let end = self.run(at, max, set);
                if min > 1 && self.text[at..end].chars().count() < min { at } else { end }
            }
            TrailingSpace => at,
        }
    }

    fn gpt2(&self, at: usize) -> usize {
        let (c, _, _) = self.at(at);
        if c == '\'' {
            let end = self.contraction(at, false);
            if end > at {
                return end;
            }
        }
        let start = if c == ' ' { at + 1 } else { at };
        let (_, class, len) = self.at(start);
        if len > 0 && class & SPACE == 0 {
            return self.run(start, MANY, |_, other| (other ^ class) & (LETTER | NUMBER | SPACE) == 0);
        }
        self.spaces(at)
    }

    fn llama3(&self, at: usize, max_digits: usize) -> usize {
        let (c, class, len) = self.at(at);
        if c == '\'' {
            let end = self.contraction(at, true);
            if end > at {
                return end;
            }
        }
        let is_letter = |_: char, class: u8| class & LETTER != 0;
        if class & LETTER != 0 {
            return self.run(at, MANY, is_letter);
        }
        if class & NUMBER != 0 {
            return self.run(at, max_digits, |_, class| class & NUMBER != 0);
        }
        if !line_break(c, class) && self.at(at + len).1 & LETTER != 0 {
            return self.run(at + len, MANY, is_letter);
        }
        let start = if c == ' ' { at + 1 } else { at };
        let (_, class, len) = self.at(start);
        if len > 0 && class & (SPACE | LETTER | NUMBER) == 0 {
            let end = self.run(start, MANY, |_, class| class & (SPACE | LETTER | NUMBER) == 0);
            return self.run(end, MANY, line_break);
        }
        let end = self.run(at, MANY, |_, class| class & SPACE != 0);
        match self.text[at..end].rfind(['\r', '\n']) {
            Some(last) => at + last + 1,
            None => self.spaces(at),
        }
    }

    /// `\s+(?!\S)|\s+`: the last of several spaces belongs to the word that follows.
    fn spaces(&self, at: usize) -> usize {
        let (mut end, mut last) = (at, at);
        loop {
            let (_, class, len) = self.at(end);
            if len == 0 || class & SPACE == 0 {
                break;
            }
            last = end;
            end += len;
        }
        if end < self.text.len() && last > at { last } else { end }
    }

    /// The end of `'s`, `'t`, `'re`, `'ve`, `'m`, `'ll` or `'d` at `at`.
    fn contraction(&self, at: usize, any_case: bool) -> usize {
        let fold = |byte: Option<&u8>| byte.map_or(0, |b| if any_case { b.to_ascii_lowercase() } else { *b });
        let bytes = self.text.as_bytes();
        match (fold(bytes.get(at + 1)), fold(bytes.get(at + 2))) {
            (b's' | b't' | b'm' | b'd', _) => at + 2,
            (b'r', b'e') | (b'v', b'e') | (b'l', b'l') => at + 3,
            _ => at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(name: &str, text: &str) -> Vec<String> {
        let mut out = Vec::new();
        PreTokenizer::by_name(name).unwrap().words(text, &mut |w| out.push(w.to_string()));
        out
    }

    #[test]
    fn cuts_as_the_patterns_say() {
        assert_eq!(words("gpt-2", "I've  two\n\n cats'  "), ["I", "'ve", " ", " two", "\n\n", " cats", "'", "  "]);
        assert_eq!(words("smollm", "a 12"), ["a", " ", "1", "2"]);
        assert_eq!(words("llama-bpe", "x=12345 \n\n  y'LL"), ["x", "=", "123", "45", " \n\n", " ", " y", "'LL"]);
        assert_eq!(words("qwen2", " (hi)\r\n9"), [" (", "hi", ")\r\n", "9"]);
        assert_eq!(words("falcon", "`a` 12345"), ["`", "a", "`", " ", "123", "45"].map(String::from).to_vec());
        assert!(PreTokenizer::by_name("no such").is_none());
    }

    proptest::proptest! {
        #[test]
        fn words_are_the_text(text in "\\PC*|[ \\n\\r\\t'a-zé1٣。！]*") {
            for name in ["default", "gpt-2", "smollm", "llama-bpe", "qwen2", "falcon", "deepseek-llm", "deepseek-coder"] {
                proptest::prop_assert_eq!(words(name, &text).concat(), text.clone());
            }
        }
    }
}
