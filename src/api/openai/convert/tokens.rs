//! `/tokenize`, `/detokenize` and `/apply-template`: the requests.

use std::sync::Arc;

use serde_json::Value;

use super::chat;
use ::chat::Conversation;
use config::Limits;
use http::error::ApiError;
use http::fields::Fields;

/// What to tokenize.
#[derive(Debug)]
pub enum Text {
    Plain { text: String, add_special: bool },
    Chat { conversation: Box<Conversation>, template: Option<Arc<str>> },
}

#[derive(Debug)]
pub struct Tokenize {
    /// `None`: the first that is served.
    pub model: Option<String>,
    pub of: Text,
    pub with_pieces: bool,
}

pub fn tokenize(body: &Value, limits: &Limits) -> Result<Tokenize, ApiError> {
    let fields = Fields::root(body)?;
    let model = fields.string("model")?.map(str::to_owned);
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
    Ok(Tokenize { model, of, with_pieces: fields.bool("return_token_strs")?.unwrap_or(false) })
}

/// The model, if one is named, and the ids.
pub fn detokenize(body: &Value) -> Result<(Option<String>, Vec<u32>), ApiError> {
    let fields = Fields::root(body)?;
    let model = fields.string("model")?.map(str::to_owned);
    Ok((model, fields.required("tokens", fields.ids("tokens")?)?))
}

/// The model, the conversation, and a template in place of the model's.
pub fn apply_template(body: &Value, limits: &Limits) -> Result<(String, Conversation, Option<Arc<str>>), ApiError> {
    let fields = Fields::root(body)?;
    Ok((super::model(&fields)?, chat::conversation(&fields)?, chat::template(&fields, limits)?))
}
