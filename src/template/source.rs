//! Checks a template's source before it is parsed.

/// Longest source, in bytes. The longest of 51 real templates has 17 KiB.
pub(super) const MAX_SOURCE: usize = 192 << 10;

/// Longest tag, in bytes without what its string literals hold. The longest one in 51 real templates has 299 bytes. The
/// interpreter recurses once per operator, filter or attribute of an expression. A literal is one token, however long it is: some
/// templates carry a whole system message in one.
pub(super) const MAX_TAG: usize = 4 << 10;

pub(super) fn check(source: &str) -> Result<(), String> {
    if source.len() > MAX_SOURCE {
        return Err(format!("the source has {} bytes, expected at most {MAX_SOURCE}", source.len()));
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
