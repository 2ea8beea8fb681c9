//! Byte-level BPE (GPT-2's): text is cut into words, each word's bytes are merged by rank.

use rustc_hash::FxHashMap;

use super::merge::{Symbol, UNKNOWN, merge};
use super::pieces::{Index, Pieces};
use super::pretokenize::PreTokenizer;
use super::vocab::{TokenType, VocabData, fault};
use super::{Cache, TokenizerError};

pub(super) struct Bpe {
    pre: PreTokenizer,
    byte_ids: [u32; 256],
    /// (left, right) → (rank, merged)
    merges: FxHashMap<u64, (u32, u32)>,
    /// Whole words, where the pre-tokenizer takes them without merging.
    words: Option<Index>,
}

fn key(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// The byte that a character stands for in a byte-level token's text.
fn byte_of(c: char) -> Option<u8> {
    let is_shown = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    match c as u32 {
        code @ 0..=0xff => Some(code as u8).filter(|&byte| is_shown(byte)),
        // the bytes that are not shown as themselves follow from 256 on, in order
        code => (0..=255u8).filter(|&byte| !is_shown(byte)).nth((code - 256) as usize),
    }
}

/// Each token's bytes: byte-level text is decoded, special tokens' texts are taken as they are.
pub(super) fn pieces(data: &VocabData) -> Pieces {
    let mut table: FxHashMap<char, u8> = FxHashMap::default();
    for c in (0..0x180).filter_map(char::from_u32) {
        table.extend(byte_of(c).map(|byte| (c, byte)));
    }
    let mut pieces = Pieces::default();
    let mut decoded = Vec::new();
    for (token, kind) in data.tokens.iter().zip(&data.types) {
        decoded.clear();
        decoded.extend(token.chars().map_while(|c| table.get(&c)));
        let special = !matches!(kind, TokenType::Normal | TokenType::Byte);
        pieces.push(if special || decoded.len() != token.chars().count() { token.as_bytes() } else { &decoded });
    }
    pieces
}

impl Bpe {
    pub(super) fn new(data: &VocabData, pieces: &Pieces) -> Result<Self, TokenizerError> {
        let Some(pre) = PreTokenizer::by_name(data.pre) else {
            return fault(format!("tokenizer.ggml.pre: `{}` is not supported", data.pre));
        };
        let mut ids: FxHashMap<&str, u32> = FxHashMap::default();
        ids.reserve(data.tokens.len());
        for (id, token) in (0u32..).zip(data.tokens) {
            ids.entry(token).or_insert(id);
        }
        let mut byte_ids = [UNKNOWN; 256];
        for c in (0..0x180).filter_map(char::from_u32) {
            if let (Some(byte), Some(&id)) = (byte_of(c), ids.get(c.encode_utf8(&mut [0; 4]) as &str)) {
                byte_ids[byte as usize] = id;
            }
        }
        let mut merges = FxHashMap::default();
        merges.reserve(data.merges.len());
        let mut joined = String::new();
        for (rank, line) in (0u32..).zip(data.merges) {
            // a merge's left part may itself start with a space in no vocabulary: the byte-level text has none
            let Some((left, right)) = line.split_once(' ') else {
                return fault(format!("tokenizer.ggml.merges: entry {rank} (`{}`) is not a pair", line.escape_debug()));
            };
            joined.clear();
            joined.extend([left, right]);
            let (Some(&a), Some(&b), Some(&c)) = (ids.get(left), ids.get(right), ids.get(joined.as_str())) else {
                return fault(format!("tokenizer.ggml.merges: entry {rank} (`{}`) names an unknown token", line.escape_debug()));
            };
            merges.entry(key(a, b)).or_insert((rank, c));
        }
        let normal = (0u32..).zip(&data.types).filter(|(_, t)| **t == TokenType::Normal).map(|(id, _)| id);
        let words = pre.ignore_merges.then(|| Index::new(pieces, normal));
        Ok(Self { pre, byte_ids, merges, words })
    }

    pub(super) fn encode<'a>(&self, pieces: &Pieces, text: &'a str, cache: &mut Cache<'a>, out: &mut Vec<u32>) {
        let mut symbols = Vec::new();
        self.pre.words(text, &mut |word| {
            cache.or_encode(word, out, |out| self.word(pieces, word.as_bytes(), &mut symbols, out));
        });
    }

    fn word(&self, pieces: &Pieces, word: &[u8], symbols: &mut Vec<Symbol>, out: &mut Vec<u32>) {
        if let Some(id) = self.words.as_ref().and_then(|words| words.get(pieces, word)) {
            return out.push(id);
        }
        symbols.clear();
        symbols.extend((0u32..).zip(word).map(|(at, &byte)| Symbol { id: self.byte_ids[byte as usize], start: at, end: at + 1 }));
        merge(symbols, |a, b| self.merges.get(&key(a.id, b.id)).copied());
        out.extend(symbols.iter().map(|s| s.id));
    }

    pub(super) fn bytes_held(&self) -> usize {
        self.merges.capacity() * 17 * 8 / 7 + self.words.as_ref().map_or(0, Index::bytes_held)
    }
}
