//! [`Table`]: the tokens of a vocabulary and their properties, before they become keys.

use std::collections::HashMap;
use std::path::Path;

use gguf::Value;
use serde_json::Value as Json;

use crate::error::{Fallible, fault, wrong};
use crate::json;

/// The numbers of token types in GGUF.
pub const NORMAL: i32 = 1;
pub const CONTROL: i32 = 3;
pub const USER_DEFINED: i32 = 4;
pub const UNUSED: i32 = 5;

/// Far above any real vocabulary.
const MAX_TOKENS: u64 = 4 << 20;

#[derive(Default)]
pub struct Table {
    /// `tokenizer.ggml.model`
    pub model: &'static str,
    pub tokens: Vec<String>,
    pub types: Vec<i32>,
    pub scores: Option<Vec<f32>>,
    pub merges: Option<Vec<String>>,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub unknown: Option<u32>,
    pub adds_bos: bool,
    pub adds_eos: bool,
    /// Further keys, with their full names.
    pub keys: Vec<(String, Value)>,
    pub notes: Vec<String>,
}

impl Table {
    /// Adds a key `tokenizer.ggml.*`.
    pub fn key(&mut self, name: &str, value: impl Into<Value>) {
        self.keys.push((format!("tokenizer.ggml.{name}"), value.into()));
    }

    pub fn id(&self, text: &str) -> Option<u32> {
        self.tokens.iter().position(|token| token == text).map(|id| id as u32)
    }

    /// Adds the tokens of `tokenizer_config.json` and `added_tokens.json` to the vocabulary.
    pub fn with_added(mut self, dir: &Path, settings: &Json) -> Fallible<Self> {
        let added: HashMap<String, u32> = json::read(&dir.join("added_tokens.json"))?.unwrap_or_default();
        let mut all: Vec<(u64, String, bool)> = added.into_iter().map(|(token, id)| (id.into(), token, false)).collect();
        for (id, token) in settings["added_tokens_decoder"].as_object().into_iter().flatten() {
            let (Ok(id), Some(text)) = (id.parse::<u64>(), token["content"].as_str()) else {
                return fault(&dir.join("tokenizer_config.json"), format!("added_tokens_decoder: `{}` is not a token", id.escape_debug()));
            };
            all.push((id, text.to_owned(), token["special"] == true));
        }
        for (id, token, special) in all {
            if id >= MAX_TOKENS {
                return wrong(format!("the added token `{}` has the id {id}, expected one below {MAX_TOKENS}", token.escape_debug()));
            }
            self.add(id as usize, token, special)?;
        }
        Ok(self)
    }

    /// Adds a token at its id. An existing token keeps its type, unless that was an ordinary one.
    fn add(&mut self, id: usize, token: String, special: bool) -> Fallible<()> {
        let kind = if special { CONTROL } else { USER_DEFINED };
        match self.tokens.get(id) {
            Some(there) if *there == token => {
                if self.types[id] == NORMAL || special && self.types[id] == USER_DEFINED {
                    self.types[id] = kind;
                }
                return Ok(());
            }
            Some(there) if self.types[id] != UNUSED => {
                let (token, there) = (token.escape_debug(), there.escape_debug());
                return wrong(format!("the token {id} is `{there}` in the vocabulary and `{token}` among the added tokens"));
            }
            _ => {}
        }
        self.grow(id + 1);
        (self.tokens[id], self.types[id]) = (token, kind);
        Ok(())
    }

    /// Fills ids up to `count` with unused tokens.
    fn grow(&mut self, count: usize) {
        for id in self.tokens.len()..count {
            self.tokens.push(format!("[PAD{id}]"));
            self.types.push(UNUSED);
        }
        if let Some(scores) = &mut self.scores {
            scores.resize(self.tokens.len(), 0.0);
        }
    }

    /// Fits the vocabulary to the embedding: as many tokens as the embedding has rows.
    ///
    /// # Errors
    /// If an ordinary token has no row. Added tokens without a row are left out.
    pub fn fitted(mut self, rows: u64) -> Fallible<Self> {
        if rows > MAX_TOKENS {
            return wrong(format!("the embedding has {rows} rows, expected at most {MAX_TOKENS}"));
        }
        let rows = rows as usize;
        for id in rows..self.tokens.len() {
            let token = &self.tokens[id];
            if ![CONTROL, USER_DEFINED, UNUSED].contains(&self.types[id]) {
                let token = token.escape_debug();
                return wrong(format!(
                    "the token {id} (`{token}`) has no row in the embedding, which has {rows}: are these files of one model?"
                ));
            }
            if self.types[id] != UNUSED {
                self.notes.push(format!("the token {token} is left out: its id {id} has no row in the embedding"));
            }
        }
        self.tokens.truncate(rows);
        self.types.truncate(rows);
        if let Some(scores) = &mut self.scores {
            scores.truncate(rows);
        }
        self.grow(rows);
        Ok(self)
    }

    /// Turns the table into metadata keys.
    pub fn pairs(self) -> Vec<(String, Value)> {
        let count = self.tokens.len();
        let key = |name: &str| format!("tokenizer.ggml.{name}");
        let mut pairs =
            vec![(key("model"), Value::from(self.model)), (key("tokens"), self.tokens.into()), (key("token_type"), self.types.into())];
        pairs.extend(self.scores.map(|scores| (key("scores"), scores.into())));
        pairs.extend(self.merges.map(|merges| (key("merges"), merges.into())));
        let ids = [("bos_token_id", self.bos), ("eos_token_id", self.eos), ("unknown_token_id", self.unknown)];
        pairs.extend(ids.into_iter().filter_map(|(name, id)| Some((key(name), Value::U32(id.filter(|&id| (id as usize) < count)?)))));
        pairs.push((key("add_bos_token"), self.adds_bos.into()));
        pairs.push((key("add_eos_token"), self.adds_eos.into()));
        pairs.extend(self.keys);
        pairs
    }
}
