//! Conversion of requests to `/api/chat`.

use serde_json::Value;

use super::common::{self, Common};
use super::{messages, tools};
use ::chat::Conversation;
use config::Limits;
use http::error::ApiError;
use http::fields::Fields;

/// A chat request whose fields are each valid.
#[derive(Debug)]
pub struct Chat {
    pub common: Common,
    /// The conversation. Without messages, the model is loaded or unloaded instead.
    pub conversation: Conversation,
}

pub fn parse(body: &Value, limits: &Limits) -> Result<Chat, ApiError> {
    let fields = Fields::root(body)?;
    let messages = messages::messages(&fields)?;
    let ending = messages::ending(&messages);
    let tools = tools::tools(&fields)?;
    Ok(Chat { common: common::common(&fields, limits)?, conversation: Conversation { messages, tools, ending, ..Conversation::default() } })
}
