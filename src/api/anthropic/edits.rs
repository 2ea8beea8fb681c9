//! Edits of a conversation that depend on the length of its prompt.

use std::sync::Arc;

use super::convert::edits::{Edit, Trigger};
use super::convert::names::MESSAGES;
use super::convert::request::Prompt;
use chat::{Conversation, Message};
use http::error::ApiError;
use http::state::{AppState, off_loop};
use serving::{MAX_TEXT, MEMORY_PER_BYTE, Model, tokenize_chat};

/// Returns the conversation as the model gets it, after the request's edits.
pub async fn edited(state: &AppState, model: &Arc<Model>, mut prompt: Prompt) -> Result<Conversation, ApiError> {
    let edits = std::mem::take(&mut prompt.edits);
    let mut conversation = prompt.for_model(model);
    // A conversation with a model that does not chat is refused later, with the names of models that do.
    if edits.is_empty() || model.template.is_none() || model.only_continues {
        return Ok(conversation);
    }
    let size: usize = conversation.messages.iter().map(Message::num_text_bytes).sum();
    let mut memory = state.bodies.share();
    memory.set(MEMORY_PER_BYTE * size.min(MAX_TEXT))?;
    let model = model.clone();
    let work = move || {
        let _memory = memory;
        edits.iter().try_for_each(|edit| apply(&model, edit, &mut conversation)).map(|()| conversation)
    };
    off_loop(work).await?
}

fn apply(model: &Model, edit: &Edit, conversation: &mut Conversation) -> Result<(), ApiError> {
    match edit {
        Edit::ClearTools(clear) => {
            let is_triggered = match (clear.is_triggered(&conversation.messages), clear.trigger) {
                (Some(is_triggered), _) => is_triggered,
                (None, Trigger::Tokens(most) | Trigger::Uses(most)) => length(model, conversation)? > most as usize,
            };
            if !is_triggered {
                return Ok(());
            }
            let mut shorter = conversation.clone();
            clear.apply(&mut shorter.messages);
            let is_worth_it =
                clear.at_least == 0 || length(model, conversation)?.saturating_sub(length(model, &shorter)?) >= clear.at_least;
            if is_worth_it {
                *conversation = shorter;
            }
        }
        Edit::Compact { above, path } => {
            let length = length(model, conversation)?;
            if length > *above as usize {
                let message = format!(
                    "`{path}` is `compact_20260112`, and the prompt has {length} tokens, more than its trigger of {above}: the server \
                     writes no summaries, so shorten the conversation at the client"
                );
                return Err(ApiError::unsupported(path, message));
            }
        }
    }
    Ok(())
}

/// Counts the tokens of a prompt.
fn length(model: &Model, conversation: &Conversation) -> Result<usize, ApiError> {
    tokenize_chat(model, conversation).map(|tokens| tokens.count).map_err(|error| MESSAGES.request_error(&error))
}
