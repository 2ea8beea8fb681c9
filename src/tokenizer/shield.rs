//! Marks control tokens' texts in a user's text. A marked text does not become the control token after a template has put it into a prompt.
//!
//! A mark consists of two noncharacters, which Unicode reserves for internal use, and follows the first character of a control token's
//! text. An `ESCAPE` in the user's text is itself escaped by another pair, so `unmark` restores every text.

use std::borrow::Cow;

const ESCAPE: char = '\u{fdd0}';
const LITERAL: char = '\u{fdd1}';
const MARK: char = '\u{fdd2}';

/// Copies `text` with a mark at each of `offsets` (in bytes, ascending).
pub(super) fn mark(text: &str, offsets: &[usize]) -> String {
    let mut out = String::with_capacity(text.len() + 6 * offsets.len());
    let mut offsets = offsets.iter().peekable();
    for (at, c) in text.char_indices() {
        while offsets.next_if(|&&offset| offset <= at).is_some() {
            out.extend([ESCAPE, MARK]);
        }
        out.push(c);
        if c == ESCAPE {
            out.push(LITERAL);
        }
    }
    for _ in offsets {
        out.extend([ESCAPE, MARK]);
    }
    out
}

/// Removes the marks.
pub(super) fn unmark(text: &str) -> Cow<'_, str> {
    if !text.contains(ESCAPE) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c == ESCAPE && chars.next_if_eq(&MARK).is_some() {
            continue;
        }
        out.push(c);
        if c == ESCAPE {
            chars.next_if_eq(&LITERAL);
        }
    }
    Cow::Owned(out)
}
