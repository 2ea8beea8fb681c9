//! `truncation: "auto"`: removes the oldest turns of a conversation until the conversation fits the context.

use std::sync::Arc;

use super::convert::names;
use chat::{Conversation, Role};
use http::error::ApiError;
use http::state::off_loop;
use serving::pictures::PictureError;
use serving::{Model, RequestError, tokenize_chat};

/// The part of the context that is reserved for the answer if the request sets no limit, as a divisor: one part in this many.
const FOR_ANSWER: usize = 8;

/// Returns the conversation without its oldest turns. System messages at its head stay, and so does its last turn.
pub async fn fitted(model: Arc<Model>, conversation: Conversation, max_output: Option<u32>) -> Result<Conversation, ApiError> {
    off_loop(move || fit(&model, conversation, max_output)).await?.map_err(|error| names::RESPONSES.request_error(&error))
}

fn fit(model: &Model, conversation: Conversation, max_output: Option<u32>) -> Result<Conversation, RequestError> {
    let context = model.context();
    let answer = max_output.map_or(context / FOR_ANSWER, |count| count as usize).min(context / 2);
    let fits = |conversation: &Conversation| match tokenize_chat(model, conversation) {
        Ok(tokens) => Ok(tokens.count + answer <= context),
        Err(RequestError::TooMuch { .. }) => Ok(false),
        Err(RequestError::Picture { error: PictureError::TooMany | PictureError::TooManyPixels, .. }) => Ok(false),
        // The request is refused later, with models that do.
        Err(RequestError::NoTemplate(_)) => Ok(true),
        Err(error) => Err(error),
    };
    if fits(&conversation)? {
        return Ok(conversation);
    }
    let starts = turns(&conversation);
    // Searches for the first turn from which the rest fits. The last turn is not tried: if it does not fit either, the request is refused
    // later.
    let (mut low, mut high) = (0, starts.len().saturating_sub(1));
    while low < high {
        let middle = (low + high) / 2;
        if fits(&from(&conversation, starts[middle]))? { high = middle } else { low = middle + 1 }
    }
    Ok(starts.get(low).map_or(conversation.clone(), |start| from(&conversation, *start)))
}

/// The number of system messages at the head.
fn head(conversation: &Conversation) -> usize {
    conversation.messages.iter().take_while(|message| message.role == Role::System).count()
}

/// The indices at which turns begin, each with a message of the user. So no tool result loses its call.
fn turns(conversation: &Conversation) -> Vec<usize> {
    let first = head(conversation);
    let is_user = |&i: &usize| conversation.messages[i].role == Role::User;
    (first + 1..conversation.messages.len()).filter(is_user).collect()
}

/// Returns the head of a conversation and its messages starting at `start`.
fn from(conversation: &Conversation, start: usize) -> Conversation {
    let head = head(conversation);
    let messages = [&conversation.messages[..head], &conversation.messages[start..]].concat();
    Conversation { messages, ..conversation.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chat::Message;

    #[test]
    fn turns_begin_with_the_user_and_the_head_stays() {
        let roles = [Role::System, Role::User, Role::Assistant, Role::Tool, Role::User, Role::Assistant, Role::User];
        let messages = roles.iter().enumerate().map(|(i, role)| Message::of_text(*role, i.to_string())).collect();
        let conversation = Conversation { messages, ..Conversation::default() };
        assert_eq!(turns(&conversation), [4, 6]);
        let texts = |start| from(&conversation, start).messages.iter().map(Message::text).collect::<String>();
        assert_eq!((texts(4), texts(6)), ("0456".to_owned(), "06".to_owned()));
    }
}
