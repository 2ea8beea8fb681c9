//! The endpoints of stored chat completions.

use std::sync::Arc;

use actix_web::{HttpRequest, HttpResponse, web};
use serde_json::Value;

use super::chat_store::StoredChat;
use super::convert::metadata::metadata;
use super::convert::schemas::METADATA;
use super::list::{Page, Query};
use super::stores::Stores;
use super::types::chat::{ChatCompletion, Message};
use super::types::conversations::MetadataRequest;
use super::types::error::ErrorBody;
use super::types::responses::DeletedResponse;
use http::error::{ApiError, Kind, quoted};
use http::fields::Fields;
use http::json::JsonBody;
use http::state::off_loop;
use http::tenant::Tenant;

/// The default and the largest number of entries per page.
const PAGE: (usize, usize) = (20, 100);

fn id_of(http: &HttpRequest) -> &str {
    http.match_info().query("id")
}

fn gone(id: &str) -> ApiError {
    let message = format!("the chat completion `{}` does not exist: it was not stored, was deleted, or is too old", quoted(id));
    ApiError::new(Kind::NotFound, message).with_param("id")
}

fn found(stores: &Stores, http: &HttpRequest) -> Result<Arc<StoredChat>, ApiError> {
    stores.chats.get(Tenant::of(http).name(), id_of(http)).ok_or_else(|| gone(id_of(http)))
}

/// List the stored chat completions
#[utoipa::path(get, path = "/v1/chat/completions", operation_id = "listChatCompletions", tag = "generation",
    params(("after" = Option<String>, Query, description = "the id of the previous page's last answer"),
        ("limit" = Option<u32>, Query, description = "the page size, from 1 to 100"),
        ("order" = Option<String>, Query, description = "asc or desc by time; the default is asc"),
        ("model" = Option<String>, Query, description = "only answers of this model")),
    responses(
        (status = 200, description = "a page of answers, filtered by `metadata[KEY]=VALUE` in the query", body = Page<ChatCompletion>),
        (status = 400, description = "a parameter is wrong", body = ErrorBody)))]
pub async fn list(stores: web::Data<Stores>, http: HttpRequest) -> Result<HttpResponse, ApiError> {
    let query = Query::of(&http, PAGE, &["model", "metadata["])?.ascending_unless_asked(&http);
    let wanted: Vec<(&str, &str)> = query.others().iter().filter_map(|(name, value)| Some((key_of(name)?, value.as_str()))).collect();
    let is_wanted = |chat: &Arc<StoredChat>| {
        query.other("model").is_none_or(|model| chat.model == model)
            && wanted.iter().all(|(key, value)| chat.metadata.get(*key).and_then(Value::as_str) == Some(*value))
    };
    let chats = stores.chats.list(Tenant::of(&http).name()).into_iter().filter(is_wanted).collect();
    let page = query.page(chats, |chat: &Arc<StoredChat>| chat.id.clone())?;
    Ok(HttpResponse::Ok().json(off_loop(move || page.map(|chat| chat.object())).await?))
}

/// Returns the key in `metadata[key]`.
fn key_of(name: &str) -> Option<&str> {
    name.strip_prefix("metadata[")?.strip_suffix(']')
}

/// Retrieve a stored chat completion
#[utoipa::path(get, path = "/v1/chat/completions/{id}", operation_id = "retrieveChatCompletion", tag = "generation",
    params(("id" = String, Path, description = "the id of the answer")),
    responses(
        (status = 200, description = "the answer, with its metadata", body = ChatCompletion),
        (status = 404, description = "not found", body = ErrorBody)))]
pub async fn retrieve(stores: web::Data<Stores>, http: HttpRequest) -> Result<HttpResponse, ApiError> {
    Ok(HttpResponse::Ok().json(found(&stores, &http)?.object()))
}

/// Change a stored chat completion's metadata
#[utoipa::path(post, path = "/v1/chat/completions/{id}", operation_id = "updateChatCompletion", tag = "generation",
    params(("id" = String, Path, description = "the id of the answer")), request_body = MetadataRequest,
    responses(
        (status = 200, description = "the answer, with its metadata", body = ChatCompletion),
        (status = 400, description = "a field is wrong", body = ErrorBody),
        (status = 404, description = "not found", body = ErrorBody)))]
pub async fn update(stores: web::Data<Stores>, http: HttpRequest, body: JsonBody) -> Result<HttpResponse, ApiError> {
    let read = |value: &Value| {
        let fields = Fields::root(value)?;
        fields.required("metadata", fields.get("metadata"))?;
        metadata(&fields)
    };
    let (metadata, _held) = body.read(&METADATA, read).await?;
    let change = |chat: &StoredChat| Ok(chat.with_metadata(metadata));
    let changed = stores.chats.change(Tenant::of(&http).name(), id_of(&http), change).ok_or_else(|| gone(id_of(&http)))?;
    Ok(HttpResponse::Ok().json(changed?.object()))
}

/// Delete a stored chat completion
#[utoipa::path(delete, path = "/v1/chat/completions/{id}", operation_id = "deleteChatCompletion", tag = "generation",
    params(("id" = String, Path, description = "the id of the answer")),
    responses(
        (status = 200, description = "it is deleted", body = DeletedResponse),
        (status = 404, description = "not found", body = ErrorBody)))]
pub async fn delete(stores: web::Data<Stores>, http: HttpRequest) -> Result<HttpResponse, ApiError> {
    let id = id_of(&http);
    if !stores.chats.delete(Tenant::of(&http).name(), id) {
        return Err(gone(id));
    }
    let object = "chat.completion.deleted".into();
    Ok(HttpResponse::Ok().json(DeletedResponse { id: id.to_owned(), object, deleted: true }))
}

/// List the messages of a stored chat completion
#[utoipa::path(get, path = "/v1/chat/completions/{id}/messages", operation_id = "listChatMessages", tag = "generation",
    params(("id" = String, Path, description = "the id of the answer"),
        ("after" = Option<String>, Query, description = "the id of the previous page's last message"),
        ("limit" = Option<u32>, Query, description = "the page size, from 1 to 100"),
        ("order" = Option<String>, Query, description = "asc or desc; the default is asc")),
    responses(
        (status = 200, description = "a page of the request's messages", body = Page<Message>),
        (status = 400, description = "a parameter is wrong", body = ErrorBody),
        (status = 404, description = "not found", body = ErrorBody)))]
pub async fn messages(stores: web::Data<Stores>, http: HttpRequest) -> Result<HttpResponse, ApiError> {
    let query = Query::of(&http, PAGE, &[])?.ascending_unless_asked(&http);
    let chat = found(&stores, &http)?;
    let page = query.page(chat.message_ids(), String::clone)?;
    Ok(HttpResponse::Ok().json(off_loop(move || page.map(|id| chat.message(&id))).await?))
}
