//! Implements SentencePiece's unigram model (Kudo 2018): cuts a word into the tokens with the greatest sum of scores.

use crate::cache::Cache;
use crate::charsmap::CharsMap;
use crate::merge::UNKNOWN;
use crate::pieces::{Index, Pieces};
use crate::space::{SPACE_SIGN, Spaces};
use crate::spm;
use crate::vocab::{TokenType, VocabData};

pub(super) struct Unigram {
    index: Index,
    /// The logarithm of each id's probability.
    scores: Vec<f32>,
    /// The score of a character that is not a token.
    unknown_score: f64,
    /// The tokens of single bytes, if the vocabulary has all 256.
    byte_ids: Option<Box<[u32; 256]>>,
    spaces: Spaces,
    add_prefix: bool,
    squeeze: bool,
    /// Whether spaces are treated as in Hugging Face's library: spaces at both ends of a text stay, and a text that starts with a space
    /// gets no prefix.
    keeps_ends: bool,
    charsmap: Option<CharsMap>,
}

/// How far the score of an unknown character lies below the lowest score, as in SentencePiece.
const UNKNOWN_PENALTY: f64 = 10.0;

impl Unigram {
    pub(super) fn new(data: &VocabData, pieces: &Pieces) -> Self {
        let usable = |kind: &TokenType| matches!(kind, TokenType::Normal | TokenType::UserDefined | TokenType::Unused);
        let ids = (0u32..).zip(&data.types).filter(|(_, kind)| usable(kind)).map(|(id, _)| id);
        let tokens = data.tokens.iter().zip(&data.types).filter(|(_, kind)| usable(kind)).map(|(token, _)| token.as_str());
        let normal = data.scores.iter().zip(&data.types).filter(|(_, kind)| **kind == TokenType::Normal);
        let least = normal.map(|(score, _)| f64::from(*score)).fold(0.0, f64::min);
        let bytes = spm::byte_ids(data);
        Self {
            index: Index::new(pieces, ids),
            scores: data.scores.to_vec(),
            unknown_score: least - UNKNOWN_PENALTY,
            byte_ids: (!bytes.contains(&UNKNOWN)).then(|| Box::new(bytes)),
            spaces: Spaces::new(tokens, false),
            add_prefix: data.add_space_prefix,
            squeeze: data.squeeze_spaces,
            keeps_ends: data.from_json,
            charsmap: CharsMap::new(&data.charsmap),
        }
    }

    /// Normalises the text between special tokens. `at_start` is set at the start of a text and after a special token.
    pub(super) fn normalised(&self, text: &str, at_start: bool) -> Option<String> {
        let mapped = self.charsmap.as_ref().map(|map| map.apply(text));
        let mut out = mapped.unwrap_or_else(|| text.to_owned());
        if self.squeeze {
            let trimmed = if self.keeps_ends { &out } else { out.trim_matches(' ') };
            let mut before = '\0';
            out = trimmed.chars().filter(|&c| std::mem::replace(&mut before, c) != ' ' || c != ' ').collect();
        }
        // A `▁` in the text also becomes a space, but is not squeezed with its neighbours.
        let mut out = out.replace(SPACE_SIGN, " ");
        let has_one = self.keeps_ends && out.starts_with(' ');
        if at_start && self.add_prefix && !out.is_empty() && !has_one {
            out.insert(0, ' ');
        }
        Some(out)
    }

    pub(super) fn encode<'a>(&self, pieces: &Pieces, text: &'a str, cache: &mut Cache<'a>, out: &mut Vec<u32>) {
        let mut best = Vec::new();
        self.spaces.words(text, &mut |word| cache.or_encode(word, out, |out| self.word(pieces, word, &mut best, out)));
    }

    /// Runs the Viterbi algorithm over the word's bytes. `best[end]` holds the best score of a cut up to `end`, the last token of that cut,
    /// and the token's start.
    fn word(&self, pieces: &Pieces, word: &str, best: &mut Vec<(f64, u32, u32)>, out: &mut Vec<u32>) {
        best.clear();
        best.resize(word.len() + 1, (f64::NEG_INFINITY, UNKNOWN, 0));
        best[0].0 = 0.0;
        for (start, c) in word.char_indices() {
            let so_far = best[start].0;
            let mut offer = |end: usize, score: f64, id: u32| {
                if so_far + score > best[end].0 {
                    best[end] = (so_far + score, id, start as u32);
                }
            };
            let one = start + c.len_utf8();
            let longest = word.floor_char_boundary((start + self.index.longest()).min(word.len()));
            let mut single = false;
            for (offset, c) in word[start..longest].char_indices() {
                let end = start + offset + c.len_utf8();
                if let Some(id) = self.index.get(pieces, &word.as_bytes()[start..end]) {
                    single |= end == one;
                    offer(end, f64::from(self.scores[id as usize]), id);
                }
            }
            if !single {
                offer(one, self.unknown_score, UNKNOWN);
            }
        }
        let first = out.len();
        let mut end = word.len();
        while end > 0 {
            let (_, id, start) = best[end];
            match &self.byte_ids {
                Some(bytes) if id == UNKNOWN => {
                    out.extend(word.as_bytes()[start as usize..end].iter().rev().map(|byte| bytes[usize::from(*byte)]))
                }
                // Several unknown characters in a row become one unknown token.
                _ if id == UNKNOWN && out.len() > first && out.last() == Some(&UNKNOWN) => {}
                _ => out.push(id),
            }
            end = start as usize;
        }
        out[first..].reverse();
    }

    pub(super) fn bytes_held(&self) -> usize {
        self.index.bytes_held()
            + self.scores.capacity() * 4
            + self.spaces.bytes_held()
            + self.charsmap.as_ref().map_or(0, CharsMap::bytes_held)
    }
}
