//! SentencePiece's way with spaces: `▁` stands for them in tokens, and one may be put before a text.

use rustc_hash::FxHashSet;

/// SentencePiece's sign for a space.
pub(super) const SPACE_SIGN: char = '▁';

/// How texts are changed before they are encoded, and where they may be cut.
pub(super) struct Spaces {
    /// Characters that some token has right before a space. At any other character's end a space starts a new word: no token could cross.
    before_space: FxHashSet<char>,
    add_prefix: bool,
}

impl Spaces {
    /// `tokens`: those that a text's characters may become part of.
    pub(super) fn new<'a>(tokens: impl Iterator<Item = &'a str>, add_prefix: bool) -> Self {
        let mut before_space = FxHashSet::default();
        for token in tokens {
            let pairs = token.chars().zip(token.chars().skip(1));
            before_space.extend(pairs.filter(|&(a, b)| a != SPACE_SIGN && b == SPACE_SIGN).map(|(a, _)| a));
        }
        Self { before_space, add_prefix }
    }

    /// How the text between special tokens is normalised: `prefix` is set at the start and behind a special token. None: it stays as it is.
    pub(super) fn normalised(&self, text: &str, prefix: bool) -> Option<String> {
        let prefix = prefix && self.add_prefix;
        if !prefix && !text.contains(SPACE_SIGN) {
            return None;
        }
        let text = text.replace(SPACE_SIGN, " ");
        Some(if prefix { format!(" {text}") } else { text })
    }

    /// Cuts a text where no token crosses.
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
