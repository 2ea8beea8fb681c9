//! Unicode classes of characters, as the pre-tokenizers' patterns name them.

use std::sync::OnceLock;

use unicode_general_category::{GeneralCategory as G, get_general_category};

/// `\p{L}`
pub(super) const LETTER: u8 = 1;
/// `\p{N}`
pub(super) const NUMBER: u8 = 2;
/// `\s`
pub(super) const SPACE: u8 = 4;
/// `\p{P}`
pub(super) const PUNCTUATION: u8 = 8;
/// `[\p{Lu}\p{Ll}\p{Lt}]`
pub(super) const CASED: u8 = 16;

const CODE_POINTS: usize = 0x11_0000;

/// One byte a code point: faster than a search in ranges, and a megabyte once a process.
pub(super) fn classes() -> &'static [u8] {
    static TABLE: OnceLock<Vec<u8>> = OnceLock::new();
    TABLE.get_or_init(|| (0..CODE_POINTS as u32).map(|c| char::from_u32(c).map_or(0, class)).collect())
}

fn class(c: char) -> u8 {
    let by_category = match get_general_category(c) {
        G::UppercaseLetter | G::LowercaseLetter | G::TitlecaseLetter => LETTER | CASED,
        G::ModifierLetter | G::OtherLetter => LETTER,
        G::DecimalNumber | G::LetterNumber | G::OtherNumber => NUMBER,
        G::ConnectorPunctuation
        | G::DashPunctuation
        | G::OpenPunctuation
        | G::ClosePunctuation
        | G::InitialPunctuation
        | G::FinalPunctuation
        | G::OtherPunctuation => PUNCTUATION,
        _ => 0,
    };
    by_category | if c.is_whitespace() { SPACE } else { 0 }
}
