//! What is checked and changed in a template's source before minijinja sees it.

/// The longest of 51 real templates has 17 KiB. The parser and the code generator recurse once an operator, a filter, an attribute or an
/// `elif`; what fits into this many bytes fits their stack too.
pub(super) const MAX_SOURCE: usize = 64 << 10;

/// The longest tag of 51 real templates has 2.3 KiB. Minijinja tries to fold constants at each operator anew, so its time grows with the
/// square of this.
const MAX_TAG: usize = 4 << 10;

pub(super) fn check_source(source: &str) -> Result<(), String> {
    if source.len() > MAX_SOURCE {
        return Err(format!("the source has {} bytes, more than {MAX_SOURCE}", source.len()));
    }
    if source.contains(super::edit::PREFIX) {
        return Err(format!("`{}` begins the names of this sandbox's own functions", super::edit::PREFIX));
    }
    match longest_tag(source) {
        (length, line) if length > MAX_TAG => Err(format!("line {line}: a tag has {length} bytes, more than {MAX_TAG}")),
        _ => Ok(()),
    }
}

/// The longest tag (or expression) in bytes, and its line. Comments are passed over, quoted ends of a tag do not end it.
fn longest_tag(source: &str) -> (usize, usize) {
    let (mut longest, mut at) = ((0, 0), 0);
    while let Some(start) = source[at..].find('{').map(|found| at + found) {
        let length = match source.as_bytes().get(start + 1) {
            Some(b'{') => tag_length(&source[start..], "}}"),
            Some(b'%') => tag_length(&source[start..], "%}"),
            Some(b'#') => {
                at = source[start..].find("#}").map_or(source.len(), |end| start + end + 2);
                continue;
            }
            _ => 1,
        };
        if length > longest.0 {
            longest = (length, source[..start].matches('\n').count() + 1);
        }
        at = start + length;
    }
    longest
}

fn tag_length(tag: &str, end: &str) -> usize {
    let bytes = tag.as_bytes();
    let (mut at, mut quote) = (2, None);
    while at < bytes.len() {
        match (quote, bytes[at]) {
            (Some(_), b'\\') => at += 1,
            (Some(open), byte) if open == byte => quote = None,
            (None, byte @ (b'"' | b'\'')) => quote = Some(byte),
            (None, _) if tag.as_bytes()[at..].starts_with(end.as_bytes()) => return at + end.len(),
            _ => {}
        }
        at += 1;
    }
    bytes.len()
}

/// Transformers marks the assistant's text for training with `{% generation %}` … `{% endgeneration %}`; they print nothing. An empty `if`
/// keeps the whitespace control of the tags that they replace.
pub(super) fn strip_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        out.push_str(&rest[..start]);
        rest = &rest[start..];
        let Some(end) = rest.find("%}") else { break };
        let inner = &rest[2..end];
        let (left, inner) = split_sign(inner, true);
        let (right, inner) = split_sign(inner, false);
        if matches!(inner.trim(), "generation" | "endgeneration") {
            // an empty `if` is a block tag like the one that it replaces, so `trim_blocks` and `lstrip_blocks` treat it alike
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
