//! Builds the trie of a model's vocabulary, with which masks are computed.

use std::sync::Arc;

use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};

use tokenizer::Tokenizer;

struct Env(TokTrie);

impl TokenizerEnv for Env {
    fn tok_trie(&self) -> &TokTrie {
        &self.0
    }

    /// Takes the longest token each time. llguidance uses the result for predictions only, never for sampling.
    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.0.greedy_tokenize(bytes)
    }

    /// False, because a model may write a text with other tokens than its tokenizer would.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

/// The trie of a vocabulary of `size` ids, which may be more than the tokenizer has. Control tokens and end tokens are not text: a grammar
/// allows them only if it names them.
pub fn environment(tokenizer: &Tokenizer, size: usize) -> TokEnv {
    let ends = tokenizer.end_ids();
    // Without an end token, an extra id after the last one stands for it. It cannot be sampled.
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
