//! Conversion of requests to `/tokenize`, `/detokenize` and `/apply-template`.

use std::sync::Arc;

use serde_json::Value;

use super::chat;
use ::chat::Conversation;
use config::Limits;
use http::error::ApiError;
use http::fields::Fields;

/// The text or conversation to tokenize.
#[derive(Debug)]
pub enum Text {
    Plain { text: String, add_special: bool },
    Chat { conversation: Box<Conversation>, template: Option<Arc<str>> },
}

#[derive(Debug)]
pub struct Tokenize {
    /// The model. `None` means the first one that is served.
    pub model: Option<String>,
    pub of: Text,
    pub pieces: Option<Pieces>,
}

/// Where an answer has the text of each token: in a list beside the ids, or in one object with each id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pieces {
    Apart,
    Inside,
}

pub fn tokenize(body: &Value, limits: &Limits) -> Result<Tokenize, ApiError> {
    let fields = Fields::root(body)?;
    let model = fields.string("model")?.map(str::to_owned);
    if fields.get("content").is_some() {
        return content(&fields, model);
    }
    let add_special = fields.bool("add_special_tokens")?;
    let of = match fields.get("messages") {
        Some(_) if fields.get("prompt").is_some() => return Err(fields.invalid("prompt", "is not allowed with `messages`")),
        Some(_) if add_special.is_some() => {
            return Err(fields.invalid("add_special_tokens", "is only allowed with `prompt`: a template writes its own"));
        }
        Some(_) => Text::Chat { conversation: Box::new(chat::conversation(&fields)?), template: chat::template(&fields, limits)? },
        None => {
            let text = fields.required("prompt", fields.string("prompt")?)?.to_owned();
            let of_chats =
                ["add_generation_prompt", "continue_final_message", "chat_template", "chat_template_kwargs", "tools", "tool_choice"];
            if let Some(field) = of_chats.iter().find(|field| fields.get(field).is_some()) {
                return Err(fields.invalid(field, "is only allowed with `messages`"));
            }
            Text::Plain { text, add_special: add_special.unwrap_or(true) }
        }
    };
    let pieces = fields.bool("return_token_strs")?.unwrap_or(false).then_some(Pieces::Apart);
    Ok(Tokenize { model, of, pieces })
}

/// Reads a text in the form of llama.cpp's server, which adds no special tokens unless it is asked to.
fn content(fields: &Fields, model: Option<String>) -> Result<Tokenize, ApiError> {
    for field in ["prompt", "messages", "add_special_tokens", "return_token_strs"] {
        if fields.get(field).is_some() {
            return Err(fields.invalid(field, "is not allowed with `content`"));
        }
    }
    if fields.bool("parse_special")? == Some(false) {
        return Err(fields.invalid("parse_special", "must be true: the names of control tokens are read as these tokens"));
    }
    let text = fields.required("content", fields.string("content")?)?.to_owned();
    let add_special = fields.bool("add_special")?.unwrap_or(false);
    let pieces = fields.bool("with_pieces")?.unwrap_or(false).then_some(Pieces::Inside);
    Ok(Tokenize { model, of: Text::Plain { text, add_special }, pieces })
}

/// Reads the model, if one is named, and the ids.
pub fn detokenize(body: &Value) -> Result<(Option<String>, Vec<u32>), ApiError> {
    let fields = Fields::root(body)?;
    let model = fields.string("model")?.map(str::to_owned);
    Ok((model, fields.required("tokens", fields.ids("tokens")?)?))
}

/// A conversation to render.
pub struct Rendering {
    /// The model. `None` means the first one that is served.
    pub model: Option<String>,
    pub conversation: Conversation,
    /// The chat template in place of the model's own.
    pub template: Option<Arc<str>>,
}

pub fn apply_template(body: &Value, limits: &Limits) -> Result<Rendering, ApiError> {
    let fields = Fields::root(body)?;
    let model = fields.string("model")?.map(str::to_owned);
    Ok(Rendering { model, conversation: chat::conversation(&fields)?, template: chat::template(&fields, limits)? })
}
