//! Endpoints around a response: counting its input, listing its input items, compacting and cancelling.

use actix_web::{HttpRequest, HttpResponse, web};
use serde_json::Value;

use super::conversations::page_of;
use super::convert;
use super::list::Page;
use super::response_start::{ConversationSoFar, shown};
use super::responses::{id_of, json, not_found};
use super::stores::Stores;
use super::types::error::ErrorBody;
use super::types::response_items::InputItem;
use super::types::responses::{InputTokens, ResponseObject, ResponseRequest};
use chat::Conversation;
use http::chat_advice::refusal;
use http::error::{ApiError, Kind, quoted};
use http::fetched_pictures;
use http::json::JsonBody;
use http::middleware::requested_model;
use http::state::{AppState, off_loop};
use http::tenant::Tenant;

/// Count the tokens of a response's input
///
/// The request has the form of one to `/v1/responses`. Nothing is generated.
#[utoipa::path(post, path = "/v1/responses/input_tokens", operation_id = "countInputTokens", tag = "generation",
    request_body = ResponseRequest, responses(
    (status = 200, description = "the number of tokens", body = InputTokens),
    (status = 400, description = "a field is wrong, or the previous response does not exist", body = ErrorBody),
    (status = 404, description = "the model is unknown", body = ErrorBody)))]
pub async fn input_tokens(
    state: web::Data<AppState>,
    stores: web::Data<Stores>,
    http: HttpRequest,
    body: JsonBody,
) -> Result<HttpResponse, ApiError> {
    let (limits, items, tenant) = (state.limits(), stores.clone(), Tenant::of(&http));
    let owner = tenant.clone();
    let read = move |value: &Value| convert::responses::parse(value, &limits, &|id| items.responses.item(owner.name(), id));
    let (request, held) = body.read(&convert::schemas::RESPONSES, read).await?;
    let model = requested_model(&state, &http, &request.model).await?;
    let said = ConversationSoFar::new(&state, &stores, tenant.name(), request.conversation.messages, &request.settings).await?;
    let mut conversation = shown(Conversation { messages: said.messages, ..request.conversation }, &request.settings);
    let held = fetched_pictures::fetch(&state, &model, &mut conversation, held).await?;
    let mut memory = state.bodies.share();
    let size: usize = conversation.messages.iter().map(chat::Message::num_text_bytes).sum();
    memory.set(serving::MEMORY_PER_BYTE * size.min(serving::MAX_TEXT))?;
    let count = move || {
        let _memory = (held, said.memory, memory);
        serving::tokenize_chat(&model, &conversation).map(|tokens| tokens.count)
    };
    match off_loop(count).await? {
        Ok(input_tokens) => Ok(HttpResponse::Ok().json(InputTokens { object: "response.input_tokens".into(), input_tokens })),
        Err(error) => Err(refusal(&state, &tenant, &request.names, &error).await),
    }
}

/// Compact a conversation
///
/// Not supported: the server has no shorter representation of a conversation with the same meaning.
#[utoipa::path(post, path = "/v1/responses/compact", operation_id = "compactResponse", tag = "generation", responses(
    (status = 400, description = "always", body = ErrorBody)))]
pub async fn compact() -> Result<HttpResponse, ApiError> {
    let message = "compaction is not supported: nothing here can shorten a conversation without loss; send `truncation: \"auto\"` to leave \
                   out its oldest turns, or ask the model for a summary";
    Err(ApiError::new(Kind::Unsupported, message))
}

/// List the input items of a response
///
/// Lists the items of the response's own request only, not those of earlier turns.
#[utoipa::path(get, path = "/v1/responses/{id}/input_items", operation_id = "listInputItems", tag = "generation",
    params(("id" = String, Path, description = "the id of the response"),
        ("after" = Option<String>, Query, description = "the id of the previous page's last item"),
        ("limit" = Option<u32>, Query, description = "the page size, from 1 to 100"),
        ("order" = Option<String>, Query, description = "asc or desc; the default is desc")),
    responses(
        (status = 200, description = "a page of items", body = Page<InputItem>),
        (status = 400, description = "a parameter is wrong", body = ErrorBody),
        (status = 404, description = "the response does not exist", body = ErrorBody)))]
pub async fn input_items(stores: web::Data<Stores>, http: HttpRequest) -> Result<HttpResponse, ApiError> {
    let (id, tenant) = (id_of(&http), Tenant::of(&http));
    let input = match (stores.responses.get(tenant.name(), id), stores.background.get(tenant.name(), id)) {
        (Some(stored), _) => stored.input.clone(),
        (None, Some(live)) => live.input.clone(),
        (None, None) => return Err(not_found(id)),
    };
    Ok(HttpResponse::Ok().json(page_of(&http, input).await?))
}

/// Cancel a background response
#[utoipa::path(post, path = "/v1/responses/{id}/cancel", operation_id = "cancelResponse", tag = "generation",
    params(("id" = String, Path, description = "the id of the response")),
    responses(
        (status = 200, description = "the response, which has ended", body = ResponseObject),
        (status = 400, description = "the response was not made in the background", body = ErrorBody),
        (status = 404, description = "not found", body = ErrorBody)))]
pub async fn cancel(stores: web::Data<Stores>, http: HttpRequest) -> Result<HttpResponse, ApiError> {
    let (id, tenant) = (id_of(&http), Tenant::of(&http));
    if let Some(live) = stores.background.get(tenant.name(), id) {
        live.end_now().await?;
        return Ok(json(live.response()));
    }
    let stored = stores.responses.get(tenant.name(), id).ok_or_else(|| not_found(id))?;
    match stored.background {
        Some(_) => Ok(json(stored.response.clone())),
        None => {
            let message = format!("the response `{}` was not made with `background`, so that there is nothing to cancel", quoted(id));
            Err(ApiError::field("id", message))
        }
    }
}
