//! The endpoints of `/v1/conversations`.

use std::sync::Arc;

use actix_web::{HttpRequest, HttpResponse, web};
use serde_json::{Value, json};

use super::conversation_store::{Conversation, ConversationStore, MAX_ITEMS};
use super::convert::metadata::metadata;
use super::convert::responses::check_included;
use super::convert::{response_input, schemas, stored_items};
use super::list::{Page, Query, check_known, parameters};
use super::response_store::ResponseStore;
use super::tenant_lru::{Item, too_large};
use super::types::conversations::{ConversationObject, ConversationRequest, DeletedConversation, ItemsRequest, MetadataRequest};
use super::types::error::ErrorBody;
use super::types::response_items::InputItem;
use http::error::{ApiError, Kind, quoted};
use http::fields::Fields;
use http::json::JsonBody;
use http::parse::{Meter, parse};
use http::state::off_loop;
use http::tenant::Tenant;

/// The most items that a request may add.
const MAX_NEW: usize = 20;
/// The default and the largest number of items per page.
const PAGE: (usize, usize) = (20, 100);

type Store = web::Data<ConversationStore>;
type Responses = web::Data<ResponseStore>;

/// Create a conversation
#[utoipa::path(post, path = "/v1/conversations", operation_id = "createConversation", tag = "conversations",
    request_body = ConversationRequest, responses(
    (status = 200, description = "the conversation", body = ConversationObject),
    (status = 400, description = "a field is wrong, or there is no room for the conversation", body = ErrorBody)))]
pub async fn create(store: Store, responses: Responses, http: HttpRequest, body: JsonBody) -> Result<HttpResponse, ApiError> {
    let tenant = Tenant::of(&http);
    let owner = tenant.clone();
    let read = move |value: &Value| {
        let fields = Fields::root(value)?;
        let items = if fields.get("items").is_some() { new_items(&fields, &responses, owner.name(), 0)? } else { Vec::new() };
        Ok(Conversation::new(metadata(&fields)?, &items))
    };
    let (conversation, _held) = body.read(&schemas::CONVERSATIONS, read).await?;
    let object = conversation.object();
    if !store.insert(tenant.name(), &object.id, conversation) {
        return Err(too_large());
    }
    Ok(HttpResponse::Ok().json(object))
}

/// Reads the items that a request adds, at least `least`.
fn new_items(fields: &Fields, responses: &ResponseStore, tenant: &str, least: usize) -> Result<Vec<Value>, ApiError> {
    let items = fields.required("items", fields.array("items")?)?;
    if !(least..=MAX_NEW).contains(&items.len()) {
        return Err(fields.invalid("items", format_args!("must hold {least} to {MAX_NEW} items")));
    }
    let stored = |id: &str| responses.item(tenant, id);
    response_input::of_items(items, "items", &stored)?;
    Ok(stored_items::of_items(items, &stored))
}

fn id_of(http: &HttpRequest) -> &str {
    http.match_info().query("id")
}

/// The error for a conversation that does not exist.
pub fn gone(id: &str) -> ApiError {
    let message = format!("the conversation `{}` does not exist: it was deleted, or it is too old", quoted(id));
    ApiError::new(Kind::NotFound, message).with_param("conversation")
}

fn found(store: &ConversationStore, http: &HttpRequest) -> Result<Arc<Conversation>, ApiError> {
    let id = id_of(http);
    store.get(Tenant::of(http).name(), id).ok_or_else(|| gone(id))
}

/// Describe a conversation
#[utoipa::path(get, path = "/v1/conversations/{id}", operation_id = "retrieveConversation", tag = "conversations",
    params(("id" = String, Path, description = "the id of the conversation")),
    responses(
        (status = 200, description = "the conversation", body = ConversationObject),
        (status = 404, description = "not found", body = ErrorBody)))]
pub async fn retrieve(store: Store, http: HttpRequest) -> Result<HttpResponse, ApiError> {
    Ok(HttpResponse::Ok().json(found(&store, &http)?.object()))
}

/// Change a conversation's metadata
#[utoipa::path(post, path = "/v1/conversations/{id}", operation_id = "updateConversation", tag = "conversations",
    params(("id" = String, Path, description = "the id of the conversation")), request_body = MetadataRequest,
    responses(
        (status = 200, description = "the conversation", body = ConversationObject),
        (status = 400, description = "a field is wrong", body = ErrorBody),
        (status = 404, description = "not found", body = ErrorBody)))]
pub async fn update(store: Store, http: HttpRequest, body: JsonBody) -> Result<HttpResponse, ApiError> {
    let read = |value: &Value| {
        let fields = Fields::root(value)?;
        fields.required("metadata", fields.get("metadata"))?;
        metadata(&fields)
    };
    let (metadata, _held) = body.read(&schemas::METADATA, read).await?;
    let change = |conversation: &Conversation| Ok(Conversation { metadata, ..conversation.clone() });
    let changed = store.change(Tenant::of(&http).name(), id_of(&http), change).ok_or_else(|| gone(id_of(&http)))?;
    Ok(HttpResponse::Ok().json(changed?.object()))
}

/// Delete a conversation and its items
#[utoipa::path(delete, path = "/v1/conversations/{id}", operation_id = "deleteConversation", tag = "conversations",
    params(("id" = String, Path, description = "the id of the conversation")),
    responses(
        (status = 200, description = "it is deleted", body = DeletedConversation),
        (status = 404, description = "not found", body = ErrorBody)))]
pub async fn delete(store: Store, http: HttpRequest) -> Result<HttpResponse, ApiError> {
    let id = id_of(&http);
    if !store.delete(Tenant::of(&http).name(), id) {
        return Err(gone(id));
    }
    Ok(HttpResponse::Ok().json(DeletedConversation { id: id.to_owned(), object: "conversation.deleted".into(), deleted: true }))
}

/// Returns the page of items that a request asks for. Only the items on the page are parsed.
pub async fn page_of(http: &HttpRequest, items: Vec<Item>) -> Result<Page<Value>, ApiError> {
    let query = Query::of(http, PAGE, &["include", "include[]"])?;
    check_included(query.other("include").or(query.other("include[]")))?;
    let page = query.page(items, |item| item.0.clone())?;
    // The server wrote these texts itself, so parsing them cannot fail.
    off_loop(move || page.map(|item| serde_json::from_str(&item.1).unwrap_or_default())).await
}

/// List the items of a conversation
#[utoipa::path(get, path = "/v1/conversations/{id}/items", operation_id = "listConversationItems", tag = "conversations",
    params(("id" = String, Path, description = "the id of the conversation"),
        ("after" = Option<String>, Query, description = "the id of the previous page's last item"),
        ("limit" = Option<u32>, Query, description = "the page size, from 1 to 100"),
        ("order" = Option<String>, Query, description = "asc or desc by time; the default is desc")),
    responses(
        (status = 200, description = "a page of items", body = Page<InputItem>),
        (status = 400, description = "a parameter is wrong", body = ErrorBody),
        (status = 404, description = "the conversation does not exist", body = ErrorBody)))]
pub async fn list_items(store: Store, http: HttpRequest) -> Result<HttpResponse, ApiError> {
    let conversation = found(&store, &http)?;
    Ok(HttpResponse::Ok().json(page_of(&http, conversation.items.clone()).await?))
}

/// Add items to a conversation
#[utoipa::path(post, path = "/v1/conversations/{id}/items", operation_id = "createConversationItems", tag = "conversations",
    params(("id" = String, Path, description = "the id of the conversation")), request_body = ItemsRequest,
    responses(
        (status = 200, description = "the new items", body = Page<InputItem>),
        (status = 400, description = "a field is wrong", body = ErrorBody),
        (status = 404, description = "the conversation does not exist", body = ErrorBody)))]
pub async fn create_items(store: Store, responses: Responses, http: HttpRequest, body: JsonBody) -> Result<HttpResponse, ApiError> {
    check_included(parameters(&http)?.get("include").map(String::as_str))?;
    let (tenant, id) = (Tenant::of(&http), id_of(&http));
    found(&store, &http)?;
    let owner = tenant.clone();
    let read = move |value: &Value| new_items(&Fields::root(value)?, &responses, owner.name(), 1);
    let (items, _held) = body.read(&schemas::NEW_ITEMS, read).await?;
    let full = || ApiError::field("items", format!("the conversation would have more than {MAX_ITEMS} items: begin another one"));
    let grow =
        |conversation: &Conversation| Some(conversation.with(&items)).filter(|grown| grown.items.len() <= MAX_ITEMS).ok_or_else(full);
    store.change(tenant.name(), id, grow).ok_or_else(|| gone(id))??;
    let name = |item: Option<&Value>| item.and_then(|item| item["id"].as_str()).map(str::to_owned);
    let (first_id, last_id) = (name(items.first()), name(items.last()));
    Ok(HttpResponse::Ok().json(Page { object: "list".into(), data: items, first_id, last_id, has_more: false }))
}

/// Returns the index of the item that a request names.
fn item_of(conversation: &Conversation, http: &HttpRequest) -> Result<usize, ApiError> {
    let id = http.match_info().query("item");
    let at = conversation.items.iter().position(|item| item.0 == id);
    at.ok_or_else(|| ApiError::new(Kind::NotFound, format!("the item `{}` is not in the conversation", quoted(id))).with_param("item_id"))
}

/// Retrieve an item of a conversation
#[utoipa::path(get, path = "/v1/conversations/{id}/items/{item}", operation_id = "retrieveConversationItem", tag = "conversations",
    params(("id" = String, Path, description = "the id of the conversation"), ("item" = String, Path, description = "the id of the item")),
    responses(
        (status = 200, description = "the item", body = InputItem),
        (status = 404, description = "not found", body = ErrorBody)))]
pub async fn retrieve_item(store: Store, http: HttpRequest) -> Result<HttpResponse, ApiError> {
    let given = parameters(&http)?;
    check_known(&given, &["include", "include[]"])?;
    let conversation = found(&store, &http)?;
    let item = &conversation.items[item_of(&conversation, &http)?];
    Ok(HttpResponse::Ok().content_type("application/json").body(item.1.clone()))
}

/// Remove an item from a conversation
#[utoipa::path(delete, path = "/v1/conversations/{id}/items/{item}", operation_id = "deleteConversationItem", tag = "conversations",
    params(("id" = String, Path, description = "the id of the conversation"), ("item" = String, Path, description = "the id of the item")),
    responses(
        (status = 200, description = "the conversation without the item", body = ConversationObject),
        (status = 404, description = "not found", body = ErrorBody)))]
pub async fn delete_item(store: Store, http: HttpRequest) -> Result<HttpResponse, ApiError> {
    let without = |conversation: &Conversation| {
        let at = item_of(conversation, &http)?;
        let mut changed = conversation.clone();
        changed.items.remove(at);
        Ok(changed)
    };
    let changed = store.change(Tenant::of(&http).name(), id_of(&http), without).ok_or_else(|| gone(id_of(&http)))?;
    Ok(HttpResponse::Ok().json(changed?.object()))
}

/// Converts a conversation's items to messages for the prompt. Calls `charge` with the memory of the items' trees as it grows. Takes up to
/// a second, so call this off the event loop.
pub fn earlier(conversation: &Conversation, charge: &mut dyn FnMut(usize) -> Result<(), ApiError>) -> Result<Vec<chat::Message>, ApiError> {
    let meter = Meter::new(usize::MAX, charge);
    let items = conversation.items.iter().map(|item| parse(item.1.as_bytes(), &meter)).collect::<Result<Vec<_>, _>>()?;
    // References were replaced by the items that they name when they were added.
    response_input::of_items(&items, "conversation", &any_item)
}

/// A placeholder for an item that a reference names, for checks that do not need the real one.
pub fn any_item(_: &str) -> Option<Value> {
    Some(json!({"type": "message", "role": "user", "content": ""}))
}
