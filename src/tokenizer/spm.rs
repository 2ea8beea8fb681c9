//! SentencePiece's BPE: characters are merged by the score of what they become; what the vocabulary lacks falls back to bytes.

use rustc_hash::FxHashSet;

use super::Cache;
use super::merge::{Symbol, UNKNOWN, merge};
use super::pieces::{Index, Pieces};
use super::vocab::{TokenType, VocabData};

/// SentencePiece's sign for a space.
const SPACE_SIGN: char = '▁';

pub(super) struct Spm {
    index: Index,
    /// By id; less is better.
    keys: Vec<u32>,
    byte_ids: [u32; 256],
    /// Characters that some token has right before a space. At any other character's end a space starts a new word: no token could cross.
    before_space: FxHashSet<char>,
    add_space_prefix: bool,
}

/// Each token's bytes: `▁` becomes a space and `<0x0A>` its byte.
pub(super) fn pieces(data: &VocabData) -> Pieces {
    let mut pieces = Pieces::default();
    for (token, kind) in data.tokens.iter().zip(&data.types) {
        match (kind, byte_of(token)) {
            (TokenType::Byte, Some(byte)) => pieces.push(&[byte]),
            (TokenType::Control | TokenType::Unknown, _) => pieces.push(token.as_bytes()),
            _ => pieces.push(token.replace(SPACE_SIGN, " ").as_bytes()),
        }
    }
    pieces
}

fn byte_of(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// Orders as the floats do, downwards; -0 as 0.
fn descending(score: f32) -> u32 {
    let bits = (score + 0.0).to_bits();
    if bits >> 31 == 1 { bits } else { !(bits | 1 << 31) }
}

impl Spm {
    pub(super) fn new(data: &VocabData, pieces: &Pieces) -> Self {
        let mergeable = |kind: &TokenType| matches!(kind, TokenType::Normal | TokenType::UserDefined | TokenType::Unused);
        let ids = (0u32..).zip(&data.types).filter(|(_, kind)| mergeable(kind)).map(|(id, _)| id);
        let mut byte_ids = [UNKNOWN; 256];
        let mut before_space = FxHashSet::default();
        for ((id, token), kind) in (0u32..).zip(data.tokens).zip(&data.types) {
            match kind {
                TokenType::Byte => {
                    if let Some(byte) = byte_of(token) {
                        byte_ids[byte as usize] = id;
                    }
                }
                kind if mergeable(kind) => {
                    let spaced = token.chars().zip(token.chars().skip(1));
                    before_space.extend(spaced.filter(|&(a, b)| a != SPACE_SIGN && b == SPACE_SIGN).map(|(a, _)| a));
                }
                _ => {}
            }
        }
        Self {
            index: Index::new(pieces, ids),
            keys: data.scores.iter().map(|&score| descending(score)).collect(),
            byte_ids,
            before_space,
            add_space_prefix: data.add_space_prefix,
        }
    }

    /// How the text between special tokens is normalised: `prefix` is set at the start and behind a special token. None: it stays as it is.
    pub(super) fn normalised(&self, text: &str, prefix: bool) -> Option<String> {
        let prefix = prefix && self.add_space_prefix;
        if !prefix && !text.contains(SPACE_SIGN) {
            return None;
        }
        let text = text.replace(SPACE_SIGN, " ");
        Some(if prefix { format!(" {text}") } else { text })
    }

    pub(super) fn encode<'a>(&self, pieces: &Pieces, text: &'a str, cache: &mut Cache<'a>, out: &mut Vec<u32>) {
        let mut symbols = Vec::new();
        let mut start = 0;
        let mut previous = ' ';
        for (at, c) in text.char_indices() {
            if c == ' ' && previous != ' ' && !self.before_space.contains(&previous) {
                let word = &text[start..at];
                cache.or_encode(word, out, |out| self.word(pieces, word, &mut symbols, out));
                start = at;
            }
            previous = c;
        }
        let word = &text[start..];
        cache.or_encode(word, out, |out| self.word(pieces, word, &mut symbols, out));
    }

    fn word(&self, pieces: &Pieces, word: &str, symbols: &mut Vec<Symbol>, out: &mut Vec<u32>) {
        let bytes = word.as_bytes();
        symbols.clear();
        symbols.extend(word.char_indices().map(|(at, c)| {
            let end = at + c.len_utf8();
            let id = self.index.get(pieces, &bytes[at..end]).unwrap_or(UNKNOWN);
            Symbol { id, start: at as u32, end: end as u32 }
        }));
        merge(symbols, |a, b| {
            let id = self.index.get(pieces, &bytes[a.start as usize..b.end as usize])?;
            Some((self.keys[id as usize], id))
        });
        for symbol in symbols.iter() {
            match symbol.id {
                UNKNOWN => out.extend(bytes[symbol.start as usize..symbol.end as usize].iter().map(|&b| self.byte_ids[b as usize])),
                id => out.push(id),
            }
        }
    }

    pub(super) fn bytes_held(&self) -> usize {
        self.index.bytes_held() + self.keys.capacity() * 4 + self.before_space.capacity() * 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_order_scores_downwards() {
        let scores = [f32::INFINITY, 3.5, 0.0, -0.0, -1.0, -1e9, f32::NEG_INFINITY];
        for two in scores.windows(2) {
            let same = two[0] == two[1];
            assert_eq!(descending(two[0]).cmp(&descending(two[1])), if same { std::cmp::Ordering::Equal } else { std::cmp::Ordering::Less });
        }
    }
}
