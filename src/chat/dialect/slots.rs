//! Slots in a syntax's texts: places whose text differs from call to call.

use crate::bare::Due;

/// The most characters of a slot's text: a namespace of 64, a dot and a name of 64.
const MAX_SLOT: usize = 129;

/// A piece of a syntax's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    Text(&'a str),
    /// `{index}`: the number of the call, counted from 0.
    Index,
    /// `{number}`: the number of the call, counted from 1.
    Number,
    /// `{id}`: an id that the model makes up.
    Id,
    /// `{name}`: the function's name.
    Name,
    /// `{type}`: the JSON type of a value.
    Type,
}

const SLOTS: [(&str, Part); 5] =
    [("{index}", Part::Index), ("{number}", Part::Number), ("{id}", Part::Id), ("{name}", Part::Name), ("{type}", Part::Type)];

/// The pieces of a syntax's text in order.
pub fn parts(text: &str) -> Vec<Part<'_>> {
    let (mut out, mut rest) = (Vec::new(), text);
    let first =
        |text: &str| SLOTS.iter().filter_map(|(slot, part)| Some((text.find(slot)?, slot.len(), *part))).min_by_key(|found| found.0);
    while let Some((at, len, part)) = first(rest) {
        out.extend((at > 0).then_some(Part::Text(&rest[..at])));
        out.push(part);
        rest = &rest[at + len..];
    }
    out.extend((!rest.is_empty()).then_some(Part::Text(rest)));
    out
}

/// What stands before the first slot, and the rest.
pub fn split(text: &str) -> (&str, &str) {
    let at = SLOTS.iter().filter_map(|(slot, _)| text.find(slot)).min().unwrap_or(text.len());
    text.split_at(at)
}

/// A syntax's text with its slots filled in, for the call `index` of the function `name`.
pub fn filled(text: &str, index: usize, name: &str) -> String {
    let fill = |part| match part {
        Part::Text(text) => text.to_owned(),
        Part::Index => index.to_string(),
        Part::Number => (index + 1).to_string(),
        Part::Id => format!("{index:09}"),
        Part::Name => name.to_owned(),
        Part::Type => "string".to_owned(),
    };
    parts(text).into_iter().map(fill).collect()
}

/// Whether `text` begins with a syntax's text, and how long that is there. The length counts only if it is there. Without `name`, any
/// name will do.
pub fn due_with_slots(text: &str, pattern: &str, name: &str) -> (Due, usize) {
    let mut at = 0;
    for part in parts(pattern) {
        let rest = &text[at..];
        let fixed = match part {
            Part::Text(fixed) => fixed,
            Part::Name if !name.is_empty() => name,
            Part::Index | Part::Number | Part::Id | Part::Type | Part::Name => {
                let len = rest.find(|c: char| !c.is_ascii_alphanumeric() && !"_-.".contains(c));
                match len {
                    None if rest.len() <= MAX_SLOT => return (Due::Open, 0),
                    Some(len) if len > 0 && len <= MAX_SLOT => at += len,
                    _ => return (Due::Missing, 0),
                }
                continue;
            }
        };
        if rest.starts_with(fixed) {
            at += fixed.len();
        } else if fixed.starts_with(rest) {
            return (Due::Open, 0);
        } else {
            return (Due::Missing, 0);
        }
    }
    (Due::There, at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_with_slots_is_found_however_much_of_it_is_there() {
        let pattern = "a {index} b {name}>";
        let whole = filled(pattern, 7, "f");
        assert_eq!((whole.as_str(), split(pattern)), ("a 7 b f>", ("a ", "{index} b {name}>")));
        for end in 0..whole.len() {
            assert!(matches!(due_with_slots(&whole[..end], pattern, "f").0, Due::Open), "{end}");
        }
        let (due, len) = due_with_slots("a 12 b f>{", pattern, "f");
        assert!(matches!(due, Due::There) && len == 9);
        for text in ["a  b", "b", "a 1 b g>", &format!("a {}", "1".repeat(MAX_SLOT + 1))] {
            assert!(matches!(due_with_slots(text, pattern, "f").0, Due::Missing), "{text}");
        }
        assert_eq!(parts("{\"name\": \""), [Part::Text("{\"name\": \"")]);
    }
}
