//! Python's classes of characters, which differ from Rust's.

/// Whether Python's `str.isspace` and the pattern `\s` match: Unicode's white space and four ASCII separators.
pub(crate) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// Whether the pattern `\w` matches.
pub(crate) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}
