//! Drafts from the sequence's own context: the tokens that followed the latest long match of its last tokens.
//!
//! As in deflate, chains link the positions whose two last tokens have the same hash. A lookup compares at most [`MAX_CANDIDATES`] of them,
//! the latest first, and takes the longest match. A match that goes on needs no lookup. The index takes 4 to 12 bytes per token.

use super::drafter::{Drafter, DrafterKind, History};

/// The shortest match, on which the chains are built [tokens].
const MIN_MATCH: usize = 2;
/// Longer matches are no better [tokens].
const MAX_MATCH: usize = 32;
/// The most earlier positions that a lookup compares.
const MAX_CANDIDATES: usize = 64;
/// The most tokens that one call adds to the index, so that a long prompt does not delay a step [tokens].
const MAX_ADDED: usize = 4096;
/// Stands for no position.
const NONE: u32 = u32::MAX;

/// The positions of a text by their two last tokens. A position is the number of tokens before it.
#[derive(Debug, Default)]
pub struct NgramIndex {
    heads: Vec<u32>,  // [power of two] latest position per hash
    before: Vec<u32>, // [num_added + 1] the position before with the same hash
}

impl NgramIndex {
    /// Number of tokens in the index.
    fn num_added(&self) -> usize {
        self.before.len().saturating_sub(1)
    }

    fn slot(&self, first: u32, second: u32) -> usize {
        let key = u64::from(first) << 32 | u64::from(second);
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (self.heads.len() - 1)
    }

    /// Adds the next tokens of a text whose tokens are `at(0)`, `at(1)` …, up to `end` of them but at most [`MAX_ADDED`].
    pub fn add(&mut self, end: usize, at: impl Fn(usize) -> u32) {
        if self.before.is_empty() {
            self.before.push(NONE);
        }
        if end > self.heads.len() {
            self.rehash(end, &at);
        }
        for position in self.before.len()..=end.min(self.num_added() + MAX_ADDED) {
            self.link(position, &at);
        }
    }

    fn link(&mut self, position: usize, at: &impl Fn(usize) -> u32) {
        if position < MIN_MATCH {
            return self.before.push(NONE);
        }
        let slot = self.slot(at(position - 2), at(position - 1));
        self.before.push(std::mem::replace(&mut self.heads[slot], position as u32));
    }

    /// Makes room for `end` tokens. A text that grows is hashed again when its length has doubled.
    fn rehash(&mut self, end: usize, at: &impl Fn(usize) -> u32) {
        let num_linked = self.before.len();
        self.heads = vec![NONE; end.next_power_of_two().max(256)];
        self.before.clear();
        (0..num_linked).for_each(|position| self.link(position, at));
    }

    /// The positions after `first` and `second`, the latest first.
    pub fn candidates(&self, first: u32, second: u32) -> impl Iterator<Item = usize> {
        let head = if self.heads.is_empty() { NONE } else { self.heads[self.slot(first, second)] };
        let next = |position: &u32| self.before.get(*position as usize).copied().filter(|&position| position != NONE);
        std::iter::successors((head != NONE).then_some(head), next).map(|position| position as usize).take(MAX_CANDIDATES)
    }
}

#[derive(Debug, Default)]
pub struct Ngram {
    index: NgramIndex,
    /// The position whose tokens were proposed last, and the length of the history then.
    followed: Option<(usize, usize)>,
}

impl Ngram {
    /// The latest position with the longest match, and the length of the match.
    fn find(&self, history: History<'_>) -> Option<(usize, usize)> {
        let len = history.len();
        let goes_on = self.followed.map(|(position, at)| position + (len - at)).filter(|&position| position < len);
        if let Some(position) = goes_on
            && history.num_equal_before(position, len, MAX_MATCH) == MAX_MATCH
        {
            return Some((position, MAX_MATCH));
        }
        let mut best = None;
        for position in self.index.candidates(history.at(len - 2), history.at(len - 1)).filter(|&position| position < len) {
            let matched = history.num_equal_before(position, len, MAX_MATCH);
            if matched > best.map_or(MIN_MATCH - 1, |(_, matched)| matched) {
                best = Some((position, matched));
            }
            if matched == MAX_MATCH {
                break;
            }
        }
        best
    }
}

impl Drafter for Ngram {
    fn kind(&self) -> DrafterKind {
        DrafterKind::Ngram
    }

    fn propose(&mut self, history: History<'_>, most: usize, out: &mut Vec<u32>) -> usize {
        let len = history.len();
        self.index.add(len, |index| history.at(index));
        let Some((position, matched)) = (len > MIN_MATCH).then(|| self.find(history)).flatten() else {
            self.followed = None;
            return 0;
        };
        self.followed = Some((position, len));
        // A period shorter than the draft goes on with the tokens drafted so far.
        let first = out.len();
        for i in 0..most {
            let id = if position + i < len { history.at(position + i) } else { out[first + position + i - len] };
            out.push(id);
        }
        matched
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proposed(drafter: &mut Ngram, text: &[u32], most: usize) -> (usize, Vec<u32>) {
        let (mut out, half) = (Vec::new(), text.len() / 2);
        let support = drafter.propose(History { prompt: &text[..half], generated: &text[half..] }, most, &mut out);
        (support, out)
    }

    #[test]
    fn the_longest_match_is_continued_and_the_latest_of_equal_ones() {
        let text = [1, 2, 3, 9, 5, 2, 3, 8, 5, 2, 3, 7, 1, 2, 3];
        assert_eq!(proposed(&mut Ngram::default(), &text, 2), (3, vec![9, 5]));
        assert_eq!(proposed(&mut Ngram::default(), &text[..11], 2), (3, vec![8, 5]));
        assert_eq!(proposed(&mut Ngram::default(), &text[..7], 3), (2, vec![9, 5, 2]), "5 2 3 is new, 2 3 is not");
        assert_eq!(proposed(&mut Ngram::default(), &text[..5], 3), (0, vec![]));
    }

    #[test]
    fn a_period_goes_on_beyond_the_end() {
        assert_eq!(proposed(&mut Ngram::default(), &[4, 5, 6, 4, 5, 6, 4, 5], 7), (5, vec![6, 4, 5, 6, 4, 5, 6]));
        assert_eq!(proposed(&mut Ngram::default(), &[4, 4, 4, 4], 5), (3, vec![4; 5]));
        assert_eq!(proposed(&mut Ngram::default(), &[4, 4], 5), (0, vec![]));
    }

    #[test]
    fn texts_that_grow_give_the_drafts_of_a_fresh_index() {
        let text: Vec<u32> = (0..6000u32).map(|i| (i * i / 7 + i % 13) % 61).collect();
        let mut grown = Ngram::default();
        for len in 0..text.len() {
            proposed(&mut grown, &text[..len], 8);
        }
        // A fresh index needs two calls for so many tokens.
        let mut fresh = Ngram::default();
        proposed(&mut fresh, &text, 8);
        assert_eq!(proposed(&mut grown, &text, 8), proposed(&mut fresh, &text, 8));
    }

    /// The bound of issue-sized contexts: 50,000 tokens, in the worst case of equal tokens, random ones, and a repeated text.
    #[test]
    fn a_lookup_in_a_long_context_is_short() {
        let random = |i: u32| i.wrapping_mul(0x9e37_79b9) >> 16;
        for text in [|_| 7, random, |i: u32| i % 5000, |i: u32| i % 7 + 10 * (i / 1000 % 2)].map(|of| (0..50_400).map(of)) {
            let text: Vec<u32> = text.collect();
            let mut drafter = Ngram::default();
            for _ in 0..16 {
                proposed(&mut drafter, &text[..50_000], 16);
            }
            let mut times: Vec<_> = (50_000..50_400)
                .map(|len| {
                    let start = std::time::Instant::now();
                    proposed(&mut drafter, &text[..len], 16);
                    start.elapsed()
                })
                .collect();
            times.sort();
            println!("median {:?}, slowest {:?}", times[200], times[399]);
            assert!(times[200].as_micros() < if cfg!(debug_assertions) { 500 } else { 50 }, "{:?}", times[200]);
        }
    }
}
