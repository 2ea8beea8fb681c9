//! [`Vocabulary`]: a model's vocabulary as llguidance needs it, and the trie that masks are computed with.

use std::sync::Arc;

use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use serde_json::{Value, json};

use tokenizer::Tokenizer;

struct Env(TokTrie);

impl TokenizerEnv for Env {
    fn tok_trie(&self) -> &TokTrie {
        &self.0
    }

    /// Takes the longest token each time. llguidance uses the result only for predictions, never for sampling.
    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.0.greedy_tokenize(bytes)
    }

    /// `false`, because a model may write a text with other tokens than its tokenizer would.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

/// A vocabulary. Control tokens and end tokens are not text: a grammar allows them only if it names them.
pub struct Vocabulary {
    ends: Vec<u32>,
    /// The tokens by id. Control tokens begin with llguidance's marker. Ids without a token are empty.
    words: Vec<Vec<u8>>,
}

impl Vocabulary {
    /// A vocabulary of `size` ids, possibly more than the tokenizer has.
    pub fn of(tokenizer: &Tokenizer, size: usize) -> Self {
        let ends = tokenizer.end_ids();
        // Without an end token, an extra id after the last one represents it. That id cannot be sampled.
        let size = size + usize::from(ends.is_empty());
        let word = |id: u32| match tokenizer.token_bytes(id, true) {
            Some(bytes) if tokenizer.is_control(id) || ends.contains(&id) => [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat(),
            Some(bytes) => bytes.to_vec(),
            None => Vec::new(),
        };
        Self { ends: ends.to_vec(), words: (0..size as u32).map(word).collect() }
    }

    pub fn environment(&self) -> TokEnv {
        let size = self.words.len() as u32;
        let eos = self.ends.first().copied().unwrap_or(size - 1);
        let trie = TokTrie::from(&TokRxInfo::new(size, eos), &self.words);
        let trie = if self.ends.is_empty() { trie } else { trie.with_eos_tokens(&self.ends) };
        Arc::new(Env(trie))
    }

    /// The same ids with only the tokens that compiling a grammar looks at: control tokens, as their text, and single bytes, as their
    /// value.
    pub fn outline(&self) -> Value {
        let outlined = |(id, word): (usize, &Vec<u8>)| match word.as_slice() {
            [byte] => Some(json!([id, byte])),
            [TokTrie::SPECIAL_TOKEN_MARKER, text @ ..] => Some(json!([id, String::from_utf8_lossy(text)])),
            _ => None,
        };
        let words: Vec<Value> = self.words.iter().enumerate().filter_map(outlined).collect();
        json!({ "size": self.words.len(), "ends": self.ends, "words": words })
    }

    /// The inverse of [`Vocabulary::outline`]. `None` if `outline` is malformed.
    pub fn of_outline(outline: &Value) -> Option<Self> {
        let size = usize::try_from(outline["size"].as_u64()?).ok()?;
        let id = |id: &Value| id.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|id| (*id as usize) < size);
        let mut words = vec![Vec::new(); size];
        for word in outline["words"].as_array()? {
            words[id(&word[0])? as usize] = match &word[1] {
                Value::String(text) => [&[TokTrie::SPECIAL_TOKEN_MARKER], text.as_bytes()].concat(),
                byte => vec![byte.as_u64().and_then(|byte| u8::try_from(byte).ok())?],
            };
        }
        Some(Self { ends: outline["ends"].as_array()?.iter().map(id).collect::<Option<_>>()?, words })
    }
}
