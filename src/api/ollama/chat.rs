//! `POST /api/chat`

use std::time::Instant;

use actix_web::{HttpRequest, HttpResponse, web};

use super::answer_part::AnswerPart;
use super::body::Body;
use super::convert::{self, common::Common};
use super::load_requests::load_or_unload;
use super::models::now;
use super::names;
use super::start::{self, answer, set_effort};
use super::stream::AnswerFormat;
use super::timing::Timings;
use super::types::chat::{AnswerMessage, Chat, ChatRequest};
use super::types::common::{End, ErrorBody};
use http::caller::Caller;
use http::client_stream;
use http::error::ApiError;
use http::state::AppState;
use serving::{Prompt, ResponseRequest};

/// Answer a conversation, as Ollama does
///
/// The response is a stream of `OllamaChat` objects, one per line, unless `stream` is false. A request without messages loads the model.
#[utoipa::path(post, path = "/api/chat", operation_id = "ollamaChat", tag = "ollama", request_body = ChatRequest, responses(
    (status = 200, description = "the answer", content((Chat = "application/json"), (Chat = "application/x-ndjson"))),
    (status = 400, description = "a field is wrong, or the context is too short", body = ErrorBody),
    (status = 404, description = "the model is unknown", body = ErrorBody),
    (status = 429, description = "the queue is full", body = ErrorBody),
    (status = 503, description = "the model cannot be loaded now, or the server is shutting down", body = ErrorBody)))]
pub async fn create(state: web::Data<AppState>, http: HttpRequest, body: Body) -> Result<HttpResponse, ApiError> {
    let (began, limits) = (Instant::now(), state.limits());
    let (request, held) = body.0.read(&convert::schemas::CHATS, move |value| convert::chat::parse(value, &limits)).await?;
    let convert::chat::Chat { common, mut conversation } = request;
    let mut words = ChatFormat { model: common.model.clone(), has_logprobs: common.settings.options.logprobs.is_some() };
    if conversation.messages.is_empty() {
        let end = load_or_unload(&state, &http, &common, began).await?;
        return Ok(HttpResponse::Ok().json(words.object(AnswerPart::default(), Some(end))));
    }
    let (caller, Common { model: name, settings, think, keep, stream }) = (Caller::of(&http), common);
    let model = start::model(&state, &http, &caller, &name, keep).await?;
    settings.log_differences(&model);
    set_effort(&model, think, &mut conversation)?;
    let clock = Timings::new(began, caller.journal.clone());
    let asked = ResponseRequest::new(model, Prompt::Chat(conversation), settings.options);
    let response = client_stream::start(state.clone(), &caller, asked, names::CHAT, held).await?;
    answer(&state, response, clock, words, stream).await
}

struct ChatFormat {
    /// The model's name as the request gives it.
    model: String,
    has_logprobs: bool,
}

impl AnswerFormat for ChatFormat {
    type Object = Chat;

    fn hear(&mut self, _: &AnswerPart) {}

    async fn finish(&mut self) {}

    fn object(&mut self, said: AnswerPart, end: Option<End>) -> Chat {
        let AnswerPart { text, thinking, calls, logprobs } = said;
        let thinking = Some(thinking).filter(|text| !text.is_empty());
        Chat {
            model: self.model.clone(),
            created_at: now(),
            message: AnswerMessage { role: "assistant".into(), content: text, thinking, tool_calls: calls },
            done: end.is_some(),
            logprobs: Some(logprobs).filter(|logprobs| self.has_logprobs && !logprobs.is_empty()),
            end: end.unwrap_or_default(),
        }
    }
}
