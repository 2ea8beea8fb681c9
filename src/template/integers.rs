//! Keeps whole numbers of more than 64 bits exact, which `serde_json` would round to doubles.
//!
//! In a JSON tree, an object with one member represents such a number. The member's name does not occur in JSON that people write. A
//! template sees an integer.

use std::borrow::Cow;
use std::ops::Range;

use num_bigint::BigInt;
use serde_json::Value;

/// The name of that member.
const NAME: &str = "\u{0}integer";
/// The object's text before its digits, as `serde_json` writes it.
const BEFORE: &str = "{\"\\u0000integer\":\"";
const AFTER: &str = "\"}";
/// The fewest digits of a number that does not fit in 64 bits.
const DIGITS: usize = 19;

/// The places of whole numbers in a JSON text that do not fit in 64 bits. Numbers with a point or an exponent are doubles everywhere.
pub fn long_integers(json: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut at = if has_digits(json) { 0 } else { json.len() };
    std::iter::from_fn(move || {
        while at < json.len() {
            let start = at;
            match json[at] {
                b'"' => at = end_of_string(json, at),
                b'-' | b'0'..=b'9' => {
                    let length =
                        json[at..].iter().take_while(|byte| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E')).count();
                    at += length;
                    if is_long(&json[start..at]) {
                        return Some(start..at);
                    }
                }
                _ => at += 1,
            }
        }
        None
    })
}

/// The position after a string that begins at `at`.
pub fn end_of_string(json: &[u8], at: usize) -> usize {
    let mut at = at + 1;
    while at < json.len() && json[at] != b'"' {
        at += if json[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(json.len())
}

/// Whether a text has as many digits in a row as a long integer. Reads few bytes of a text with few digits.
fn has_digits(text: &[u8]) -> bool {
    let mut at = DIGITS - 1;
    while at < text.len() {
        let before = text[..=at].iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
        let behind = text[at + 1..].iter().take(DIGITS - before.min(DIGITS)).take_while(|byte| byte.is_ascii_digit()).count();
        if before + behind >= DIGITS {
            return true;
        }
        at += if before == 0 { DIGITS } else { behind + DIGITS };
    }
    false
}

fn is_long(number: &[u8]) -> bool {
    let digits = number.strip_prefix(b"-").unwrap_or(number);
    let Ok(text) = std::str::from_utf8(number) else { return false };
    digits.len() >= DIGITS && digits.iter().all(u8::is_ascii_digit) && text.parse::<i64>().is_err() && text.parse::<u64>().is_err()
}

/// Parses a JSON text without rounding whole numbers.
///
/// # Errors
/// The text is not JSON, or a number has more than 128 bits.
pub fn parse_json(text: &str) -> Result<Value, String> {
    let mut marked = Cow::Borrowed(text);
    let mut copied = 0;
    for place in long_integers(text.as_bytes()) {
        let number = &text[place.clone()];
        if integer(number).is_none() {
            return Err(format!("the number {} has more than 128 bits", number.chars().take(100).collect::<String>()));
        }
        if copied == 0 {
            marked = Cow::Owned(String::with_capacity(2 * text.len()));
        }
        marked.to_mut().extend([&text[copied..place.start], BEFORE, number, AFTER]);
        copied = place.end;
    }
    if copied > 0 {
        marked.to_mut().push_str(&text[copied..]);
    }
    serde_json::from_str(&marked).map_err(|error| error.to_string())
}

/// Writes a tree of [`parse_json`] as JSON.
pub fn json_text(value: &Value) -> String {
    let text = value.to_string();
    let mut out = String::new();
    let mut rest = text.as_str();
    while let Some((before, behind)) = rest.split_once(BEFORE) {
        let number = behind.split_once(AFTER).filter(|(number, _)| integer(number).is_some());
        let (shown, behind) = number.unwrap_or((BEFORE, behind));
        out.extend([before, shown]);
        rest = behind;
    }
    if out.is_empty() {
        return text;
    }
    out + rest
}

/// The digits of a number of more than 64 bits in a tree of [`parse_json`]. `None` for any other value.
pub fn long_integer(value: &Value) -> Option<&str> {
    let map = value.as_object().filter(|map| map.len() == 1)?;
    map.get(NAME)?.as_str().filter(|digits| integer(digits).is_some())
}

/// The number of more than 64 bits that a tree of [`parse_json`] represents.
pub(crate) fn as_integer(value: &Value) -> Option<BigInt> {
    long_integer(value).and_then(integer)
}

fn integer(digits: &str) -> Option<BigInt> {
    if !digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-') {
        return None;
    }
    digits.parse::<i128>().map(Into::into).or_else(|_| digits.parse::<u128>().map(Into::into)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ChatTemplate, RenderInput};

    const LONG: [&str; 5] = [
        "18446744073709551616",
        "-9223372036854775809",
        "1000000000000000000000000000000",
        "340282366920938463463374607431768211455",
        "-170141183460469231731687303715884105728",
    ];

    #[test]
    fn whole_numbers_keep_their_digits_through_a_tree() {
        for number in
            LONG.into_iter().chain(["18446744073709551615", "-9223372036854775808", "9007199254740993", "0", "-1", "1.5", "1e300"])
        {
            for text in ["N", "[1,N,\"N\"]", "{\"a\":{\"b\":N},\"c\":[N]}", "{\"\\\"\":\"\\\\\",\"a\":N}"] {
                let text = text.replace('N', number).replace("1e300", "1e+300");
                assert_eq!(json_text(&parse_json(&text).unwrap()), text);
            }
        }
        for text in
            ["{\"\\u0000integer\":\"x\"}", "{\"\\u0000integer\":\"\"}", "[{\"\\u0000integer\":1},{\"a\":\"{\\\"\\\\u0000integer\\\":\"}]"]
        {
            assert_eq!(json_text(&parse_json(text).unwrap()), text, "names of a client stay what they are");
        }
        let error = parse_json("[1, 340282366920938463463374607431768211456]").unwrap_err();
        assert_eq!(error, "the number 340282366920938463463374607431768211456 has more than 128 bits");
        assert!(parse_json("[1").is_err());
    }

    #[test]
    fn long_integers_are_found_between_strings_only() {
        let found = |text: &str| long_integers(text.as_bytes()).map(|place| text[place].to_owned()).collect::<Vec<_>>();
        for number in LONG {
            let text = format!("{{\"a{number}\": [{number} ,\"{number}\\\"{number}\", {number}.0, {number}e5, 7, {number}]}}");
            assert_eq!(found(&text), [number, number], "{text}");
            for shift in 0..40 {
                assert_eq!(found(&format!("{}{number}", " ".repeat(shift))), [number]);
            }
        }
        assert_eq!(found("[18446744073709551615, -9223372036854775808, 1234567890123456789]"), [""; 0]);
        assert_eq!(found("\"18446744073709551616"), [""; 0], "a string without an end");
    }

    #[test]
    fn whole_numbers_are_printed_with_all_of_their_digits() {
        let texts = [
            "9007199254740993",
            "1234567890123456789",
            "9223372036854775807",
            "-9223372036854775808",
            "18446744073709551615",
            "18446744073709551616",
            "1000000000000000000000000000001",
            "-170141183460469231731687303715884105728",
            "340282366920938463463374607431768211455",
        ];
        let source = "{% for m in messages %}{{ m.id }} {{ m.id | tojson }} {{ m | tojson }} {{ m.text | from_json | tojson }} \
                      {{ m.id is number }} \
                      {{ m.id is mapping }}{% for key, value in m.items() %} {{ key }}={{ value }}{% endfor %}{% endfor %}";
        for number in texts {
            let messages = parse_json(&format!("[{{\"id\": {number}, \"text\": \"[{number}]\"}}]")).unwrap();
            let text = ChatTemplate::new(source, "", "").unwrap().render(&RenderInput { messages, ..RenderInput::default() }).unwrap();
            let due = format!(
                "{number} {number} {{\"id\": {number}, \"text\": \"[{number}]\"}} [{number}] True False id={number} text=[{number}]"
            );
            assert_eq!(text, due);
        }
        let input = RenderInput { messages: serde_json::json!([1e16, 0.5, 1e300, 5.0]), ..RenderInput::default() };
        assert_eq!(ChatTemplate::new("{{ messages | tojson }}", "", "").unwrap().render(&input).unwrap(), "[1e+16, 0.5, 1e+300, 5.0]");
    }
}
