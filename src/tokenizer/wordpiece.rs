//! Implements WordPiece (Wu et al. 2016, as in BERT): a word becomes the longest token that it starts with, then the longest token that
//! continues it, and so on. If no token fits at some point, or if the word is very long, the word becomes the unknown token.

use crate::bert_text::{self, BertText};
use crate::cache::Cache;
use crate::merge::UNKNOWN;
use crate::pieces::{Index, Pieces};
use crate::vocab::{TokenType, VocabData};

pub(super) struct WordPiece {
    text: BertText,
    longest_word: usize,
    /// The texts of all tokens, without their marks.
    texts: Pieces,
    first: Index,
    further: Index,
}

/// Tokens before which the library's decoder writes no space.
const CLOSE: [&str; 9] = [".", "?", "!", ",", "n't", "'m", "'s", "'ve", "'re"];

/// Whether text may become a token of this type.
fn is_spelt(kind: TokenType) -> bool {
    matches!(kind, TokenType::Normal | TokenType::UserDefined | TokenType::Unused)
}

/// The bytes of each token. A token that begins a word has a leading space, unless texts are searched for it as it is.
pub(super) fn pieces(data: &VocabData) -> Pieces {
    let mut pieces = Pieces::default();
    for (token, kind) in data.tokens.iter().zip(&data.types) {
        let (begins, text) = data.words.part(token);
        match kind {
            TokenType::UserDefined => pieces.push(text.as_bytes()),
            TokenType::Normal | TokenType::Unused if begins && !CLOSE.iter().any(|close| text.starts_with(close)) => {
                pieces.push(format!(" {text}").as_bytes());
            }
            TokenType::Normal | TokenType::Unused => pieces.push(text.as_bytes()),
            _ => pieces.push(token.as_bytes()),
        }
    }
    pieces
}

/// Joins decoded tokens. Special tokens (`true`) are separated from the preceding text, and no text begins with a space.
pub(super) fn joined<'a>(pieces: impl Iterator<Item = (bool, &'a [u8])>) -> Vec<u8> {
    let mut out = Vec::new();
    for (special, piece) in pieces.filter(|(_, piece)| !piece.is_empty()) {
        if special && !out.is_empty() {
            out.push(b' ');
        }
        out.extend_from_slice(if out.is_empty() { piece.strip_prefix(b" ").unwrap_or(piece) } else { piece });
    }
    out
}

impl WordPiece {
    pub(super) fn new(data: &VocabData) -> Self {
        let mut texts = Pieces::default();
        let (mut first, mut further) = (Vec::new(), Vec::new());
        for (id, (token, kind)) in (0u32..).zip(data.tokens.iter().zip(&data.types)) {
            let (begins, text) = data.words.part(token);
            texts.push(text.as_bytes());
            if is_spelt(*kind) && !text.is_empty() {
                if begins { first.push(id) } else { further.push(id) }
            }
        }
        Self {
            text: data.words.text,
            longest_word: data.words.longest_word,
            first: Index::new(&texts, first.into_iter()),
            further: Index::new(&texts, further.into_iter()),
            texts,
        }
    }

    pub(super) fn normalised(&self, text: &str) -> String {
        self.text.normalise(text)
    }

    pub(super) fn encode<'a>(&self, text: &'a str, cache: &mut Cache<'a>, out: &mut Vec<u32>) {
        bert_text::words(text, |word| cache.or_encode(word, out, |out| self.word(word, out)));
    }

    fn word(&self, word: &str, out: &mut Vec<u32>) {
        let before = out.len();
        let is_long = word.len() > self.longest_word && word.chars().nth(self.longest_word).is_some();
        let mut at = 0;
        while at < word.len() && !is_long {
            let index = if at == 0 { &self.first } else { &self.further };
            let Some((id, length)) = self.longest(index, &word[at..]) else { break };
            out.push(id);
            at += length;
        }
        if at < word.len() {
            out.truncate(before);
            out.push(UNKNOWN);
        }
    }

    /// The longest token of `index` that `rest` starts with, and the token's length in bytes.
    fn longest(&self, index: &Index, rest: &str) -> Option<(u32, usize)> {
        let mut end = rest.floor_char_boundary(index.longest().min(rest.len()));
        while end > 0 {
            if let Some(id) = index.get(&self.texts, &rest.as_bytes()[..end]) {
                return Some((id, end));
            }
            end = rest.floor_char_boundary(end - 1);
        }
        None
    }

    pub(super) fn bytes_held(&self) -> usize {
        self.texts.bytes_held() + self.first.bytes_held() + self.further.bytes_held()
    }
}
