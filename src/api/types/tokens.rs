//! `/tokenize`, `/detokenize`, `/apply-template` and `/tokenizer_info`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::chat::{Message, ToolChoice, ToolDefinition};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"model": "smollm2:135m", "prompt": "The longest river"}))]
pub struct TokenizeRequest {
    /// Absent: the first that is served.
    pub model: Option<String>,
    /// A text; or else `messages`.
    pub prompt: Option<String>,
    /// A conversation, which goes through the model's chat template.
    pub messages: Option<Vec<Message>>,
    /// With `prompt`: begin as a prompt begins, with a BOS where the model wants one.
    #[schema(default = true)]
    pub add_special_tokens: Option<bool>,
    /// With `messages`: let the template open the assistant's turn.
    #[schema(default = true)]
    pub add_generation_prompt: Option<bool>,
    /// As in a chat request.
    pub tools: Option<Vec<ToolDefinition>>,
    pub tool_choice: Option<ToolChoice>,
    /// End with the last message, which is the assistant's, as it is.
    pub continue_final_message: Option<bool>,
    #[schema(value_type = Option<Object>)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Each token's text, too.
    pub return_token_strs: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Tokens {
    pub count: usize,
    /// The longest context served, in tokens.
    pub max_model_len: usize,
    pub tokens: Vec<u32>,
    /// Null unless they were asked for.
    #[schema(required = true)]
    pub token_strs: Option<Vec<String>>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"model": "smollm2:135m", "tokens": [504, 3575]}))]
pub struct DetokenizeRequest {
    /// Absent: the first that is served.
    pub model: Option<String>,
    pub tokens: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"model": "smollm2:135m", "messages": [{"role": "user", "content": "Name three rivers."}]}))]
pub struct TemplateRequest {
    pub model: String,
    pub messages: Vec<Message>,
    /// Let the template open the assistant's turn.
    #[schema(default = true)]
    pub add_generation_prompt: Option<bool>,
    /// As in a chat request.
    pub tools: Option<Vec<ToolDefinition>>,
    pub tool_choice: Option<ToolChoice>,
    /// End with the last message, which is the assistant's, as it is.
    pub continue_final_message: Option<bool>,
    #[schema(value_type = Option<Object>)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
}

/// A prompt as text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PromptText {
    pub prompt: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TokenizerInfo {
    pub model: String,
    /// Null: the model has none.
    #[schema(required = true)]
    pub bos_token: Option<String>,
    #[schema(required = true)]
    pub eos_token: Option<String>,
    pub vocab_size: usize,
    /// The longest context served, in tokens.
    pub max_model_len: usize,
}
