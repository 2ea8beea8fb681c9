//! Chat templates: a model's own Jinja source, rendered in a sandbox.

use serde_json::{Map, Value};

#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The template's own `raise_exception`.
    #[error("{0}")]
    Raised(String),
    #[error("chat template: {0}")]
    Invalid(String),
}

/// What a template sees.
#[derive(Clone, Debug, Default)]
pub struct RenderInput {
    /// A JSON array of messages.
    pub messages: Value,
    pub tools: Option<Value>,
    pub add_generation_prompt: bool,
    /// `chat_template_kwargs`: may not override the names above.
    pub kwargs: Map<String, Value>,
}

pub struct ChatTemplate {}

impl ChatTemplate {
    pub fn new(source: &str, bos_token: &str, eos_token: &str) -> Result<Self, TemplateError> {
        let _ = (source, bos_token, eos_token);
        todo!()
    }

    pub fn render(&self, input: &RenderInput) -> Result<String, TemplateError> {
        let _ = input;
        todo!()
    }
}
