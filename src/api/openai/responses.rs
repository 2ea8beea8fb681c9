//! `/v1/responses`: an answer to a conversation, which the server may store for the next turn.

use actix_web::{HttpRequest, HttpResponse, web};
use serde_json::Value;

use super::background_task;
use super::convert::{self, responses::check_included};
use super::list::{check_known, flag, number, parameters};
use super::response_events::{ResponseEvents, error_event};
use super::response_start::start;
use super::stores::Stores;
use super::types::error::ErrorBody;
use super::types::responses::{DeletedResponse, ResponseEvent, ResponseObject, ResponseRequest};
use http::caller::Caller;
use http::deferred_stream;
use http::error::{ApiError, Kind, quoted};
use http::json::JsonBody;
use http::response_frames::frames;
use http::sse::FRAMING;
use http::state::AppState;
use http::stream::respond;
use http::tenant::Tenant;

/// Answer a conversation and store the answer
///
/// With `stream`, the response is a stream of named events, in the order of `ResponseEvent`'s types. With `background`, the answer comes at
/// once with the status `queued`, and the client polls the response until it has ended.
#[utoipa::path(post, path = "/v1/responses", operation_id = "createResponse", tag = "generation", request_body = ResponseRequest, responses(
    (status = 200, description = "the answer", content((ResponseObject = "application/json"), (ResponseEvent = "text/event-stream"))),
    (status = 400, description = "a field is wrong, the context is too short, or the previous response does not exist", body = ErrorBody),
    (status = 404, description = "the model is unknown", body = ErrorBody),
    (status = 429, description = "the queue is full", body = ErrorBody),
    (status = 503, description = "the model is loading, or the server is shutting down", body = ErrorBody),
    (status = 504, description = "the request took longer than the server or its own `x-request-timeout` allows", body = ErrorBody)))]
pub async fn create(
    state: web::Data<AppState>,
    stores: web::Data<Stores>,
    http: HttpRequest,
    body: JsonBody,
) -> Result<HttpResponse, ApiError> {
    let (limits, items, owner) = (state.limits(), stores.clone(), Tenant::of(&http));
    let read = move |value: &Value| convert::responses::parse(value, &limits, &|id| items.responses.item(owner.name(), id));
    let (request, held) = body.read(&convert::schemas::RESPONSES, read).await?;
    let caller = Caller::of(&http);
    if request.settings.background {
        return background_task::begin(state, stores, caller, request, held);
    }
    if request.stream {
        let (model, journal, stream_state) = (request.model.clone(), caller.journal.clone(), state.clone());
        let obfuscates = request.obfuscates;
        let begin = async move {
            let (response, answer) = start(stream_state, stores, &caller, request, held, None).await?;
            let events = ResponseEvents::new(answer, caller.journal.ledger(), obfuscates, 0);
            Ok(frames(response, events))
        };
        return deferred_stream::stream(&state, &model, journal, error_event, begin).await;
    }
    let (response, mut answer) = start(state, stores, &caller, request, held, None).await?;
    for said in response.collect().await? {
        said.pieces.into_iter().for_each(|piece| drop(answer.draft.add(piece)));
        answer.draft.finish(said.reason);
    }
    Ok(json(answer.end(caller.journal.ledger().counts().into())))
}

/// Retrieve a stored or background response
///
/// With `stream`, returns the events of a background response.
#[utoipa::path(get, path = "/v1/responses/{id}", operation_id = "retrieveResponse", tag = "generation",
    params(("id" = String, Path, description = "the id of the response"),
        ("stream" = Option<bool>, Query, description = "send the events of a response that was made with `background`"),
        ("starting_after" = Option<u64>, Query, description = "the number of the last event that the client has. Only with `stream`")),
    responses(
        (status = 200, description = "the response", content((ResponseObject = "application/json"), (ResponseEvent = "text/event-stream"))),
        (status = 400, description = "a parameter is wrong", body = ErrorBody),
        (status = 404, description = "not found", body = ErrorBody)))]
pub async fn retrieve(state: web::Data<AppState>, stores: web::Data<Stores>, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let (id, tenant, given) = (id_of(&request), Tenant::of(&request), parameters(&request)?);
    check_known(&given, &["stream", "starting_after", "include", "include[]", "include_obfuscation"])?;
    check_included(given.get("include").or(given.get("include[]")).map(String::as_str))?;
    let stream = given.get("stream").map(|value| flag("stream", value)).transpose()?.unwrap_or(false);
    let after = given.get("starting_after").map(|value| number("starting_after", value, 0..=u64::MAX - 1)).transpose()?;
    given.get("include_obfuscation").map(|value| flag("include_obfuscation", value)).transpose()?;
    if after.is_some() && !stream {
        return Err(ApiError::field("starting_after", "`starting_after` is only allowed with `stream`"));
    }
    let (live, stored) = (stores.background.get(tenant.name(), id), stores.responses.get(tenant.name(), id));
    let live = live.or_else(|| stored.as_ref().and_then(|stored| stored.background.clone()));
    match (stream, live, stored) {
        (true, Some(live), _) => Ok(respond(FRAMING, live.follow(after.map_or(0, |after| after + 1))?, state.keep_alive)),
        (true, None, Some(_)) => {
            let message = format!("the response `{}` was not made with `background`, so that its events are not kept", quoted(id));
            Err(ApiError::field("stream", message))
        }
        (false, _, Some(stored)) => Ok(json(stored.response.clone())),
        (false, Some(live), None) => Ok(json(live.response())),
        (_, None, None) => Err(not_found(id)),
    }
}

/// Makes a response from a body that is JSON already.
pub fn json(text: String) -> HttpResponse {
    HttpResponse::Ok().content_type("application/json").body(text)
}

/// Delete a stored response
///
/// A background response that has not ended is cancelled.
#[utoipa::path(delete, path = "/v1/responses/{id}", operation_id = "deleteResponse", tag = "generation",
    params(("id" = String, Path, description = "the id of the response")),
    responses(
        (status = 200, description = "it is deleted", body = DeletedResponse),
        (status = 404, description = "not found", body = ErrorBody)))]
pub async fn delete(stores: web::Data<Stores>, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let (id, tenant) = (id_of(&request), Tenant::of(&request));
    if let Some(live) = stores.background.get(tenant.name(), id) {
        live.end_now().await?;
    }
    if !stores.responses.delete(tenant.name(), id) {
        return Err(not_found(id));
    }
    Ok(HttpResponse::Ok().json(DeletedResponse { id: id.to_owned(), object: "response".into(), deleted: true }))
}

/// Returns the response id in a request's path.
pub fn id_of(request: &HttpRequest) -> &str {
    request.match_info().query("id")
}

pub fn not_found(id: &str) -> ApiError {
    ApiError::new(Kind::ResponseNotFound, format!("the response `{}` does not exist", quoted(id)))
}
