//! Upper and lower case, and Python's `is…` methods on the characters of a string.

use unicode_general_category::{GeneralCategory as Category, get_general_category};

use crate::syntax::chars::is_space;
use crate::value::is_printable;

/// The character in title case. A ligature yields one capital.
fn titled(c: char) -> String {
    // These characters have title-case forms of their own.
    match c {
        '\u{1c4}'..='\u{1c6}' => return '\u{1c5}'.into(),
        '\u{1c7}'..='\u{1c9}' => return '\u{1c8}'.into(),
        '\u{1ca}'..='\u{1cc}' => return '\u{1cb}'.into(),
        '\u{1f1}'..='\u{1f3}' => return '\u{1f2}'.into(),
        _ => {}
    }
    let mut upper = c.to_uppercase();
    let first: String = upper.next().into_iter().collect();
    first + &upper.flat_map(char::to_lowercase).collect::<String>()
}

pub(super) fn capitalize(text: &str) -> String {
    let Some(first) = text.chars().next() else { return String::new() };
    // The lower-case form of a letter may depend on earlier letters, so the whole text is converted at once.
    let small = text.to_lowercase();
    let behind: usize = first.to_lowercase().map(char::len_utf8).sum();
    titled(first) + small.get(behind..).unwrap_or_default()
}

fn is_cased(c: char) -> bool {
    c.is_lowercase() || c.is_uppercase() || get_general_category(c) == Category::TitlecaseLetter
}

/// The lower-case form of the character at `at`. A sigma has a special form at the end of a word.
fn small(text: &str, at: usize, c: char) -> String {
    let begins_cased = |text: &str| text.chars().next().is_some_and(is_cased);
    let is_final = c == 'Σ' && text[..at].chars().next_back().is_some_and(is_cased) && !begins_cased(&text[at + c.len_utf8()..]);
    if is_final { "ς".into() } else { c.to_lowercase().collect() }
}

/// `str.title`: a letter after a letter becomes lower case.
pub(super) fn title(text: &str) -> String {
    let (mut out, mut behind_letter) = (String::with_capacity(text.len()), false);
    for (at, c) in text.char_indices() {
        out.push_str(&if behind_letter { small(text, at, c) } else { titled(c) });
        behind_letter = is_cased(c);
    }
    out
}

pub(super) fn swapcase(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for (at, c) in text.char_indices() {
        if c.is_uppercase() {
            out.push_str(&small(text, at, c));
        } else if c.is_lowercase() {
            out.extend(c.to_uppercase());
        } else {
            out.push(c);
        }
    }
    out
}

pub(super) fn casefold(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            'ß' | 'ẞ' => out.push_str("ss"),
            'ſ' => out.push('s'),
            'ς' => out.push('σ'),
            'µ' => out.push('μ'),
            // A ligature folds to its letters.
            '\u{fb00}'..='\u{fb17}' => out.extend(c.to_uppercase().flat_map(char::to_lowercase)),
            c => out.extend(c.to_lowercase()),
        }
    }
    out
}

fn is_alpha(c: char) -> bool {
    use Category::{LowercaseLetter, ModifierLetter, OtherLetter, TitlecaseLetter, UppercaseLetter};
    matches!(get_general_category(c), LowercaseLetter | ModifierLetter | OtherLetter | TitlecaseLetter | UppercaseLetter)
}

fn is_decimal(c: char) -> bool {
    get_general_category(c) == Category::DecimalNumber
}

/// Whether a character is a digit: a decimal one, or one in a form such as a superscript.
fn is_digit(c: char) -> bool {
    let form = matches!(c, '²' | '³' | '¹' | '\u{2070}' | '\u{2074}'..='\u{2079}' | '\u{2080}'..='\u{2089}' | '\u{2460}'..='\u{2468}'
        | '\u{2474}'..='\u{247c}' | '\u{2488}'..='\u{2490}' | '\u{24ea}' | '\u{24f5}'..='\u{24fd}' | '\u{24ff}' | '\u{2776}'..='\u{277e}'
        | '\u{2780}'..='\u{2788}' | '\u{278a}'..='\u{2792}');
    form || is_decimal(c)
}

fn is_numeric(c: char) -> bool {
    const HAN: &str = "〇一二三四五六七八九十百千万億兆零壹貳參肆伍陸柒捌玖拾佰仟萬两兩";
    matches!(get_general_category(c), Category::DecimalNumber | Category::LetterNumber | Category::OtherNumber) || HAN.contains(c)
}

fn all(text: &str, is: impl Fn(char) -> bool) -> bool {
    !text.is_empty() && text.chars().all(is)
}

pub(super) fn is_lower(text: &str) -> bool {
    let is_other = |c: char| c.is_uppercase() || get_general_category(c) == Category::TitlecaseLetter;
    text.chars().any(char::is_lowercase) && !text.chars().any(is_other)
}

pub(super) fn is_upper(text: &str) -> bool {
    let is_other = |c: char| c.is_lowercase() || get_general_category(c) == Category::TitlecaseLetter;
    text.chars().any(char::is_uppercase) && !text.chars().any(is_other)
}

fn is_title(text: &str) -> bool {
    let (mut behind_letter, mut any) = (false, false);
    for c in text.chars() {
        let begins = c.is_uppercase() || get_general_category(c) == Category::TitlecaseLetter;
        if (begins && behind_letter) || (c.is_lowercase() && !behind_letter) {
            return false;
        }
        behind_letter = begins || c.is_lowercase();
        any |= behind_letter;
    }
    any
}

fn is_identifier(text: &str) -> bool {
    let begins = |c: char| c == '_' || is_alpha(c) || get_general_category(c) == Category::LetterNumber;
    let goes_on = |c: char| {
        use Category::{ConnectorPunctuation, DecimalNumber, NonspacingMark, SpacingMark};
        begins(c) || matches!(get_general_category(c), ConnectorPunctuation | DecimalNumber | NonspacingMark | SpacingMark)
    };
    text.chars().next().is_some_and(begins) && text.chars().all(goes_on)
}

/// Evaluates a method `is…`.
pub(super) fn question(name: &str, text: &str) -> Option<bool> {
    Some(match name {
        "isalnum" => all(text, |c| is_alpha(c) || is_numeric(c)),
        "isalpha" => all(text, is_alpha),
        "isascii" => text.is_ascii(),
        "isdecimal" => all(text, is_decimal),
        "isdigit" => all(text, is_digit),
        "isidentifier" => is_identifier(text),
        "islower" => is_lower(text),
        "isnumeric" => all(text, is_numeric),
        "isprintable" => text.chars().all(is_printable),
        "isspace" => all(text, is_space),
        "istitle" => is_title(text),
        "isupper" => is_upper(text),
        _ => return None,
    })
}
