//! Texts and ids without a generation: what a prompt becomes, and what ids stand for.

use super::Prompt;
use super::request::{RequestError, check_ids, encode, rendered, vocab_size};
use crate::registry::LoadedModel;
use crate::template::RenderInput;

/// The ids of a prompt; text without what a prompt begins and ends with unless `add_special`. Off the event loop: a second a megabyte.
pub fn tokenize(model: &LoadedModel, prompt: Prompt, add_special: bool) -> Result<Vec<u32>, RequestError> {
    match prompt {
        Prompt::Text(text) if !add_special => Ok(model.tokenizer.encode(&text, true)),
        other => encode(model, other, usize::MAX),
    }
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
pub fn apply_template(model: &LoadedModel, input: RenderInput) -> Result<String, RequestError> {
    Ok(model.tokenizer.unshield(&rendered(model, input, None, false)?).into_owned())
}
