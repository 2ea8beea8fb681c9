//! The OpenAPI document and the page that shows it.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use actix_web::{HttpRequest, HttpResponse, http::header, web};
use serde_json::{Map, Value, json};
use utoipa::OpenApi;
use utoipa_swagger_ui::Config;

use super::{adapters, admin, admin_types, catalogue, health, metrics, router, server_props};
use http::dialect::Dialects;
use http::error::{ApiError, Kind};
use http::openapi::Document;
use http::routes::not_found;
use http::state::{AppState, off_loop};

#[derive(OpenApi)]
#[openapi(
    info(title = "Penstock", description = "An OpenAI-compatible API over its own engine for quantised GGUF models."),
    paths(
        health::health,
        health::v1_health,
        health::ready,
        health::ping,
        health::ping_by_post,
        health::load,
        health::version,
        server_props::props,
        server_props::slots,
        metrics::exposition,
        adapters::list,
        adapters::set,
        admin::list,
        admin::load,
        admin::unload,
        admin::pull,
        admin::events,
        catalogue::search,
        router::list,
        router::load,
        router::unload,
        router::pull,
        router::events
    ),
    components(schemas(
        health::Status,
        health::Version,
        health::Load,
        server_props::Props,
        server_props::SlotList,
        adapters::LoraAdapter,
        adapters::LoraAdapterList,
        adapters::LoraScale,
        adapters::LoraScales,
        admin_types::AdminModel,
        admin_types::AdminModelList,
        admin_types::AdminEvent,
        admin_types::LoadRequest,
        admin_types::UnloadRequest,
        admin_types::PullRequest,
        admin_types::PullProgress,
        catalogue::CatalogueModel,
        catalogue::CatalogueDevice,
        catalogue::CatalogueList,
        router::RouterModel,
        router::RouterModelList,
        router::RouterEvent,
        router::Success
    )),
    tags(
        (name = "administration", description = "Managing models. With keys, this needs one made by `penstock keys add --admin`"),
        (name = "operations", description = "For probes, dashboards and autoscalers")
    )
)]
struct Types;

/// Responses of a real server, by the names of their schemas.
const EXAMPLES: &str = include_str!("../../../openapi/examples.json");

/// The path that most readers look for. The page shows it first.
const FIRST: &str = "/v1/chat/completions";
/// The page, opened at the operation of that path.
const OPENED: &str = "/docs/#/generation/createChatCompletion";

/// The part of the OpenAPI document that describes this crate's endpoints.
pub fn document(dialects: &Dialects) -> Value {
    Document::of::<Types>(dialects.default_dialect().document().error_schema, None).json
}

/// Assembles the OpenAPI document of this build from the parts of the dialects and of this crate.
pub fn openapi_json(dialects: &Dialects) -> String {
    let mut document = document(dialects);
    let (mut paths, mut schemas, own_tags) = parts(&mut document);
    let mut tags = Vec::new();
    for dialect in dialects.iter() {
        let (its_paths, its_schemas, its_tags) = parts(&mut dialect.document().json);
        paths.extend(its_paths);
        schemas.extend(its_schemas);
        tags.extend(its_tags);
    }
    tags.extend(own_tags);
    let first = paths.remove(FIRST).map(|item| (FIRST.to_owned(), item));
    let examples: Map<String, Value> = serde_json::from_str(EXAMPLES).expect("the examples are JSON");
    for (schema, example) in examples {
        schemas.entry(schema).and_modify(|schema| schema["example"] = example);
    }
    document["paths"] = first.into_iter().chain(paths).collect();
    document["components"]["schemas"] = schemas.into_iter().collect();
    document["tags"] = tags.into();
    add_security(&mut document);
    drop_null_defaults(&mut document);
    add_body_examples(&mut document);
    bound_integers(&mut document);
    format!("{document:#}\n")
}

/// Takes the paths, schemas and tags out of a document.
fn parts(document: &mut Value) -> (BTreeMap<String, Value>, BTreeMap<String, Value>, Vec<Value>) {
    let object = |value: Value| if let Value::Object(map) = value { map.into_iter().collect() } else { BTreeMap::new() };
    let tags = if let Value::Array(tags) = document["tags"].take() { tags } else { Vec::new() };
    (object(document["paths"].take()), object(document["components"]["schemas"].take()), tags)
}

/// Describes how a request carries its key. A server without keys needs none, and by default the probes' paths need none either.
fn add_security(document: &mut Value) {
    let description = "a key made by `penstock keys add`. A server without keys needs none";
    document["components"]["securitySchemes"] = json!({
        "bearer": {"type": "http", "scheme": "bearer", "description": description},
        "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": description}
    });
    document["security"] = json!([{"bearer": []}, {"apiKey": []}, {}]);
    for path in ["/health", "/v1/health", "/ready"] {
        document["paths"][path]["get"]["security"] = json!([]);
    }
}

/// Removes null defaults, since an optional field without a default is simply absent. utoipa writes null, and Swagger UI would prefer that
/// to the example.
fn drop_null_defaults(value: &mut Value) {
    let asks_nothing = |default: &Value| default.is_null() || default.as_object().is_some_and(|map| map.values().all(Value::is_null));
    match value {
        Value::Array(items) => items.iter_mut().for_each(drop_null_defaults),
        Value::Object(map) => {
            if map.get("default").is_some_and(asks_nothing) {
                map.remove("default");
            }
            map.values_mut().for_each(drop_null_defaults);
        }
        _ => {}
    }
}

/// Copies the example of each request's type to the request's description, from where the documentation page sends it.
fn add_body_examples(document: &mut Value) {
    let schemas = document["components"]["schemas"].clone();
    let operations = document["paths"].as_object_mut().into_iter().flat_map(|paths| paths.values_mut());
    for operation in operations.filter_map(Value::as_object_mut).flat_map(|item| item.values_mut()) {
        let Some(media) = operation.pointer_mut("/requestBody/content/application~1json") else { continue };
        let name = media["schema"]["$ref"].as_str().and_then(|reference| reference.rsplit('/').next()).unwrap_or_default();
        if let Some(example) = schemas[name].get("example") {
            media["example"] = example.clone();
        }
    }
}

/// Corrects the bounds of integers. utoipa calls a `u32` an `int32`, which ends at half the range.
fn bound_integers(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(bound_integers),
        Value::Object(schema) => {
            let is_unsigned = schema.get("minimum").and_then(Value::as_i64).is_some_and(|least| least >= 0);
            if is_unsigned && schema.get("format").is_some_and(|format| format == "int32") {
                schema.remove("format");
                schema.entry("maximum").or_insert(u32::MAX.into());
            }
            schema.values_mut().for_each(bound_integers);
        }
        _ => {}
    }
}

/// The model that the examples in the source name.
const EXAMPLE_MODEL: &str = "\"smollm2:135m\"";

/// Serves `/openapi.json`. The examples name the first served model, so that the page can send them unchanged.
pub async fn openapi(dialects: web::Data<Dialects>, state: web::Data<AppState>) -> Result<HttpResponse, ApiError> {
    static TEXT: OnceLock<String> = OnceLock::new();
    let text = TEXT.get_or_init(|| openapi_json(&dialects));
    let registry = state.registry.clone();
    let first = off_loop(move || registry.offered().into_iter().next()).await?.map(|offered| Value::from(offered.info.id).to_string());
    let text = match first.filter(|id| id != EXAMPLE_MODEL) {
        Some(id) => text.replace(EXAMPLE_MODEL, &id),
        None => text.clone(),
    };
    Ok(HttpResponse::Ok().content_type("application/json").body(text))
}

/// Redirects `/docs` to the page, which opens at the operation that answers a conversation.
pub async fn redirect() -> HttpResponse {
    HttpResponse::PermanentRedirect().insert_header((header::LOCATION, OPENED)).finish()
}

/// The page's content security policy: only its own files, and requests to this server. Inline styles are allowed because the page adds
/// styles to its elements.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Serves `/docs/…`, the files of the documentation page. They are part of the binary, so the page works offline.
pub async fn page(request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let file = utoipa_swagger_ui::serve(request.match_info().query("file"), Arc::new(Config::from("/openapi.json")));
    let file = file.map_err(|error| ApiError::new(Kind::Internal, format!("the page cannot be made: {error}")))?;
    let Some(file) = file else { return Ok(not_found(request).await) };
    let mut answer = HttpResponse::Ok();
    answer.content_type(file.content_type).insert_header((header::CONTENT_SECURITY_POLICY, POLICY));
    answer.insert_header((header::X_CONTENT_TYPE_OPTIONS, "nosniff")).insert_header((header::REFERRER_POLICY, "no-referrer"));
    if file.gzpipped {
        answer.insert_header((header::CONTENT_ENCODING, "gzip"));
    }
    Ok(answer.body(file.bytes.into_owned()))
}
