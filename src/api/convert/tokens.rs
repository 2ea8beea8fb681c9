//! `/tokenize`, `/detokenize` and `/apply-template`: the requests.

use serde_json::Value;

use super::super::error::ApiError;
use super::super::fields::Fields;
use super::chat;
use crate::serving::Prompt;
use crate::template::RenderInput;

#[derive(Debug)]
pub struct Tokenize {
    /// None: the first that is served.
    pub model: Option<String>,
    pub prompt: Prompt,
    /// The field that holds it.
    pub source: &'static str,
    pub add_special: bool,
    pub with_pieces: bool,
}

pub fn tokenize(body: &Value) -> Result<Tokenize, ApiError> {
    let fields = Fields::root(body)?;
    let model = fields.string("model")?.map(str::to_owned);
    let (prompt, source) = match fields.get("messages") {
        Some(_) if fields.get("prompt").is_some() => return Err(fields.invalid("prompt", "is not allowed with `messages`")),
        Some(_) => (Prompt::Chat(chat::input(&fields)?), "messages"),
        None => (Prompt::Text(fields.required("prompt", fields.string("prompt")?)?.to_owned()), "prompt"),
    };
    let add_special = fields.bool("add_special_tokens")?;
    for field in ["add_generation_prompt", "chat_template_kwargs"] {
        if fields.get(field).is_some() && source == "prompt" {
            return Err(fields.invalid(field, "is only allowed with `messages`"));
        }
    }
    if add_special.is_some() && source == "messages" {
        return Err(fields.invalid("add_special_tokens", "is only allowed with `prompt`: a template writes its own"));
    }
    let with_pieces = fields.bool("return_token_strs")?.unwrap_or(false);
    Ok(Tokenize { model, prompt, source, add_special: add_special.unwrap_or(true), with_pieces })
}

/// The model, if one is named, and the ids.
pub fn detokenize(body: &Value) -> Result<(Option<String>, Vec<u32>), ApiError> {
    let fields = Fields::root(body)?;
    let model = fields.string("model")?.map(str::to_owned);
    Ok((model, fields.required("tokens", fields.ids("tokens")?)?))
}

/// The model and the conversation.
pub fn apply_template(body: &Value) -> Result<(String, RenderInput), ApiError> {
    let fields = Fields::root(body)?;
    Ok((super::model(&fields)?, chat::input(&fields)?))
}
