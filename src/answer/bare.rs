//! Calls by JSON alone, `{"name": …, "arguments": …}`, perhaps in a fence: small models forget their family's tags.

use serde_json::Value;

const FENCE: &str = "```json";

/// An answer's beginning against that of such a call.
#[derive(Debug, PartialEq, Eq)]
pub enum Beginning {
    /// It may still become one.
    Open,
    No,
    /// It is one; its function's name and what follows stand from here on.
    At(usize),
}

/// A text against what is due.
pub enum Due {
    /// It is all there.
    There,
    /// It may still come.
    Open,
    Missing,
}

pub fn due(text: &str, tag: &str) -> Due {
    if text.starts_with(tag) {
        Due::There
    } else if tag.starts_with(text) {
        Due::Open
    } else {
        Due::Missing
    }
}

/// Decided as soon as the name of one of `functions` has ended.
pub fn beginning(text: &str, functions: &[String]) -> Beginning {
    let mut rest = text.trim_start();
    match due(rest, FENCE) {
        Due::There => rest = &rest[FENCE.len()..],
        Due::Open => return Beginning::Open,
        Due::Missing => {}
    }
    for token in ["{", "\"name\"", ":", "\""] {
        rest = rest.trim_start();
        match due(rest, token) {
            Due::There => rest = &rest[token.len()..],
            Due::Open => return Beginning::Open,
            Due::Missing => return Beginning::No,
        }
    }
    match rest.split_once('"') {
        Some((name, _)) if functions.iter().any(|function| function == name) => Beginning::At(text.len() - rest.len()),
        None if functions.iter().any(|function| function.starts_with(rest)) => Beginning::Open,
        _ => Beginning::No,
    }
}

/// May a call go on like this behind its function's name and quotation mark?
pub fn goes_on(rest: &str) -> bool {
    let rest = rest.trim_start();
    let Some(rest) = rest.strip_prefix(',').map(str::trim_start) else { return rest.is_empty() };
    ["\"arguments\"", "\"parameters\""].iter().any(|key| key.starts_with(rest))
}

/// An answer that may be a call.
pub enum Bare {
    Open,
    No,
    /// The function and its arguments.
    Call(String, Value),
}

/// Takes an answer for a call once it is complete.
pub fn call(text: &str, functions: &[String]) -> Bare {
    match beginning(text, functions) {
        Beginning::Open => return Bare::Open,
        Beginning::No => return Bare::No,
        Beginning::At(_) => {}
    }
    let body = text.trim_start();
    let body = body.strip_prefix(FENCE).unwrap_or(body);
    match serde_json::Deserializer::from_str(body).into_iter::<Value>().next() {
        Some(Err(error)) if error.is_eof() => Bare::Open,
        Some(Ok(call)) => {
            let arguments = [&call["arguments"], &call["parameters"]].into_iter().find(|arguments| arguments.is_object());
            match (call["name"].as_str(), arguments, call.as_object().map(serde_json::Map::len)) {
                (Some(name), Some(arguments), Some(2)) => Bare::Call(name.to_owned(), arguments.clone()),
                _ => Bare::No,
            }
        }
        _ => Bare::No,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_begins_with_its_functions_name() {
        let functions = ["get".to_owned(), "get_all".to_owned()];
        for text in ["{\"name\": \"get\"", " \n{\"name\":\"get\",", "```json\n{\n  \"name\" : \"get_all\", \"arg"] {
            let at = text.find("get").unwrap();
            assert_eq!(beginning(text, &functions), Beginning::At(at), "{text}");
            for end in 0..text.rfind("get").unwrap() + 3 {
                assert_eq!(beginning(&text[..end], &functions), Beginning::Open, "{}", &text[..end]);
            }
        }
        for text in ["x", "{\"name\": \"Ada\"", "{\"name\": \"g\"", "{\"age\"", "```python", "[{\"name\"", "{\"name\": \"get_any"] {
            assert_eq!(beginning(text, &functions), Beginning::No, "{text}");
        }
    }

    #[test]
    fn arguments_follow_the_name() {
        for rest in ["", " ", ",", ",\n ", ", \"", ", \"argum", ", \"parameters\""] {
            assert!(goes_on(rest), "{rest}");
        }
        for rest in ["}", ": ", ",,", ", \"description", ", \"arguments\":"] {
            assert!(!goes_on(rest), "{rest}");
        }
    }
}
