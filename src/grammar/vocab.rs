//! A model's vocabulary as the trie that masks are computed with.

use std::sync::Arc;

use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};

use crate::tokenizer::Tokenizer;

struct Env(TokTrie);

impl TokenizerEnv for Env {
    fn tok_trie(&self) -> &TokTrie {
        &self.0
    }

    /// Longest tokens first: good enough for forecasts, never for what is sampled.
    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.0.greedy_tokenize(bytes)
    }

    /// The model itself chooses how it writes a text.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

/// The trie of a vocabulary of `size` ids, which may be more than the tokenizer knows. Control tokens (and what ends a text) are no text:
/// a grammar must name them.
pub fn environment(tokenizer: &Tokenizer, size: usize) -> TokEnv {
    let ends = tokenizer.end_ids();
    // Where nothing ends a text there is an id behind the last that nobody can sample.
    let size = size + usize::from(ends.is_empty());
    let word = |id: u32| match tokenizer.token_bytes(id, true) {
        Some(bytes) if tokenizer.is_control(id) || ends.contains(&id) => [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat(),
        Some(bytes) => bytes.to_vec(),
        None => Vec::new(),
    };
    let words: Vec<Vec<u8>> = (0..size as u32).map(word).collect();
    let eos = ends.first().copied().unwrap_or(size as u32 - 1);
    let trie = TokTrie::from(&TokRxInfo::new(size as u32, eos), &words);
    let trie = if ends.is_empty() { trie } else { trie.with_eos_tokens(ends) };
    Arc::new(Env(trie))
}
