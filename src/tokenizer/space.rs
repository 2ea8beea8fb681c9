//! Handles spaces as SentencePiece does: tokens contain `▁` for a space, and a space may be put before a text.

use rustc_hash::FxHashSet;

/// The character that represents a space in SentencePiece's tokens.
pub(super) const SPACE_SIGN: char = '▁';

/// How spaces are normalised before encoding, and at which spaces a text may be cut into words.
pub(super) struct Spaces {
    /// Characters that precede a space in some token. After any other character, a space starts a new word, because no token spans both.
    before_space: FxHashSet<char>,
    add_prefix: bool,
}

impl Spaces {
    /// Prepares the rules. `tokens` are the tokens that text may be encoded to.
    pub(super) fn new<'a>(tokens: impl Iterator<Item = &'a str>, add_prefix: bool) -> Self {
        let mut before_space = FxHashSet::default();
        for token in tokens {
            let pairs = token.chars().zip(token.chars().skip(1));
            before_space.extend(pairs.filter(|&(a, b)| a != SPACE_SIGN && b == SPACE_SIGN).map(|(a, _)| a));
        }
        Self { before_space, add_prefix }
    }

    /// Normalises the text between special tokens. `prefix` is set at the start of a text and after a special token. None if the text does
    /// not change.
    pub(super) fn normalised(&self, text: &str, prefix: bool) -> Option<String> {
        let prefix = prefix && self.add_prefix;
        if !prefix && !text.contains(SPACE_SIGN) {
            return None;
        }
        let text = text.replace(SPACE_SIGN, " ");
        Some(if prefix { format!(" {text}") } else { text })
    }

    /// Cuts a text into words that no token spans.
    pub(super) fn words<'a>(&self, text: &'a str, emit: &mut impl FnMut(&'a str)) {
        let (mut start, mut previous) = (0, ' ');
        for (at, c) in text.char_indices() {
            if c == ' ' && previous != ' ' && !self.before_space.contains(&previous) {
                emit(&text[start..at]);
                start = at;
            }
            previous = c;
        }
        emit(&text[start..]);
    }

    pub(super) fn bytes_held(&self) -> usize {
        self.before_space.capacity() * 8
    }
}
