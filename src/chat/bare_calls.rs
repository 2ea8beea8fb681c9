//! Recognises bare calls: `{"name": …, "arguments": …}` without the family's tags, perhaps in a code fence. Small models forget the tags.

use serde_json::Value;

const FENCE: &str = "```json";
const KEYS: [&str; 2] = ["\"arguments\"", "\"parameters\""];

/// Whether an answer begins with a bare call.
#[derive(Debug, PartialEq, Eq)]
pub enum BareCall {
    /// Undecided: it depends on what comes next.
    Open,
    No,
    /// It does. The function's name begins at this byte.
    At(usize),
}

/// Whether a text begins with a tag.
pub enum TagMatch {
    There,
    /// The text is a beginning of the tag.
    Open,
    Missing,
}

pub fn match_tag(text: &str, tag: &str) -> TagMatch {
    if text.starts_with(tag) {
        TagMatch::There
    } else if tag.starts_with(text) {
        TagMatch::Open
    } else {
        TagMatch::Missing
    }
}

/// The length of the longest end of `text` that is a proper beginning of `tag` [bytes].
pub fn partial(text: impl AsRef<[u8]>, tag: impl AsRef<[u8]>) -> usize {
    let (text, tag) = (text.as_ref(), tag.as_ref());
    let longest = text.len().min(tag.len().saturating_sub(1));
    (1..=longest).rev().find(|&len| text.ends_with(&tag[..len])).unwrap_or(0)
}

/// Whether `text` begins with a bare call of one of `functions`. The answer is known once the function's name has ended.
pub fn beginning(text: &str, functions: &[String]) -> BareCall {
    let mut rest = text.trim_start();
    match match_tag(rest, FENCE) {
        TagMatch::There => rest = &rest[FENCE.len()..],
        TagMatch::Open => return BareCall::Open,
        TagMatch::Missing => {}
    }
    for token in ["{", "\"name\"", ":", "\""] {
        rest = rest.trim_start();
        match match_tag(rest, token) {
            TagMatch::There => rest = &rest[token.len()..],
            TagMatch::Open => return BareCall::Open,
            TagMatch::Missing => return BareCall::No,
        }
    }
    match rest.split_once('"') {
        Some((name, _)) if functions.iter().any(|function| function == name) => BareCall::At(text.len() - rest.len()),
        None if functions.iter().any(|function| function.starts_with(rest)) => BareCall::Open,
        _ => BareCall::No,
    }
}

/// Whether a bare call may continue with `rest` after the function's name and its closing quotation mark.
pub fn goes_on(rest: &str) -> bool {
    let rest = rest.trim_start();
    let Some(rest) = rest.strip_prefix(',').map(str::trim_start) else { return rest.is_empty() };
    KEYS.iter().any(|key| key.starts_with(rest))
}

/// Reads a complete object that begins at its function's name: the function, its arguments as written, and their value. `None` if the
/// object is not a call.
pub fn call(text: &str) -> Option<(&str, &str, Value)> {
    let (name, rest) = text.split_once('"')?;
    let rest = rest.trim_start().strip_prefix(',')?.trim_start();
    let rest = KEYS.iter().find_map(|key| rest.strip_prefix(key))?.trim_start();
    let arguments = rest.strip_prefix(':')?.strip_suffix('}')?.trim();
    let value: Value = serde_json::from_str(arguments).ok()?;
    value.is_object().then_some((name, arguments, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_known_once_its_function_s_name_has_ended() {
        let functions = ["get".to_owned(), "get_all".to_owned()];
        for text in ["{\"name\": \"get\"", " \n{\"name\":\"get\",", "```json\n{\n  \"name\" : \"get_all\", \"arg"] {
            let at = text.find("get").unwrap();
            assert_eq!(beginning(text, &functions), BareCall::At(at), "{text}");
            for end in 0..text.rfind("get").unwrap() + 3 {
                assert_eq!(beginning(&text[..end], &functions), BareCall::Open, "{}", &text[..end]);
            }
        }
        for text in ["x", "{\"name\": \"Ada\"", "{\"name\": \"g\"", "{\"age\"", "```python", "[{\"name\"", "{\"name\": \"get_any"] {
            assert_eq!(beginning(text, &functions), BareCall::No, "{text}");
        }
    }

    #[test]
    fn the_arguments_follow_the_name() {
        for rest in ["", " ", ",", ",\n ", ", \"", ", \"argum", ", \"parameters\""] {
            assert!(goes_on(rest), "{rest}");
        }
        for rest in ["}", ": ", ",,", ", \"description", ", \"arguments\":"] {
            assert!(!goes_on(rest), "{rest}");
        }
    }

    #[test]
    fn arguments_stay_as_written() {
        let (name, arguments, value) = call("f\" ,\n\"arguments\" : {\"n\": 12345678901234567890123, \"x\": 1.10} }").unwrap();
        assert_eq!((name, arguments), ("f", "{\"n\": 12345678901234567890123, \"x\": 1.10}"));
        assert_eq!(value["x"], 1.1);
        for text in ["f\"}", "f\", \"arguments\": 3}", "f\", \"arguments\": {}, \"x\": 1}", "f\", \"x\": {}}", "f\", \"parameters\": {]}"] {
            assert_eq!(call(text), None, "{text}");
        }
    }
}
