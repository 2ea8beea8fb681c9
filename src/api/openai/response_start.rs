//! The start of a response: what the model sees of the conversation, and its generation.

use std::sync::Arc;

use actix_web::web;

use super::convert::responses::Responses;
use super::live::Live;
use super::response_draft::Draft;
use super::response_record::Record;
use super::shelves::Shelves;
use super::types::responses::Settings;
use super::{conversations, truncation};
use crate::http::budget::Held;
use crate::http::caller::Caller;
use crate::http::choices::{self, Ask, Choices};
use crate::http::error::{ApiError, Kind, quoted};
use crate::http::head::Head;
use crate::http::state::AppState;
use chat::{Conversation, Message, Role};
use serving::Prompt;

/// Starts the answer of a request once its model is there. `begun`: the response's head and readers, if it is made in the background.
pub async fn start(
    state: web::Data<AppState>,
    shelves: web::Data<Shelves>,
    caller: &Caller,
    request: Responses,
    held: Arc<Held>,
    begun: Option<(Head, Arc<Live>)>,
) -> Result<(Choices, Record), ApiError> {
    let (tenant, journal) = (caller.tenant.clone(), caller.journal.clone());
    let model = caller.model(&state, &request.model).await?;
    let Responses { conversation, options, names, settings, input, .. } = request;
    let settings = settings.sampled_with(&model.sampling_of(&options));
    let messages = with_earlier(&shelves, tenant.name(), conversation.messages, &settings)?;
    let conversation = shown(Conversation { messages: messages.clone(), ..conversation }, &settings);
    let conversation = match settings.truncation == "auto" {
        true => truncation::fitted(model.clone(), conversation, settings.max_output_tokens).await?,
        false => conversation,
    };
    let (head, live) = match begun {
        Some((head, live)) => (head, Some(live)),
        None => (Head::new("resp", &model), None),
    };
    let draft = Draft::new(head, settings, options.logprobs.is_some());
    let answer = Record { draft, messages, input, shelves, tenant: tenant.clone(), live, _held: held.clone() };
    let prompts = vec![Prompt::Chat(conversation)];
    let ask = Ask { model, prompts, options, num_choices: 1, best_of: 1, names, held, tenant, journal };
    Ok((choices::start(state, ask).await?, answer))
}

/// The conversation as the model sees it: with the instructions before it.
pub fn shown(conversation: Conversation, settings: &Settings) -> Conversation {
    let instructions = settings.instructions.iter().map(|text| Message::of_text(Role::System, text));
    let messages = instructions.chain(conversation.messages).collect();
    Conversation { messages, ..conversation }
}

/// The messages so far: those of the conversation or of the previous response, and the new ones.
pub fn with_earlier(shelves: &Shelves, tenant: &str, messages: Vec<Message>, settings: &Settings) -> Result<Vec<Message>, ApiError> {
    let mut all = match (&settings.conversation, settings.previous_response_id.as_deref()) {
        (Some(conversation), _) => conversations::earlier(&shelves.conversations, tenant, &conversation.id)?,
        (None, None) => return Ok(messages),
        (None, Some(id)) => {
            let gone = |why: &str| {
                let message = format!("the response `{}` {why}", quoted(id));
                ApiError::new(Kind::PreviousResponse, message).with_param("previous_response_id")
            };
            let stored = shelves.responses.get(tenant, id);
            let stored = stored.ok_or_else(|| match shelves.lives.get(tenant, id) {
                Some(_) => gone("has not ended: wait until it is completed"),
                None => gone("is not there: it was not stored, was deleted, or is too old"),
            })?;
            stored.messages.clone().ok_or_else(|| gone("failed or was cancelled, so that nothing can follow it"))?
        }
    };
    all.extend(messages);
    Ok(all)
}
