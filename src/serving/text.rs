//! Converts between texts and token ids without a generation.

use super::error::RequestError;
use super::model::Model;
use super::pictures::MARKER;
use super::prompt::{check_ids, encode_rendered, rendered, rendered_behind, vocab_size, with_prefix};
use chat::{Conversation, Subject};

/// The longest text that is tokenized at once [bytes].
pub const MAX_TEXT: usize = 4 << 20;
/// Memory needed to tokenize a text [bytes per byte of text]. A single long word needs the most.
pub const MEMORY_PER_BYTE: usize = 64;
/// The most ids that are detokenized at once. The longest tokens have hundreds of bytes.
const MAX_IDS: usize = 1 << 18;

/// The most bytes per token that a cut text may have. Only runs of one character have longer tokens on average.
const MAX_BYTES_PER_TOKEN: usize = 64;

/// Tokenizes a text. `add_special`: whether the ids begin as a prompt does, for example with BOS. Takes up to a second per megabyte: call
/// it off the event loop.
pub fn tokenize(model: &Model, text: &str, add_special: bool) -> Result<Vec<u32>, RequestError> {
    check_amount(text.len(), MAX_TEXT, "bytes of text")?;
    Ok(match add_special {
        true => model.base.tokenizer.encode_prompt(text, usize::MAX).unwrap_or_default(),
        false => model.base.tokenizer.encode(text, true),
    })
}

/// Tokenizes the beginning of a text, up to `most` tokens and the context. A token that ends every text (such as SEP) stays at the end.
/// Call it off the event loop, too.
pub(super) fn beginning(model: &Model, text: &str, most: usize) -> Vec<u32> {
    let (tokenizer, most) = (&model.base.tokenizer, model.context().min(most));
    let mut ids = tokenizer.encode_prompt(bounded(text, most), usize::MAX).unwrap_or_default();
    let end = ids.last().copied().filter(|&id| tokenizer.is_control(id));
    ids.truncate(most);
    if let (Some(end), Some(last)) = (end, ids.last_mut()) {
        *last = end;
    }
    ids
}

/// Cuts a text to the length that `most` tokens can hold, because encoding takes many times the memory of a text.
pub(super) fn bounded(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most.saturating_mul(MAX_BYTES_PER_TOKEN))]
}

/// A conversation's prompt as tokens.
pub struct PromptTokens {
    /// The ids of the tokens. Rows of pictures have none.
    pub ids: Vec<u32>,
    /// The number of tokens and rows: what `usage` counts.
    pub count: usize,
}

/// Tokenizes a conversation. Call it off the event loop, too.
pub fn tokenize_chat(model: &Model, conversation: &Conversation) -> Result<PromptTokens, RequestError> {
    tokenize_behind(model, &[], conversation)
}

/// Tokenizes a conversation that follows the ids of an earlier one. Call it off the event loop, too.
pub fn tokenize_behind(model: &Model, prefix: &[u32], conversation: &Conversation) -> Result<PromptTokens, RequestError> {
    let prompt = rendered_behind(model, prefix, conversation)?;
    check_amount(prompt.texts.iter().map(String::len).sum(), MAX_TEXT, "bytes of text")?;
    let prompt = with_prefix(model, prefix, encode_rendered(model, &prompt, usize::MAX)?)?;
    Ok(PromptTokens { count: prompt.len(), ids: prompt.ids })
}

fn check_amount(size: usize, most: usize, unit: &'static str) -> Result<(), RequestError> {
    if size > most { Err(RequestError::TooMuch { size, most, unit }) } else { Ok(()) }
}

/// The text of each id. A part of a character becomes U+FFFD, and a control token becomes its name.
pub fn texts_of(model: &Model, ids: &[u32]) -> Vec<String> {
    let piece = |&id: &u32| String::from_utf8_lossy(model.base.tokenizer.token_bytes(id, true).unwrap_or_default()).into_owned();
    ids.iter().map(piece).collect()
}

/// Detokenizes ids. Control tokens become their names.
pub fn detokenize(model: &Model, ids: &[u32]) -> Result<String, RequestError> {
    check_amount(ids.len(), MAX_IDS, "tokens")?;
    check_ids(Subject::Prompt, ids.iter().copied(), vocab_size(model))?;
    Ok(model.base.tokenizer.decode(ids, true))
}

/// Renders a conversation's prompt as text, with a marker for each picture.
pub fn apply_template(model: &Model, conversation: &Conversation) -> Result<String, RequestError> {
    let prompt = rendered(model, conversation)?.with_markers(MARKER);
    Ok(model.base.tokenizer.unshield(&prompt).into_owned())
}
