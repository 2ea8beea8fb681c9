//! The prompt that a model continues, and its token ids.

use std::borrow::Cow;
use std::sync::Arc;

use super::encoded_prompt::EncodedPrompt;
use super::error::{ContextLimit, RequestError};
use super::model::Model;
use super::pictures::PictureError;
use chat::{Conversation, Ending, Message, Picture, Rendered, Role, Subject, render};
use tokenizer::{Gap, Tokenizer};

#[derive(Clone, Debug)]
pub enum Prompt {
    /// A conversation, rendered by the model's chat template.
    Chat(Conversation),
    /// A text. The texts of control tokens in it become control tokens.
    Text(String),
    /// Token ids. No BOS is added.
    Ids(Vec<u32>),
    /// The text before and after a gap that is to be filled in.
    Infill { prefix: String, suffix: Arc<str>, around: Around },
}

/// The context of a gap, besides the text before and after it.
#[derive(Clone, Debug, Default)]
pub struct Around {
    /// Other files of the same work: the name and the text of each. The first ones are left out if the context has no room for them.
    pub files: Arc<[(String, String)]>,
    /// The text with which the gap begins.
    pub begun: String,
}

/// The longest prefix and suffix together. Encoding takes many times the memory of a text, and both are encoded whole [bytes].
const MAX_INFILL: usize = 4 << 20;

impl Prompt {
    /// The prompt as a client sees it before the answer. `ids`: the prompt's token ids.
    pub(super) fn echo(&self, tokenizer: &Tokenizer, ids: &[u32]) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Infill { prefix, .. } => prefix.clone(),
            Self::Ids(_) | Self::Chat(_) => tokenizer.decode(ids, true),
        }
    }
}

/// The most tokens of a prompt that are counted: four contexts.
pub(super) fn most_counted(model: &Model) -> usize {
    model.context().saturating_mul(4)
}

/// The number of ids that both the tokenizer and the weights have.
pub(super) fn vocab_size(model: &Model) -> usize {
    model.base.tokenizer.vocab_size().min(model.base.spec.vocab_size)
}

pub(super) fn check_ids(subject: Subject, mut ids: impl Iterator<Item = u32>, vocab_size: usize) -> Result<(), RequestError> {
    match ids.find(|id| *id as usize >= vocab_size) {
        Some(id) => Err(RequestError::Vocabulary { subject, id, vocab_size }),
        None => Ok(()),
    }
}

/// Encodes a prompt without pictures. A prompt that is somewhat too long is counted to its end, so that the error can tell its length.
/// Counting a much longer one is not worth the time.
pub(super) fn encode(model: &Model, prompt: &Prompt) -> Result<Vec<u32>, RequestError> {
    encode_up_to(model, prompt, most_counted(model))
}

/// Like [`encode`], up to `most` tokens.
pub(super) fn encode_up_to(model: &Model, prompt: &Prompt, most: usize) -> Result<Vec<u32>, RequestError> {
    let tokenizer = &model.base.tokenizer;
    let ids = match prompt {
        Prompt::Chat(conversation) => return encode_rendered(model, &rendered(model, conversation)?, most)?.text_only(),
        Prompt::Text(text) => tokenizer.encode_prompt(text, most),
        Prompt::Ids(ids) => Some(ids.clone()),
        Prompt::Infill { prefix, suffix, around: Around { files, begun } } => {
            let infill = tokenizer.infill().ok_or_else(|| RequestError::NoInfill(model.id.clone()))?;
            let size = prefix.len() + suffix.len() + begun.len() + files.iter().map(|(name, text)| name.len() + text.len()).sum::<usize>();
            if size > MAX_INFILL {
                return Err(RequestError::TooMuch { size, most: MAX_INFILL, unit: "bytes of text" });
            }
            // An eighth of the context is left for the answer.
            let most = model.context() - model.context() / 8;
            Some(tokenizer.encode_infill(infill, Gap { files, prefix, suffix, begun }, most))
        }
    };
    checked(model, ids)
}

/// Encodes a conversation's rendered prompt, up to `most` tokens. Its pictures are planned.
pub(super) fn encode_rendered(model: &Model, prompt: &Rendered, most: usize) -> Result<EncodedPrompt, RequestError> {
    let tokenizer = &model.base.tokenizer;
    let rules = model.base.pictures.as_ref().map(|pictures| &*pictures.rules);
    EncodedPrompt::new(prompt, rules, &|text, is_first| {
        let ids = if is_first { tokenizer.encode_rendered(text, most) } else { tokenizer.encode_rendered_part(text, most) };
        checked(model, ids)
    })
}

pub(super) fn checked(model: &Model, ids: Option<Vec<u32>>) -> Result<Vec<u32>, RequestError> {
    let ids = ids.ok_or(RequestError::TooLong { most: most_counted(model), room: ContextLimit::of(model) })?;
    check_ids(Subject::Prompt, ids.iter().copied(), vocab_size(model))?;
    Ok(ids)
}

/// The conversation as the model takes it: if it takes no pictures, texts replace those that may be left out.
///
/// # Errors
/// Names the first picture that may not be left out.
fn admitted<'a>(model: &Model, conversation: Cow<'a, Conversation>) -> Result<Cow<'a, Conversation>, RequestError> {
    if model.base.pictures.is_some() || conversation.pictures().next().is_none() {
        return Ok(conversation);
    }
    let mut conversation = conversation.into_owned();
    let messages = std::mem::take(&mut conversation.messages).into_iter().map(Message::without_pictures).collect();
    let refused = |picture: Picture| RequestError::Picture { field: picture.field, error: PictureError::NoEncoder(model.id.clone()) };
    conversation.messages = Result::map_err(messages, refused)?;
    Ok(Cow::Owned(conversation))
}

/// Renders a conversation's prompt, with the tokenizer's marks in its texts.
pub(super) fn rendered(model: &Model, conversation: &Conversation) -> Result<Rendered, RequestError> {
    let (Some(template), Some(dialect), false) = (&model.template, &model.dialect, model.only_continues) else {
        return Err(RequestError::NoTemplate(model.id.clone()));
    };
    let conversation = admitted(model, model.defaults.fill(conversation))?;
    Ok(render(template, dialect, &model.base.tokenizer, &conversation)?)
}

/// Renders a conversation's prompt that follows the ids of an earlier one. The text that the template writes at the beginning of each
/// conversation is left out, unless a system message begins another one.
pub(super) fn rendered_behind(model: &Model, prefix: &[u32], conversation: &Conversation) -> Result<Rendered, RequestError> {
    if prefix.is_empty() || conversation.messages.first().is_some_and(|first| first.role == Role::System) {
        return rendered(model, conversation);
    }
    let turn = [Message::of_text(Role::User, "a"), Message::of_text(Role::Assistant, "b")];
    let whole = turn.iter().chain(&conversation.messages).cloned().collect();
    let mut whole = rendered(model, &Conversation { messages: whole, ..conversation.clone() })?;
    let head = rendered(model, &Conversation { messages: turn.into(), ending: Ending::ClosedTurn, ..conversation.clone() })?;
    match whole.texts[0].strip_prefix(head.end()) {
        Some(rest) => {
            whole.texts[0] = rest.to_owned();
            Ok(whole)
        }
        // The template writes the last turn differently from earlier ones.
        None => rendered(model, conversation),
    }
}

/// Appends a conversation's prompt to the ids of an earlier one. The second BOS is left out.
pub(super) fn with_prefix(model: &Model, prefix: &[u32], mut prompt: EncodedPrompt) -> Result<EncodedPrompt, RequestError> {
    if prefix.is_empty() {
        return Ok(prompt);
    }
    check_ids(Subject::Prompt, prefix.iter().copied(), vocab_size(model))?;
    let tokenizer = &model.base.tokenizer;
    let begins = usize::from(tokenizer.starts_with_bos() && tokenizer.bos().is_some_and(|bos| prompt.ids.first() == Some(&bos)));
    prompt.insert_before(prefix, begins);
    Ok(prompt)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_outside_the_vocabulary_is_named() {
        let error = check_ids(Subject::StopTokens, [0, 9, 10].into_iter(), 10).unwrap_err();
        assert_eq!(
            (error.subject(), error.to_string().as_str()),
            (Subject::StopTokens, "there is no token 10: the model's vocabulary ends at 9")
        );
    }
}
