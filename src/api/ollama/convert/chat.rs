//! `/api/chat`: the request.

use serde_json::Value;

use super::ask::{self, Common};
use super::{messages, tools};
use ::chat::Conversation;
use config::Limits;
use http::error::ApiError;
use http::fields::Fields;

/// A chat request whose fields are valid by themselves.
#[derive(Debug)]
pub struct Chat {
    pub common: Common,
    /// Without messages, the model is to be loaded or unloaded.
    pub conversation: Conversation,
}

pub fn parse(body: &Value, limits: &Limits) -> Result<Chat, ApiError> {
    let fields = Fields::root(body)?;
    let messages = messages::messages(&fields)?;
    let ending = messages::ending(&messages);
    let tools = tools::tools(&fields)?;
    Ok(Chat { common: ask::common(&fields, limits)?, conversation: Conversation { messages, tools, ending, ..Conversation::default() } })
}
