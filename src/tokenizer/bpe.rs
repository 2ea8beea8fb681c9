//! Implements byte pair encoding with merges. A text is cut into words, and the bytes (GPT-2) or characters of each word are merged in the
//! order of ranks.

use rustc_hash::FxHashMap;

use crate::cache::Cache;
use crate::error::{TokenizerError, fault};
use crate::merge::{Symbol, merge};
use crate::pieces::{Index, Pieces};
use crate::scan::Scanner;
use crate::space::{SPACE_SIGN, Spaces};
use crate::spm;
use crate::vocab::{Model, TokenType, VocabData};

pub(super) struct Bpe {
    pre: Scanner,
    alphabet: Alphabet,
    /// (left, right) → (rank, merged)
    merges: FxHashMap<u64, (u32, u32)>,
    /// Tokens that are whole words, if the vocabulary encodes such words without merging.
    words: Option<Index>,
    drops_spaces: bool,
    lowercase: bool,
}

/// The symbols of a word before merging.
enum Alphabet {
    Bytes(Box<[u32; 256]>),
    /// Characters. One that is not a token falls back to its bytes.
    Chars {
        ids: FxHashMap<char, u32>,
        bytes: Box<[u32; 256]>,
        spaces: Spaces,
    },
}

fn key(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// The byte that a character represents in the text of a byte-level token.
fn byte_of(c: char) -> Option<u8> {
    let is_shown = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    match c as u32 {
        code @ 0..=0xff => Some(code as u8).filter(|&byte| is_shown(byte)),
        // Bytes that are not printable have the characters from 256 upwards, in order.
        code => (0..=255u8).filter(|&byte| !is_shown(byte)).nth((code - 256) as usize),
    }
}

/// The bytes of each token. Byte-level texts are decoded. The texts of special tokens are used as they are.
pub(super) fn pieces(data: &VocabData) -> Pieces {
    if data.model == Model::CharBpe {
        return spm::pieces(data);
    }
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

impl Alphabet {
    /// Builds the alphabet. `ids` holds the tokens that may come from text.
    fn new(data: &VocabData, ids: &FxHashMap<&str, u32>) -> Self {
        if data.model == Model::CharBpe {
            let singles = ids.iter().filter_map(|(token, &id)| {
                let mut chars = token.chars();
                let c = chars.next().filter(|_| chars.next().is_none())?;
                Some((if c == SPACE_SIGN { ' ' } else { c }, id))
            });
            let spaces = Spaces::new(ids.keys().copied(), data.add_space_prefix);
            return Self::Chars { ids: singles.collect(), bytes: Box::new(spm::byte_ids(data)), spaces };
        }
        // A byte whose character is not a token may have a token like `<0x0A>`.
        let mut bytes = spm::byte_ids(data);
        for c in (0..0x180).filter_map(char::from_u32) {
            if let (Some(byte), Some(&id)) = (byte_of(c), ids.get(c.encode_utf8(&mut [0; 4]) as &str)) {
                bytes[byte as usize] = id;
            }
        }
        Self::Bytes(Box::new(bytes))
    }

    /// Appends the symbols of a word before merging.
    fn symbols(&self, word: &str, symbols: &mut Vec<Symbol>) {
        let of_bytes = |bytes: &[u32; 256], start: usize, part: &str, symbols: &mut Vec<Symbol>| {
            let offsets = (start as u32..).zip(part.bytes());
            symbols.extend(offsets.map(|(at, byte)| Symbol { id: bytes[byte as usize], start: at, end: at + 1 }));
        };
        match self {
            Self::Bytes(bytes) => of_bytes(bytes, 0, word, symbols),
            Self::Chars { ids, bytes, .. } => {
                for (at, c) in word.char_indices() {
                    let end = at + c.len_utf8();
                    match ids.get(&c) {
                        Some(&id) => symbols.push(Symbol { id, start: at as u32, end: end as u32 }),
                        None => of_bytes(bytes, at, &word[at..end], symbols),
                    }
                }
            }
        }
    }
}

impl Bpe {
    pub(super) fn new(data: &VocabData, pieces: &Pieces) -> Result<Self, TokenizerError> {
        let pre = Scanner::new(&data.patterns).or_else(|what| fault(format!("{} {what}", data.key("pre", "pre_tokenizer"))))?;
        let mut ids: FxHashMap<&str, u32> = FxHashMap::default();
        ids.reserve(data.tokens.len());
        for (id, token) in (0u32..).zip(data.tokens) {
            ids.entry(token).or_insert(id);
        }
        let mut merges = FxHashMap::default();
        merges.reserve(data.merges.len());
        let mut joined = String::new();
        for (rank, (left, right)) in (0u32..).zip(&data.merges) {
            joined.clear();
            joined.extend([*left, *right]);
            let (Some(&a), Some(&b), Some(&c)) = (ids.get(left), ids.get(right), ids.get(joined.as_str())) else {
                let pair = format!("{left} {right}");
                let key = data.key("merges", "model.merges");
                return fault(format!("{key}: entry {rank} (`{}`) refers to a token that is not in the vocabulary", pair.escape_debug()));
            };
            // Control tokens never come from text.
            if data.types[c as usize] != TokenType::Control {
                merges.entry(key(a, b)).or_insert((rank, c));
            }
        }
        let normal = (0u32..).zip(&data.types).filter(|(_, t)| **t == TokenType::Normal).map(|(id, _)| id);
        let words = data.ignore_merges.then(|| Index::new(pieces, normal));
        ids.retain(|_, id| data.types[*id as usize] != TokenType::Control);
        let (drops_spaces, lowercase) = (data.drops_spaces, data.lowercase);
        Ok(Self { pre, alphabet: Alphabet::new(data, &ids), merges, words, drops_spaces, lowercase })
    }

    /// The text after normalisation. None if it does not change.
    pub(super) fn normalised(&self, text: &str, at_start: bool) -> Option<String> {
        match &self.alphabet {
            Alphabet::Bytes(_) => None,
            Alphabet::Chars { .. } if self.lowercase => Some(text.chars().flat_map(char::to_lowercase).collect()),
            Alphabet::Chars { .. } if self.drops_spaces => None,
            Alphabet::Chars { spaces, .. } => spaces.normalised(text, at_start),
        }
    }

    pub(super) fn encode<'a>(&self, pieces: &Pieces, text: &'a str, cache: &mut Cache<'a>, out: &mut Vec<u32>) {
        let mut symbols = Vec::new();
        let mut word = |word: &'a str| cache.or_encode(word, out, |out| self.word(pieces, word, &mut symbols, out));
        match &self.alphabet {
            Alphabet::Bytes(_) => self.pre.words(text, &mut word),
            Alphabet::Chars { .. } if self.drops_spaces => self.pre.words(text, &mut |part| {
                if !part.trim().is_empty() {
                    word(part);
                }
            }),
            Alphabet::Chars { spaces, .. } => self.pre.words(text, &mut |part| spaces.words(part, &mut word)),
        }
    }

    fn word(&self, pieces: &Pieces, word: &str, symbols: &mut Vec<Symbol>, out: &mut Vec<u32>) {
        if let Some(id) = self.words.as_ref().and_then(|words| words.get(pieces, word.as_bytes())) {
            return out.push(id);
        }
        symbols.clear();
        self.alphabet.symbols(word, symbols);
        merge(symbols, |a, b| self.merges.get(&key(a.id, b.id)).copied());
        out.extend(symbols.iter().map(|s| s.id));
    }

    pub(super) fn bytes_held(&self) -> usize {
        let alphabet = match &self.alphabet {
            Alphabet::Bytes(_) => 1024,
            Alphabet::Chars { ids, spaces, .. } => 1024 + ids.capacity() * 10 + spaces.bytes_held(),
        };
        alphabet + self.pre.bytes_held() + self.merges.capacity() * 17 * 8 / 7 + self.words.as_ref().map_or(0, Index::bytes_held)
    }
}
