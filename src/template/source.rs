//! Checks a template's source and removes `generation` tags, before minijinja parses it.

use crate::instrument::PREFIX;

/// Longest source, in bytes. The longest of 51 real templates has 17 KiB. The parser and the code generator recurse once per operator,
/// filter, attribute or `elif`; a source of this length does not overflow their stack.
pub(super) const MAX_SOURCE: usize = 192 << 10;

/// Longest tag, in bytes without what its string literals hold. The longest one in 51 real templates has 299 bytes. minijinja tries to
/// fold constants at each operator, which takes time quadratic in the length of the tag. A literal is one token, however long it is:
/// some templates carry a whole system message in one.
pub(super) const MAX_TAG: usize = 4 << 10;

pub(super) fn check(source: &str) -> Result<(), String> {
    if source.len() > MAX_SOURCE {
        return Err(format!("the source has {} bytes, expected at most {MAX_SOURCE}", source.len()));
    }
    if source.contains(PREFIX) {
        return Err(format!("the source contains `{PREFIX}`, which is reserved for the sandbox"));
    }
    match longest_tag(source) {
        (length, line) if length > MAX_TAG => {
            Err(format!("line {line}: a tag has {length} bytes outside of its strings, expected at most {MAX_TAG}"))
        }
        _ => Ok(()),
    }
}

/// The length in bytes, without the contents of string literals, and the line of the longest tag or expression. Skips comments.
pub(super) fn longest_tag(source: &str) -> (usize, usize) {
    let (mut longest, mut at) = ((0, 0), 0);
    while let Some(start) = source[at..].find('{').map(|found| at + found) {
        let (end, length) = match source.as_bytes().get(start + 1) {
            Some(b'{') => tag_length(&source[start..], "}}"),
            Some(b'%') => tag_length(&source[start..], "%}"),
            Some(b'#') => {
                at = source[start..].find("#}").map_or(source.len(), |end| start + end + 2);
                continue;
            }
            _ => (1, 1),
        };
        if length > longest.0 {
            longest = (length, source[..start].matches('\n').count() + 1);
        }
        at = start + end;
    }
    longest
}

/// Where a tag ends, and its length without the contents of string literals. The end of a tag inside quotes does not count.
fn tag_length(tag: &str, end: &str) -> (usize, usize) {
    let bytes = tag.as_bytes();
    let (mut at, mut quote, mut length) = (2, None, 2);
    while at < bytes.len() {
        match (quote, bytes[at]) {
            (Some(_), b'\\') => at += 1,
            (Some(open), byte) if open == byte => (quote, length) = (None, length + 1),
            (Some(_), _) => {}
            (None, _) if bytes[at..].starts_with(end.as_bytes()) => return (at + end.len(), length + end.len()),
            (None, byte) => {
                length += 1;
                quote = Some(byte).filter(|byte| matches!(byte, b'"' | b'\''));
            }
        }
        at += 1;
    }
    (bytes.len(), length)
}

/// Replaces the tags `{% generation %}` and `{% endgeneration %}`, with which Transformers marks the assistant's text for training. They
/// print nothing.
pub(super) fn strip_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        out.push_str(&rest[..start]);
        rest = &rest[start..];
        // Behind the opening: a tag may be as short as `{%%}`, but in `{%}` nothing ends.
        let Some(end) = rest[2..].find("%}").map(|at| at + 2) else { break };
        let inner = &rest[2..end];
        let (left, inner) = split_sign(inner, true);
        let (right, inner) = split_sign(inner, false);
        if matches!(inner.trim(), "generation" | "endgeneration") {
            // An empty `if` is a block tag too, so whitespace control, `trim_blocks` and `lstrip_blocks` have the same effect.
            out.push_str(&format!("{{%{left} if false %}}{{% endif {right}%}}"));
            rest = &rest[end + 2..];
        } else {
            out.push_str("{%");
            rest = &rest[2..];
        }
    }
    out.push_str(rest);
    out
}

fn split_sign(text: &str, at_start: bool) -> (&str, &str) {
    let sign = |c: char| c == '-' || c == '+';
    if at_start && text.starts_with(sign) {
        text.split_at(1)
    } else if !at_start && text.ends_with(sign) {
        let (inner, sign) = text.split_at(text.len() - 1);
        (sign, inner)
    } else {
        ("", text)
    }
}
