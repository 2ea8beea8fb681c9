//! Texts and ids without a generation: what a prompt becomes, and what ids stand for.

use super::request::{RequestError, check_ids, encode, rendered, vocab_size};
use super::{Prompt, Tools};
use crate::registry::LoadedModel;
use crate::template::RenderInput;

/// A conversation, and what beside it a chat request tells the template.
#[derive(Debug)]
pub struct Conversation {
    pub input: RenderInput,
    pub tools: Option<Tools>,
    /// Up to the end of the last message, which is the assistant's.
    pub continue_final: bool,
}

/// The ids of a text; without what a prompt begins and ends with unless `add_special`. Off the event loop: a second a megabyte.
pub fn tokenize(model: &LoadedModel, text: String, add_special: bool) -> Result<Vec<u32>, RequestError> {
    if add_special { encode(model, Prompt::Text(text), usize::MAX) } else { Ok(model.tokenizer.encode(&text, true)) }
}

/// The ids of a conversation. Off the event loop, too.
pub fn tokenize_chat(model: &LoadedModel, chat: Conversation) -> Result<Vec<u32>, RequestError> {
    let text = rendered(model, chat.input, chat.tools.as_ref(), chat.continue_final)?;
    Ok(model.tokenizer.encode_rendered(&text, usize::MAX).unwrap_or_default())
}

/// Each id's own text, lossy where it is a part of a character; a control token's is its name.
pub fn pieces(model: &LoadedModel, ids: &[u32]) -> Vec<String> {
    let piece = |&id: &u32| String::from_utf8_lossy(model.tokenizer.token_bytes(id, true).unwrap_or_default()).into_owned();
    ids.iter().map(piece).collect()
}

/// Ids → text, control tokens by their names.
pub fn detokenize(model: &LoadedModel, ids: &[u32]) -> Result<String, RequestError> {
    check_ids("tokens", ids.iter().copied(), vocab_size(model))?;
    Ok(model.tokenizer.decode(ids, true))
}

/// Messages → the prompt as text.
pub fn apply_template(model: &LoadedModel, chat: Conversation) -> Result<String, RequestError> {
    Ok(model.tokenizer.unshield(&rendered(model, chat.input, chat.tools.as_ref(), chat.continue_final)?).into_owned())
}
