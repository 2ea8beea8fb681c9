//! Placeholders in a syntax's texts: parts that differ from call to call.

use crate::bare_calls::TagMatch;

/// The longest text of a placeholder: a namespace of 64, a dot and a name of 64 [characters].
const MAX_PLACEHOLDER: usize = 129;

/// A part of a syntax's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyntaxPart<'a> {
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

const PLACEHOLDERS: [(&str, SyntaxPart); 5] = [
    ("{index}", SyntaxPart::Index),
    ("{number}", SyntaxPart::Number),
    ("{id}", SyntaxPart::Id),
    ("{name}", SyntaxPart::Name),
    ("{type}", SyntaxPart::Type),
];

/// The parts of a syntax's text in order.
pub fn parts(text: &str) -> Vec<SyntaxPart<'_>> {
    let (mut out, mut rest) = (Vec::new(), text);
    let first = |text: &str| {
        PLACEHOLDERS
            .iter()
            .filter_map(|(placeholder, part)| Some((text.find(placeholder)?, placeholder.len(), *part)))
            .min_by_key(|found| found.0)
    };
    while let Some((at, len, part)) = first(rest) {
        out.extend((at > 0).then_some(SyntaxPart::Text(&rest[..at])));
        out.push(part);
        rest = &rest[at + len..];
    }
    out.extend((!rest.is_empty()).then_some(SyntaxPart::Text(rest)));
    out
}

/// Splits a text before its first placeholder.
pub fn split(text: &str) -> (&str, &str) {
    let at = PLACEHOLDERS.iter().filter_map(|(placeholder, _)| text.find(placeholder)).min().unwrap_or(text.len());
    text.split_at(at)
}

/// Fills in the placeholders of a syntax's text for the call `index` of the function `name`.
pub fn filled(text: &str, index: usize, name: &str) -> String {
    let fill = |part| match part {
        SyntaxPart::Text(text) => text.to_owned(),
        SyntaxPart::Index => index.to_string(),
        SyntaxPart::Number => (index + 1).to_string(),
        SyntaxPart::Id => format!("{index:09}"),
        SyntaxPart::Name => name.to_owned(),
        SyntaxPart::Type => "string".to_owned(),
    };
    parts(text).into_iter().map(fill).collect()
}

/// Whether `text` begins with the syntax's text `pattern`, and the length of that match. The length is valid only for
/// [`TagMatch::There`]. If `name` is empty, any name matches.
pub fn match_with_placeholders(text: &str, pattern: &str, name: &str) -> (TagMatch, usize) {
    let mut at = 0;
    for part in parts(pattern) {
        let rest = &text[at..];
        let fixed = match part {
            SyntaxPart::Text(fixed) => fixed,
            SyntaxPart::Name if !name.is_empty() => name,
            SyntaxPart::Index | SyntaxPart::Number | SyntaxPart::Id | SyntaxPart::Type | SyntaxPart::Name => {
                let len = rest.find(|c: char| !c.is_ascii_alphanumeric() && !"_-.".contains(c));
                match len {
                    None if rest.len() <= MAX_PLACEHOLDER => return (TagMatch::Open, 0),
                    Some(len) if len > 0 && len <= MAX_PLACEHOLDER => at += len,
                    _ => return (TagMatch::Missing, 0),
                }
                continue;
            }
        };
        if rest.starts_with(fixed) {
            at += fixed.len();
        } else if fixed.starts_with(rest) {
            return (TagMatch::Open, 0);
        } else {
            return (TagMatch::Missing, 0);
        }
    }
    (TagMatch::There, at)
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
            assert!(matches!(match_with_placeholders(&whole[..end], pattern, "f").0, TagMatch::Open), "{end}");
        }
        let (matched, len) = match_with_placeholders("a 12 b f>{", pattern, "f");
        assert!(matches!(matched, TagMatch::There) && len == 9);
        for text in ["a  b", "b", "a 1 b g>", &format!("a {}", "1".repeat(MAX_PLACEHOLDER + 1))] {
            assert!(matches!(match_with_placeholders(text, pattern, "f").0, TagMatch::Missing), "{text}");
        }
        assert_eq!(parts("{\"name\": \""), [SyntaxPart::Text("{\"name\": \"")]);
    }
}
