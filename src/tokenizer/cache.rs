//! Caches the ids of words that occurred earlier in a text, and limits the length of the output.

use rustc_hash::FxHashMap;

use crate::merge::UNKNOWN;

/// The limit on the number of ids that a text may become.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    pub(crate) most: usize,
    /// The length of the longest token, in bytes.
    pub(crate) longest: usize,
}

/// The words of the current text that are already encoded, with the range of their ids in the output.
pub(crate) struct Cache<'a> {
    words: FxHashMap<&'a str, (u32, u32)>,
    pub(crate) bound: Bound,
}

impl<'a> Cache<'a> {
    const MAX_WORDS: usize = 1 << 16;
    const MAX_LEN: usize = 64;

    pub(crate) fn new(bound: Bound) -> Self {
        Self { words: FxHashMap::default(), bound }
    }

    /// Appends the ids of `word`. Copies them if the word occurred before, and calls `encode` otherwise. Once the output exceeds its bound,
    /// or this word would make it exceed the bound, nothing more is encoded. The output is then slightly longer than the bound.
    pub(crate) fn or_encode(&mut self, word: &'a str, out: &mut Vec<u32>, encode: impl FnOnce(&mut Vec<u32>)) {
        let Bound { most, longest } = self.bound;
        if out.len() > most {
            return;
        }
        if word.len() > Self::MAX_LEN {
            return if out.len() + word.len() / longest > most { out.resize(most + 1, UNKNOWN) } else { encode(out) };
        }
        if let Some(&(start, end)) = self.words.get(word) {
            return out.extend_from_within(start as usize..end as usize);
        }
        let start = out.len() as u32;
        encode(out);
        if self.words.len() < Self::MAX_WORDS {
            self.words.insert(word, (start, out.len() as u32));
        }
    }
}
