//! `/v1/responses`: one answer to a conversation, which the server may keep for the next turn.

use std::sync::Arc;

use actix_web::{HttpRequest, HttpResponse, web};

use super::convert::{self, responses::Responses};
use super::response_draft::Draft;
use super::response_events::{Streamed, error_event};
use super::response_record::Record;
use super::store::ResponseStore;
use super::stream;
use super::types::error::ErrorBody;
use super::types::responses::{DeletedResponse, ResponseEvent, ResponseObject, ResponseRequest};
use crate::http::budget::Held;
use crate::http::caller::Caller;
use crate::http::choices::{self, Ask, Choices};
use crate::http::error::{ApiError, Kind, quoted};
use crate::http::head::Head;
use crate::http::json::JsonBody;
use crate::http::later;
use crate::http::state::AppState;
use crate::http::tenant::Tenant;
use chat::{Conversation, Message, Role};
use serving::Prompt;

/// What the path of a response begins with.
const PREFIX: &str = "/v1/responses/";

/// Answer a conversation, and keep it
///
/// With `stream` the answer is a stream of named events, in the order of `ResponseEvent`'s types.
#[utoipa::path(post, path = "/v1/responses", operation_id = "createResponse", tag = "generation", request_body = ResponseRequest, responses(
    (status = 200, description = "the answer", content((ResponseObject = "application/json"), (ResponseEvent = "text/event-stream"))),
    (status = 400, description = "a field is wrong, the context is too short, or the previous response is not there", body = ErrorBody),
    (status = 404, description = "the model is unknown", body = ErrorBody),
    (status = 429, description = "the queue is full", body = ErrorBody),
    (status = 503, description = "the model is loading, or the server is shutting down", body = ErrorBody),
    (status = 504, description = "the request took longer than the server or its own `x-request-timeout` allows", body = ErrorBody)))]
pub async fn create(
    state: web::Data<AppState>,
    store: web::Data<ResponseStore>,
    http: HttpRequest,
    body: JsonBody,
) -> Result<HttpResponse, ApiError> {
    let (limits, items, owner) = (state.limits(), store.clone(), Tenant::of(&http));
    let (request, held) = body.read(move |value| convert::responses::parse(value, &limits, &|id| items.item(owner.name(), id))).await?;
    let caller = Caller::of(&http);
    if request.stream {
        let (model, journal, of_stream) = (request.model.clone(), caller.journal.clone(), state.clone());
        let begin = async move {
            let (choices, answer) = start(of_stream, store, &caller, request, held).await?;
            Ok(stream::frames(choices, Streamed::new(answer)))
        };
        return later::stream(&state, &model, journal, error_event, begin).await;
    }
    let (mut choices, mut answer) = start(state, store, &caller, request, held).await?;
    while let Some(next) = choices.next().await {
        answer.draft.take(next?.1);
    }
    Ok(json(answer.end(choices.usage().into())))
}

/// Starts the answer of a request once its model is there.
async fn start(
    state: web::Data<AppState>,
    store: web::Data<ResponseStore>,
    caller: &Caller,
    request: Responses,
    held: Arc<Held>,
) -> Result<(Choices, Record), ApiError> {
    let (tenant, journal) = (caller.tenant.clone(), caller.journal.clone());
    let model = caller.model(&state, &request.model).await?;
    let Responses { conversation, options, names, settings, .. } = request;
    let settings = settings.sampled_with(&model.sampling_of(&options));
    let messages = with_earlier(&store, tenant.name(), conversation.messages, settings.previous_response_id.as_deref())?;
    let instructions = settings.instructions.iter().map(|text| Message::of_text(Role::System, text));
    let shown = instructions.chain(messages.iter().cloned()).collect();
    let prompt = Prompt::Chat(Conversation { messages: shown, ..conversation });
    let draft = Draft::new(Head::new("resp", &model), settings, options.logprobs.is_some());
    let answer = Record { draft, messages, store, tenant: tenant.clone(), _held: held.clone() };
    let ask = Ask { model, prompts: vec![prompt], options, num_choices: 1, best_of: 1, names, held, tenant, journal };
    Ok((choices::start(state, ask).await?, answer))
}

/// The messages so far: those of the previous response, and the new ones.
fn with_earlier(store: &ResponseStore, tenant: &str, messages: Vec<Message>, previous: Option<&str>) -> Result<Vec<Message>, ApiError> {
    let Some(id) = previous else { return Ok(messages) };
    let stored = store.get(tenant, id).ok_or_else(|| {
        let message = format!("the response `{}` is not there: it was not stored, was deleted, or is too old", quoted(id));
        ApiError::new(Kind::PreviousResponse, message).with_param("previous_response_id")
    })?;
    Ok(stored.messages.iter().cloned().chain(messages).collect())
}

/// A stored response
#[utoipa::path(get, path = "/v1/responses/{id}", operation_id = "retrieveResponse", tag = "generation",
    params(("id" = String, Path, description = "the id of the response")),
    responses(
        (status = 200, description = "the response", body = ResponseObject),
        (status = 404, description = "it is not there", body = ErrorBody)))]
pub async fn retrieve(store: web::Data<ResponseStore>, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let id = id_of(&request);
    let stored = store.get(Tenant::of(&request).name(), id).ok_or_else(|| not_found(id))?;
    Ok(json(stored.response.clone()))
}

fn json(text: String) -> HttpResponse {
    HttpResponse::Ok().content_type("application/json").body(text)
}

/// Forget a stored response
#[utoipa::path(delete, path = "/v1/responses/{id}", operation_id = "deleteResponse", tag = "generation",
    params(("id" = String, Path, description = "the id of the response")),
    responses(
        (status = 200, description = "it is forgotten", body = DeletedResponse),
        (status = 404, description = "it is not there", body = ErrorBody)))]
pub async fn delete(store: web::Data<ResponseStore>, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let id = id_of(&request);
    if !store.delete(Tenant::of(&request).name(), id) {
        return Err(not_found(id));
    }
    Ok(HttpResponse::Ok().json(DeletedResponse { id: id.to_owned(), object: "response".into(), deleted: true }))
}

fn id_of(request: &HttpRequest) -> &str {
    request.path().strip_prefix(PREFIX).unwrap_or_default()
}

fn not_found(id: &str) -> ApiError {
    ApiError::new(Kind::ResponseNotFound, format!("the response `{}` is not there", quoted(id)))
}
