//! Marks in a user's text, so that what looks like a control token there stays text once a template has put it into a prompt.
//!
//! A mark is two noncharacters, which Unicode sets aside for a program's own use. It goes behind the first character of a control token's text. A user's
//! own `ESCAPE` is escaped by another pair, so every text comes back as it was.

use std::borrow::Cow;

const ESCAPE: char = '\u{fdd0}';
const LITERAL: char = '\u{fdd1}';
const MARK: char = '\u{fdd2}';

/// `text` with a mark at each of `places` (byte offsets, ascending).
pub(super) fn mark(text: &str, places: &[usize]) -> String {
    let mut out = String::with_capacity(text.len() + 6 * places.len());
    let mut places = places.iter().peekable();
    for (at, c) in text.char_indices() {
        while places.next_if(|&&place| place <= at).is_some() {
            out.extend([ESCAPE, MARK]);
        }
        out.push(c);
        if c == ESCAPE {
            out.push(LITERAL);
        }
    }
    for _ in places {
        out.extend([ESCAPE, MARK]);
    }
    out
}

/// Takes the marks out again.
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
