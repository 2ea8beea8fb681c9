//! `POST /v1/messages/count_tokens`

use actix_web::{HttpRequest, HttpResponse, web};

use super::convert::names::MESSAGES;
use super::convert::{request, schemas};
use super::edits;
use super::types::answer::MessagesCount;
use super::types::error::MessagesErrorBody;
use super::types::request::MessagesPrompt;
use chat::Message;
use http::chat_advice::refusal;
use http::error::ApiError;
use http::fetched_pictures;
use http::json::JsonBody;
use http::middleware::requested_model;
use http::state::{AppState, off_loop};
use http::tenant::Tenant;
use serving::{MAX_TEXT, MEMORY_PER_BYTE, tokenize_chat};

/// Count the tokens of a prompt
///
/// Counts any prompt, even one that the model could not answer: it may be too long, and its tools are not compiled.
#[utoipa::path(post, path = "/v1/messages/count_tokens", operation_id = "countMessageTokens", tag = "messages",
    request_body = MessagesPrompt, responses(
    (status = 200, description = "the tokens of the prompt, which may be more than the context holds", body = MessagesCount),
    (status = 400, description = "a field is wrong", body = MessagesErrorBody),
    (status = 404, description = "the model is unknown", body = MessagesErrorBody)))]
pub async fn count(state: web::Data<AppState>, http: HttpRequest, body: JsonBody) -> Result<HttpResponse, ApiError> {
    let limits = state.limits();
    let interleaved = request::interleaves(&http);
    let (mut prompt, held) = body.read(&schemas::MESSAGES, move |value| request::parse_count(value, &limits, interleaved)).await?;
    let model = requested_model(&state, &http, &prompt.model).await?;
    let held = fetched_pictures::fetch(&state, &model, &mut prompt.conversation, held).await?;
    let conversation = edits::edited(&state, &model, prompt).await?;
    let size: usize = conversation.messages.iter().map(Message::num_text_bytes).sum();
    let mut memory = state.bodies.share();
    memory.set(MEMORY_PER_BYTE * size.min(MAX_TEXT))?;
    let work = move || {
        let _memory = (held, memory);
        tokenize_chat(&model, &conversation).map(|tokens| MessagesCount { input_tokens: tokens.count })
    };
    match off_loop(work).await? {
        Ok(count) => Ok(HttpResponse::Ok().json(count)),
        Err(error) => Err(refusal(&state, &Tenant::of(&http), &MESSAGES, &error).await),
    }
}
