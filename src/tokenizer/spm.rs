//! Implements SentencePiece's BPE: neighbours merge in the order of the resulting token's score. Characters that are not tokens fall back
//! to bytes.

use crate::cache::Cache;
use crate::merge::{Symbol, UNKNOWN, merge};
use crate::pieces::{Index, Pieces};
use crate::space::{SPACE_SIGN, Spaces};
use crate::vocab::{TokenType, VocabData};

pub(super) struct Spm {
    index: Index,
    /// The key of each id's score. The smallest key merges first.
    keys: Vec<u32>,
    byte_ids: [u32; 256],
    spaces: Spaces,
}

/// The bytes of each token. `▁` becomes a space and `<0x0A>` becomes its byte.
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

/// The byte that a token like `<0x0A>` represents.
pub(super) fn byte_of(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// The token of each byte, or `UNKNOWN`.
pub(super) fn byte_ids(data: &VocabData) -> [u32; 256] {
    let mut ids = [UNKNOWN; 256];
    for ((id, token), _) in (0u32..).zip(data.tokens).zip(&data.types).filter(|(_, kind)| **kind == TokenType::Byte) {
        if let Some(byte) = byte_of(token) {
            ids[usize::from(byte)] = id;
        }
    }
    ids
}

/// A key that orders scores in descending order. -0 has the key of 0.
fn descending(score: f32) -> u32 {
    let bits = (score + 0.0).to_bits();
    if bits >> 31 == 1 { bits } else { !(bits | 1 << 31) }
}

impl Spm {
    pub(super) fn new(data: &VocabData, pieces: &Pieces) -> Self {
        let mergeable = |kind: &TokenType| matches!(kind, TokenType::Normal | TokenType::UserDefined | TokenType::Unused);
        let ids = (0u32..).zip(&data.types).filter(|(_, kind)| mergeable(kind)).map(|(id, _)| id);
        let crossing = data.tokens.iter().zip(&data.types).filter(|(_, kind)| mergeable(kind)).map(|(token, _)| token.as_str());
        let spaces = Spaces::new(crossing, data.add_space_prefix);
        Self {
            index: Index::new(pieces, ids),
            keys: data.scores.iter().map(|&score| descending(score)).collect(),
            byte_ids: byte_ids(data),
            spaces,
        }
    }

    pub(super) fn normalised(&self, text: &str, prefix: bool) -> Option<String> {
        self.spaces.normalised(text, prefix)
    }

    pub(super) fn encode<'a>(&self, pieces: &Pieces, text: &'a str, cache: &mut Cache<'a>, out: &mut Vec<u32>) {
        let mut symbols = Vec::new();
        self.spaces.words(text, &mut |word| {
            cache.or_encode(word, out, |out| self.word(pieces, word, &mut symbols, out));
        });
    }

    fn word(&self, pieces: &Pieces, word: &str, symbols: &mut Vec<Symbol>, out: &mut Vec<u32>) {
        let bytes = word.as_bytes();
        symbols.clear();
        // Only characters that are not merged need an id, so ids are looked up at the end.
        symbols.extend(word.char_indices().map(|(at, c)| Symbol { id: UNKNOWN, start: at as u32, end: (at + c.len_utf8()) as u32 }));
        merge(symbols, |a, b| {
            let id = self.index.get(pieces, &bytes[a.start as usize..b.end as usize])?;
            Some((self.keys[id as usize], id))
        });
        for symbol in symbols.iter() {
            let piece = &bytes[symbol.start as usize..symbol.end as usize];
            let merged = (symbol.id != UNKNOWN).then_some(symbol.id);
            match merged.or_else(|| self.index.get(pieces, piece)) {
                Some(id) => out.push(id),
                None => out.extend(piece.iter().map(|&byte| self.byte_ids[byte as usize])),
            }
        }
    }

    pub(super) fn bytes_held(&self) -> usize {
        self.index.bytes_held() + self.keys.capacity() * 4 + self.spaces.bytes_held()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_order_scores_in_descending_order() {
        let scores = [f32::INFINITY, 3.5, 0.0, -0.0, -1.0, -1e9, f32::NEG_INFINITY];
        for two in scores.windows(2) {
            let same = two[0] == two[1];
            assert_eq!(
                descending(two[0]).cmp(&descending(two[1])),
                if same { std::cmp::Ordering::Equal } else { std::cmp::Ordering::Less }
            );
        }
    }
}
