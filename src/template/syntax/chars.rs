//! Python's classes of characters where Rust's differ.

/// Whether Python's `str.isspace` and the pattern `\s` hold: Unicode's white space and four separators of ASCII.
pub(crate) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// Whether the pattern `\w` holds.
pub(crate) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}
