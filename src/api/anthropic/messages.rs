//! `POST /v1/messages`.

use std::sync::Arc;

use actix_web::{HttpRequest, HttpResponse, web};

use super::convert::names::MESSAGES;
use super::convert::request::{self, Messages};
use super::convert::schemas;
use super::edits;
use super::error;
use super::message_builder::MessageBuilder;
use super::stream::MessageEvents;
use super::types::answer::MessagesAnswer;
use super::types::error::MessagesErrorBody;
use super::types::event::MessagesEvent;
use super::types::request::MessagesRequest;
use http::caller::Caller;
use http::client_stream::{self, ClientStream};
use http::deferred_stream;
use http::error::ApiError;
use http::fetched_pictures;
use http::json::JsonBody;
use http::memory_budget::MemoryPermit;
use http::response_frames::frames;
use http::state::AppState;
use serving::{Prompt, ResponseRequest};

/// Answer a conversation, in Anthropic's format
///
/// With `stream`, the response is a stream of named events, in the order of `MessagesEvent`'s types. It ends with `message_stop`.
#[utoipa::path(post, path = "/v1/messages", operation_id = "createMessage", tag = "messages",
    request_body = MessagesRequest, responses(
    (status = 200, description = "the answer", content((MessagesAnswer = "application/json"), (MessagesEvent = "text/event-stream"))),
    (status = 400, description = "a field is wrong, or the context is too short", body = MessagesErrorBody),
    (status = 404, description = "the model is unknown", body = MessagesErrorBody),
    (status = 413, description = "the body is too large", body = MessagesErrorBody),
    (status = 504, description = "the request took longer than the server or its own `x-request-timeout` allows", body = MessagesErrorBody),
    (status = 529, description = "the queue is full, the model is loading, or the server is shutting down", body = MessagesErrorBody)))]
pub async fn create(state: web::Data<AppState>, http: HttpRequest, body: JsonBody) -> Result<HttpResponse, ApiError> {
    let limits = state.limits();
    let interleaved = request::interleaves(&http);
    let (request, held) = body.read(&schemas::MESSAGES, move |value| request::parse(value, &limits, interleaved)).await?;
    let caller = Caller::of(&http);
    if request.stream {
        let (model, journal, stream_state) = (request.prompt.model.clone(), caller.journal.clone(), state.clone());
        let id = journal.id();
        let begin = async move {
            let (response, draft) = start(stream_state, &caller, request, held).await?;
            Ok(frames(response, MessageEvents::new(draft, caller.journal.ledger(), caller.journal.id())))
        };
        return deferred_stream::stream(&state, &model, journal, move |error| error::event(error, Some(&id)), begin).await;
    }
    let (response, draft) = start(state, &caller, request, held).await?;
    let answer = response.collect().await?.into_iter().next().unwrap_or_default();
    Ok(HttpResponse::Ok().json(draft.message(answer, caller.journal.ledger().counts())))
}

/// Starts a request's answer, once its model is loaded.
async fn start(
    state: web::Data<AppState>,
    caller: &Caller,
    request: Messages,
    held: Arc<MemoryPermit>,
) -> Result<(ClientStream, MessageBuilder), ApiError> {
    let model = caller.model(&state, &request.prompt.model).await?;
    let Messages { mut prompt, max_tokens, mut options, .. } = request;
    let held = fetched_pictures::fetch(&state, &model, &mut prompt.conversation, held).await?;
    options.thinking_budget = prompt.thinking.and_then(|thinking| thinking.budget);
    let shown = prompt.thinking.map(|thinking| thinking.shown).unwrap_or_default();
    let id = format!("msg_{}", uuid::Uuid::new_v4().simple());
    let draft = MessageBuilder::new(id, model.id.clone(), shown, options.stop.clone(), max_tokens);
    let conversation = edits::edited(&state, &model, prompt).await?;
    let asked = ResponseRequest::new(model, Prompt::Chat(conversation), options);
    Ok((client_stream::start(state, caller, asked, MESSAGES, held).await?, draft))
}
