//! `/lora-adapters`: the adapters (LoRA) and their default scales, as llama.cpp's server has them.

use actix_web::{HttpRequest, HttpResponse, web};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::admin::check;
use http::error::{ApiError, Kind};
use http::json::JsonBody;
use http::lora;
use http::server_paths::{shown_path, shows_paths};
use http::state::{AppState, off_loop};
use http::tenant::Tenant;
use registry::ServedAdapter;

/// The most adapters of a list.
const MOST: usize = 1024;

/// An adapter.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct LoraAdapter {
    /// Stays the adapter's as long as the server runs.
    pub id: usize,
    /// The name under which the adapter is served: requests may have it as `model`.
    #[schema(example = "pirate")]
    pub name: String,
    /// Its file or folder. Clients that may not manage models see only the last part.
    #[schema(example = "pirate.gguf")]
    pub path: String,
    /// The factor of its changes in requests to the model itself that choose no adapters. 0 until it is set.
    pub scale: f32,
    /// The factor of its changes in requests that have its name as `model`.
    pub own_scale: f32,
    /// The model that it changes.
    #[schema(example = "smollm2:135m")]
    pub model: String,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct LoraAdapterList(Vec<LoraAdapter>);

/// The scale of an adapter, which its `id` or its `name` names.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[allow(dead_code, reason = "the type describes the body; `lora::adapters` reads it")]
pub struct LoraScale {
    pub id: Option<u32>,
    pub name: Option<String>,
    #[schema(minimum = -1000, maximum = 1000)]
    pub scale: f64,
}

/// The adapters that are not named get the scale 0.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(example = json!([]))]
#[allow(dead_code, reason = "the type describes the body; `lora::adapters` reads it")]
pub struct LoraScales(Vec<LoraScale>);

http::field_schemas! { &[];
    SCALES: LoraScales;
}

/// List the adapters, as llama.cpp's server does
#[utoipa::path(get, path = "/lora-adapters", operation_id = "listLoraAdapters", tag = "models", responses(
    (status = 200, description = "every adapter that the key may use", body = LoraAdapterList)))]
pub async fn list(state: web::Data<AppState>, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    Ok(HttpResponse::Ok().json(listed(&state, &request).await?))
}

async fn listed(state: &web::Data<AppState>, request: &HttpRequest) -> Result<LoraAdapterList, ApiError> {
    let (tenant, registry, shows) = (Tenant::of(request), state.registry.clone(), shows_paths(state, request));
    let worded = move |adapter: ServedAdapter| LoraAdapter {
        id: adapter.number,
        path: shown_path(&adapter.path, shows),
        scale: adapter.default_scale,
        own_scale: adapter.scale,
        model: adapter.base,
        name: adapter.id,
    };
    off_loop(move || {
        let adapters = registry.adapters().into_iter().filter(|adapter| tenant.may_use(&registry, &adapter.id));
        LoraAdapterList(adapters.map(worded).collect())
    })
    .await
}

/// Set the adapters of requests that choose none, as llama.cpp's server does
///
/// They apply to requests to the models that the adapters belong to, in the order of the list. Requests that name an adapter as `model`, or
/// that have `lora`, are not affected.
#[utoipa::path(post, path = "/lora-adapters", operation_id = "setLoraAdapters", tag = "administration",
    request_body = LoraScales, responses(
    (status = 200, description = "the adapters, with their new scales", body = LoraAdapterList),
    (status = 400, description = "an adapter is unknown or named twice, or a scale is wrong"),
    (status = 403, description = "the request may not manage models")))]
pub async fn set(state: web::Data<AppState>, http: HttpRequest, body: JsonBody) -> Result<HttpResponse, ApiError> {
    check(&state, &http)?;
    let read = |value: &Value| match value.as_array() {
        Some(list) => lora::adapters(list, "", MOST),
        None => Err(ApiError::new(Kind::MalformedBody, "the body must be a list such as [{\"id\": 0, \"scale\": 0.5}]")),
    };
    let (asked, _held) = body.read(&SCALES, read).await?;
    let registry = state.registry.clone();
    off_loop(move || registry.set_default_adapters(&asked)).await?.map_err(|error| ApiError { param: None, ..error.into() })?;
    Ok(HttpResponse::Ok().json(listed(&state, &http).await?))
}
