//! `/v1/responses`: one answer to a conversation, which the server may keep for the next turn.

use actix_web::{HttpMessage, HttpRequest, HttpResponse, web};
use serde_json::{Value, json};

use super::choices::{self, Ask};
use super::convert::{self, responses::Responses};
use super::error::{ApiError, Kind, quoted};
use super::head::Head;
use super::json::JsonBody;
use super::middleware::ModelLabel;
use super::response_draft::{Draft, value};
use super::response_events::Streamed;
use super::sse;
use super::state::AppState;
use super::store::Stored;
use super::types::error::ErrorBody;
use super::types::responses::{DeletedResponse, ResponseEvent, ResponseObject, ResponseRequest};
use super::types::usage::Usage;
use crate::serving::Prompt;
use crate::template::RenderInput;

/// Where a response's path begins.
const PREFIX: &str = "/v1/responses/";

/// Answer a conversation, and keep it
///
/// With `stream` the answer is a stream of named events, in the order of `ResponseEvent`'s types.
#[utoipa::path(post, path = "/v1/responses", operation_id = "createResponse", tag = "generation", request_body = ResponseRequest, responses(
    (status = 200, description = "the answer", content((ResponseObject = "application/json"), (ResponseEvent = "text/event-stream"))),
    (status = 400, description = "a field is wrong, the context is too short, or the previous response is not there", body = ErrorBody),
    (status = 404, description = "the model is unknown", body = ErrorBody),
    (status = 429, description = "the queue is full", body = ErrorBody),
    (status = 503, description = "the model is loading, or the server is shutting down", body = ErrorBody)))]
pub async fn create(state: web::Data<AppState>, http: HttpRequest, body: JsonBody) -> Result<HttpResponse, ApiError> {
    let request = convert::responses::parse(&body.0, &state.limits, &|id| state.responses.item(id))?;
    let model = state.model(&request.model).await?;
    http.extensions_mut().insert(ModelLabel(model.id.clone()));
    let Responses { messages, kwargs, options, settings, stream, .. } = request;
    let messages = conversation(&state, messages, settings.previous_response_id.as_deref())?;
    let instructions = settings.instructions.iter().map(|text| json!({"role": "system", "content": text}));
    let shown = Value::Array(instructions.chain(messages.iter().cloned()).collect());
    let prompt = Prompt::Chat(RenderInput { messages: shown, tools: None, add_generation_prompt: true, kwargs });
    let draft = Draft::new(Head::new("resp", &model), settings, options.logprobs.is_some());
    let mut answer = Kept { draft, messages };
    let ask = Ask { model, prompts: vec![prompt], options, num_choices: 1, best_of: 1, source: "input" };
    let mut choices = choices::start(state.clone(), ask).await?;
    if stream {
        return Ok(sse::stream(choices, Streamed::new(answer, state)));
    }
    while let Some(part) = choices.next().await {
        answer.draft.take(part?);
    }
    Ok(HttpResponse::Ok().json(answer.end(&state, choices.usage())))
}

/// The messages so far: those of the response that this one goes on from, and the new ones.
fn conversation(state: &AppState, messages: Vec<Value>, previous: Option<&str>) -> Result<Vec<Value>, ApiError> {
    let Some(id) = previous else { return Ok(messages) };
    let stored = state.responses.get(id).ok_or_else(|| {
        let message = format!("the response `{}` is not there: it was not stored, was deleted, or is too old", quoted(id));
        ApiError::new(Kind::PreviousResponse, message).with_param("previous_response_id")
    })?;
    Ok([stored.messages, messages].concat())
}

/// An answer that is kept once it has ended, where that was asked for.
pub struct Kept {
    pub draft: Draft,
    /// The conversation before it, without instructions.
    pub messages: Vec<Value>,
}

impl Kept {
    pub fn end(&mut self, state: &AppState, usage: Usage) -> ResponseObject {
        self.draft.usage = Some(usage);
        let response = self.draft.object();
        if self.draft.settings.store {
            let mut messages = std::mem::take(&mut self.messages);
            messages.push(self.draft.as_message());
            state.responses.insert(&self.draft.head.id, Stored { response: value(&response), messages });
        }
        response
    }
}

/// A stored response
#[utoipa::path(get, path = "/v1/responses/{id}", operation_id = "retrieveResponse", tag = "generation", params(("id" = String, Path, description = "a response's id")),
    responses(
        (status = 200, description = "the response", body = ResponseObject),
        (status = 404, description = "it is not there", body = ErrorBody)))]
pub async fn retrieve(state: web::Data<AppState>, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let id = id_of(&request);
    let stored = state.responses.get(id).ok_or_else(|| not_found(id))?;
    Ok(HttpResponse::Ok().json(stored.response))
}

/// Forget a stored response
#[utoipa::path(delete, path = "/v1/responses/{id}", operation_id = "deleteResponse", tag = "generation", params(("id" = String, Path, description = "a response's id")),
    responses(
        (status = 200, description = "it is forgotten", body = DeletedResponse),
        (status = 404, description = "it is not there", body = ErrorBody)))]
pub async fn delete(state: web::Data<AppState>, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let id = id_of(&request);
    if !state.responses.delete(id) {
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
