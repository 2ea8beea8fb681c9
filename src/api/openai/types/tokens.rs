//! `/tokenize`, `/detokenize`, `/apply-template` and `/tokenizer_info`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::chat::Message;
use super::template::TemplateFields;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"model": "smollm2:135m", "prompt": "The longest river"}))]
pub struct TokenizeRequest {
    /// The model. If absent, the first one that the server lists.
    pub model: Option<String>,
    /// A text. One of `prompt`, `messages` and `content` is required.
    pub prompt: Option<String>,
    /// A conversation, which is rendered by the model's chat template.
    pub messages: Option<Vec<Message>>,
    /// Only with `prompt`: add the special tokens that start a prompt, such as BOS if the model uses one.
    #[schema(default = true)]
    pub add_special_tokens: Option<bool>,
    /// Also return the text of each token.
    pub return_token_strs: Option<bool>,
    /// A text, in the form of llama.cpp's server.
    pub content: Option<String>,
    /// Only with `content`: add the special tokens that start a prompt.
    #[schema(default = false)]
    pub add_special: Option<bool>,
    /// Only with `content`: each element of `tokens` is an object with the id and its text.
    #[schema(default = false)]
    pub with_pieces: Option<bool>,
    /// Only with `content`, and only true.
    #[schema(default = true)]
    pub parse_special: Option<bool>,
    /// Only with `messages`.
    #[serde(flatten)]
    pub template: TemplateFields,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Tokens {
    pub count: usize,
    /// The context length [tokens].
    pub max_model_len: usize,
    /// The ids; with `with_pieces`, objects.
    pub tokens: Vec<TokenOrPiece>,
    /// Null unless the request sets `return_token_strs`.
    #[schema(required = true)]
    pub token_strs: Option<Vec<String>>,
}

/// A token's id, or the id with its text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum TokenOrPiece {
    Id(u32),
    Piece { id: u32, piece: String },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"model": "smollm2:135m", "tokens": [504, 3575]}))]
pub struct DetokenizeRequest {
    /// The model. If absent, the first one that the server lists.
    pub model: Option<String>,
    pub tokens: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"model": "smollm2:135m", "messages": [{"role": "user", "content": "Name three rivers."}]}))]
pub struct TemplateRequest {
    /// If absent, the first model that the server lists.
    pub model: Option<String>,
    pub messages: Vec<Message>,
    #[serde(flatten)]
    pub template: TemplateFields,
}

/// A text, twice: vLLM calls it `prompt`, and llama.cpp's server `content`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DetokenizedText {
    pub prompt: String,
    pub content: String,
}

/// A prompt as text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PromptText {
    pub prompt: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TokenizerInfo {
    pub model: String,
    /// The class of `transformers` that reads vocabularies of this kind.
    #[schema(example = "GPT2Tokenizer")]
    pub tokenizer_class: String,
    /// Null if the model does not have one.
    #[schema(required = true)]
    pub bos_token: Option<String>,
    #[schema(required = true)]
    pub eos_token: Option<String>,
    pub vocab_size: usize,
    /// The context length [tokens].
    pub max_model_len: usize,
}
