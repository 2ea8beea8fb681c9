//! Log-probabilities, in the form of each endpoint.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use chat::TokenLogprob;

/// The log-probability that stands for minus infinity, which JSON does not have.
const IMPOSSIBLE: f32 = -9999.0;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatLogprobs {
    pub content: Vec<ChatToken>,
    /// Always null.
    #[schema(required = true)]
    pub refusal: Option<Vec<ChatToken>>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatToken {
    /// The token's text. If the token is part of a character, `bytes:` followed by its bytes as `\x..`. With
    /// `return_tokens_as_token_ids`, `token_id:` followed by its id.
    pub token: String,
    /// The log-probability in the model's own distribution, before penalties and temperature.
    pub logprob: f64,
    pub bytes: Vec<u8>,
    /// The likeliest tokens at this position.
    pub top_logprobs: Vec<TopToken>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TopToken {
    pub token: String,
    pub logprob: f64,
    pub bytes: Vec<u8>,
}

/// Log-probabilities in the form of the legacy API: each list has one entry per token.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CompletionLogprobs {
    pub tokens: Vec<String>,
    /// Null for the first token of a prompt.
    pub token_logprobs: Vec<Option<f64>>,
    /// For each position, the likeliest tokens and the chosen one, by their texts.
    #[schema(value_type = Vec<Option<Object>>)]
    pub top_logprobs: Vec<Option<Map<String, Value>>>,
    /// The number of characters before each token.
    pub text_offset: Vec<usize>,
}

/// A token at a position of the prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PromptToken {
    pub logprob: f64,
    /// 1 for the likeliest token. Null for a prompt token that is not among the requested number of likeliest ones.
    pub rank: Option<usize>,
    pub decoded_token: String,
}

/// For each token of the prompt, the likeliest tokens at its position and the token itself, by their ids. `None` for the first token.
pub type PromptLogprobs = Vec<Option<BTreeMap<String, PromptToken>>>;

pub fn prompt_logprobs(tokens: &[TokenLogprob]) -> PromptLogprobs {
    let at = |token: &TokenLogprob| {
        let of = |bytes: &[u8], logprob, rank| PromptToken { logprob: finite(logprob), rank, decoded_token: text(bytes) };
        let own = (token.id.to_string(), of(&token.bytes, token.logprob?, None));
        let top = token.top.iter().enumerate().map(|(i, top)| (top.id.to_string(), of(&top.bytes, top.logprob, Some(i + 1))));
        Some(std::iter::once(own).chain(top).collect())
    };
    tokens.iter().map(at).collect()
}

/// How tokens are named in log-probabilities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TokenNames {
    /// By their texts.
    #[default]
    Texts,
    /// As `token_id:` and the id, which tells apart tokens of the same text.
    Ids,
}

impl TokenNames {
    fn of(self, id: u32, bytes: &[u8]) -> String {
        match self {
            Self::Texts => text(bytes),
            Self::Ids => format!("token_id:{id}"),
        }
    }
}

pub(super) fn text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().fold("bytes:".to_owned(), |text, byte| text + &format!("\\x{byte:02x}")),
    }
}

/// Returns the shortest decimal number that reads back as the same float32.
pub(super) fn finite(logprob: f32) -> f64 {
    let logprob = logprob.max(IMPOSSIBLE);
    logprob.to_string().parse().unwrap_or(f64::from(logprob))
}

impl ChatLogprobs {
    pub fn new(tokens: Vec<TokenLogprob>, names: TokenNames) -> Self {
        let top = |top: chat::TopToken| TopToken { token: names.of(top.id, &top.bytes), logprob: finite(top.logprob), bytes: top.bytes };
        let token = |token: TokenLogprob| ChatToken {
            token: names.of(token.id, &token.bytes),
            logprob: finite(token.logprob.unwrap_or(IMPOSSIBLE)),
            bytes: token.bytes,
            top_logprobs: token.top.into_iter().map(top).collect(),
        };
        Self { content: tokens.into_iter().map(token).collect(), refusal: None }
    }
}

impl CompletionLogprobs {
    /// Adds the tokens of a text that starts after `shift` characters.
    pub fn extend(&mut self, tokens: Vec<TokenLogprob>, shift: usize, names: TokenNames) {
        for token in tokens {
            let name = names.of(token.id, &token.bytes);
            let top = token.logprob.map(|logprob| {
                let mut top = Map::new();
                // If several tokens have the same text, the likeliest one counts.
                let likeliest = token.top.iter().map(|top| (names.of(top.id, &top.bytes), top.logprob));
                for (name, logprob) in likeliest.chain([(name.clone(), logprob)]) {
                    top.entry(name).or_insert_with(|| finite(logprob).into());
                }
                top
            });
            self.tokens.push(name);
            self.token_logprobs.push(token.logprob.map(finite));
            self.top_logprobs.push(top);
            self.text_offset.push(token.offset + shift);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_character_is_written_as_its_bytes() {
        assert_eq!((text("é".as_bytes()), text(&[0xe2, 0x82])), ("é".into(), "bytes:\\xe2\\x82".into()));
    }

    #[test]
    fn the_token_itself_is_among_the_likeliest() {
        let mut logprobs = CompletionLogprobs::default();
        let first = TokenLogprob { bytes: b"a".to_vec(), offset: 0, logprob: None, top: Vec::new(), id: 3 };
        let top = |id, bytes: &[u8], logprob| chat::TopToken { id, bytes: bytes.to_vec(), logprob };
        let top = vec![top(5, b"x", -0.5), top(6, b"y", -1.0)];
        let second = TokenLogprob { bytes: b"b".to_vec(), offset: 1, logprob: Some(f32::NEG_INFINITY), top, id: 4 };
        let by_id = serde_json::to_value(prompt_logprobs(&[first.clone(), TokenLogprob { id: 6, ..second.clone() }])).unwrap();
        assert_eq!(by_id[1]["5"], serde_json::json!({"logprob": -0.5, "rank": 1, "decoded_token": "x"}));
        assert_eq!((&by_id[0], &by_id[1]["6"]["rank"]), (&serde_json::Value::Null, &serde_json::json!(2)), "a token is there once");
        logprobs.extend(vec![first, second.clone()], 3, TokenNames::Texts);
        logprobs.extend(vec![TokenLogprob { bytes: b"x".to_vec(), logprob: Some(-0.5), ..second.clone() }], 0, TokenNames::Texts);
        let value = serde_json::to_value(&logprobs).unwrap();
        let expected = serde_json::json!({"tokens": ["a", "b", "x"], "token_logprobs": [null, -9999.0, -0.5], "text_offset": [3, 4, 1],
            "top_logprobs": [null, {"x": -0.5, "y": -1.0, "b": -9999.0}, {"x": -0.5, "y": -1.0}]});
        assert_eq!(value, expected);
        let mut by_id = CompletionLogprobs::default();
        by_id.extend(vec![second.clone()], 0, TokenNames::Ids);
        let expected = serde_json::json!({"token_id:5": -0.5, "token_id:6": -1.0, "token_id:4": -9999.0});
        assert_eq!((by_id.tokens, serde_json::to_value(&by_id.top_logprobs[0]).unwrap()), (vec!["token_id:4".to_owned()], expected));
        let chat = ChatLogprobs::new(vec![second], TokenNames::Ids).content.remove(0);
        assert_eq!((chat.token.as_str(), chat.top_logprobs[1].token.as_str(), chat.bytes), ("token_id:4", "token_id:6", b"b".to_vec()));
    }
}
