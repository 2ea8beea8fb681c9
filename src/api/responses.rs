//! `/v1/responses`: one answer to a conversation, which the server may keep for the next turn.

use actix_web::{HttpMessage, HttpRequest, HttpResponse, web};
use serde_json::{Value, json};

use super::choices::{self, Ask};
use super::convert::{self, responses::Responses};
use super::error::{ApiError, Kind, quoted};
use super::head::Head;
use super::json::JsonBody;
use super::middleware::ModelLabel;
use super::response_events::Streamed;
use super::sse;
use super::state::AppState;
use super::store::Stored;
use super::types::error::ErrorBody;
use super::types::logprobs::{ChatLogprobs, ChatToken};
use super::types::responses::{
    DeletedResponse, IncompleteDetails, OutputMessage, OutputText, ResponseError, ResponseEvent, ResponseObject, ResponseRequest,
    ResponseUsage, Settings,
};
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
    let request = convert::responses::parse(&body.0, &state.limits)?;
    let model = state.model(&request.model).await?;
    http.extensions_mut().insert(ModelLabel(model.id.clone()));
    let Responses { messages, kwargs, options, settings, stream, .. } = request;
    let messages = conversation(&state, messages, settings.previous_response_id.as_deref())?;
    let instructions = settings.instructions.iter().map(|text| json!({"role": "system", "content": text}));
    let shown = Value::Array(instructions.chain(messages.iter().cloned()).collect());
    let prompt = Prompt::Chat(RenderInput { messages: shown, tools: None, add_generation_prompt: true, kwargs });
    let mut answer = Draft::new(Head::new("resp", &model), settings, messages);
    answer.has_logprobs = options.logprobs.is_some();
    let ask = Ask { model, prompts: vec![prompt], options, num_choices: 1, best_of: 1, source: "input" };
    let choices = choices::start(state.clone(), ask).await?;
    if stream {
        return Ok(sse::stream(choices, Streamed::new(answer, state)));
    }
    let (mut answers, usage) = choices.collect().await?;
    for whole in answers.drain(..) {
        answer.push(whole.shown);
        answer.finish(whole.finish_reason);
    }
    answer.usage = Some(usage);
    let response = answer.object();
    keep(&state, &answer, &response);
    Ok(HttpResponse::Ok().json(response))
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

/// Keeps an answer where that was asked for.
pub fn keep(state: &AppState, answer: &Draft, response: &ResponseObject) {
    if !answer.settings.store {
        return;
    }
    let mut messages = answer.messages.clone();
    messages.push(json!({"role": "assistant", "content": answer.text}));
    // Our own types serialise: maps have string keys.
    let response = serde_json::to_value(response).expect("a response is JSON");
    state.responses.insert(&answer.head.id, Stored { response, messages });
}

/// An answer in the making.
pub struct Draft {
    pub head: Head,
    pub settings: Settings,
    /// The conversation before the answer, without instructions.
    pub messages: Vec<Value>,
    pub message_id: String,
    pub text: String,
    pub has_logprobs: bool,
    pub logprobs: Vec<ChatToken>,
    /// `in_progress` until it has ended.
    pub status: &'static str,
    pub error: Option<ResponseError>,
    pub usage: Option<Usage>,
}

impl Draft {
    fn new(head: Head, settings: Settings, messages: Vec<Value>) -> Self {
        let message_id = format!("msg_{}", uuid::Uuid::new_v4().simple());
        let head = Head { id: head.id.replacen('-', "_", 1), ..head };
        let (text, logprobs, status) = (String::new(), Vec::new(), "in_progress");
        Self { head, settings, messages, message_id, text, has_logprobs: false, logprobs, status, error: None, usage: None }
    }

    /// Adds a piece of the text; its tokens.
    pub fn push(&mut self, piece: crate::serving::Text) -> Vec<ChatToken> {
        self.text.push_str(&piece.text);
        let tokens = if self.has_logprobs { ChatLogprobs::new(piece.tokens).content } else { Vec::new() };
        self.logprobs.extend_from_slice(&tokens);
        tokens
    }

    pub fn finish(&mut self, reason: &str) {
        self.status = if reason == "length" { "incomplete" } else { "completed" };
    }

    /// The text so far.
    pub fn part(&self) -> OutputText {
        let (text, logprobs) = (self.text.clone(), self.logprobs.clone());
        OutputText { kind: "output_text".into(), text, annotations: Vec::new(), logprobs }
    }

    pub fn message(&self, content: Vec<OutputText>) -> OutputMessage {
        let (id, status) = (self.message_id.clone(), self.status.into());
        OutputMessage { id, kind: "message".into(), status, role: "assistant".into(), content }
    }

    /// The response as it is now: its output is there once it has ended.
    pub fn object(&self) -> ResponseObject {
        let cut = self.status == "incomplete";
        ResponseObject {
            id: self.head.id.clone(),
            object: "response".into(),
            created_at: self.head.created,
            status: self.status.into(),
            error: self.error.clone(),
            incomplete_details: cut.then(|| IncompleteDetails { reason: "max_output_tokens".into() }),
            model: self.head.model.clone(),
            output: if matches!(self.status, "completed" | "incomplete") { vec![self.message(vec![self.part()])] } else { Vec::new() },
            usage: self.usage.map(ResponseUsage::from),
            settings: self.settings.clone(),
        }
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
