//! `/v1/load_lora_adapter` and `/v1/unload_lora_adapter`, in vLLM's words.

use std::path::PathBuf;

use actix_web::{HttpRequest, HttpResponse, web};
use serde_json::Value;

use super::convert::schemas;
use super::types::adapters::{LoadAdapterRequest, UnloadAdapterRequest};
use super::types::error::ErrorBody;
use http::error::{ApiError, Kind, quoted};
use http::fields::Fields;
use http::json::JsonBody;
use http::state::{ActiveGeneration, AppState, off_loop};
use http::tenant::Tenant;
use registry::RegistryError;

/// The longest name and path [bytes].
const MAX_NAME: usize = 200;
const MAX_PATH: usize = 4096;

/// A request to serve an adapter.
#[derive(Debug)]
struct Load {
    name: String,
    path: PathBuf,
    base: Option<String>,
    in_place: bool,
}

fn load_request(body: &Value) -> Result<Load, ApiError> {
    let fields = Fields::root(body)?;
    let path = fields.required("lora_path", fields.string("lora_path")?)?;
    if path.is_empty() || path.len() > MAX_PATH {
        return Err(fields.invalid("lora_path", format_args!("must have 1 to {MAX_PATH} bytes")));
    }
    Ok(Load {
        name: name(&fields)?,
        path: path.into(),
        base: fields.string("base_model_name")?.map(str::to_owned),
        in_place: fields.bool("load_inplace")?.unwrap_or(false),
    })
}

fn name(fields: &Fields) -> Result<String, ApiError> {
    let name = fields.required("lora_name", fields.string("lora_name")?)?;
    match name.len() {
        1..=MAX_NAME => Ok(name.to_owned()),
        _ => Err(fields.invalid("lora_name", format_args!("must have 1 to {MAX_NAME} bytes"))),
    }
}

/// Words an error by the fields of these requests.
fn worded(error: RegistryError) -> ApiError {
    let param = match &error {
        RegistryError::AdapterRefused(cause) if cause.contains("path") || cause.contains("folder") => "lora_path",
        RegistryError::AdapterFailed(_) => "lora_path",
        RegistryError::NotFound { .. } => "base_model_name",
        _ => "lora_name",
    };
    ApiError::from(error).with_param(param)
}

/// Serve an adapter, as vLLM does
///
/// The adapter is read before the response is sent, and then its name is a model. Its path must be below a folder that
/// `server.adapter_folders` lists.
#[utoipa::path(post, path = "/v1/load_lora_adapter", operation_id = "loadLoraAdapter", tag = "models", request_body = LoadAdapterRequest,
    responses(
    (status = 200, description = "the adapter is served", body = String, content_type = "text/plain"),
    (status = 400, description = "the path is not permitted, the name is taken, or the adapter cannot be used", body = ErrorBody),
    (status = 403, description = "the request may not manage models", body = ErrorBody),
    (status = 404, description = "the base model is unknown", body = ErrorBody)))]
pub async fn load(state: web::Data<AppState>, http: HttpRequest, body: JsonBody) -> Result<HttpResponse, ApiError> {
    Tenant::of(&http).check_admin(&http, state.keys.is_required())?;
    let (Load { name, path, base, in_place }, _held) = body.read(&schemas::LOAD_ADAPTERS, load_request).await?;
    let (_active, registry) = (ActiveGeneration::new(state.clone()), state.registry.clone());
    let shown = quoted(&name);
    off_loop(move || registry.add_adapter(&name, &path, base.as_deref(), in_place)).await?.map_err(worded)?;
    Ok(HttpResponse::Ok().content_type("text/plain; charset=utf-8").body(format!("Success: LoRA adapter '{shown}' added successfully.")))
}

/// Stop serving an adapter, as vLLM does
///
/// Only adapters that a request has loaded can be unloaded. Requests that have the adapter go on.
#[utoipa::path(post, path = "/v1/unload_lora_adapter", operation_id = "unloadLoraAdapter", tag = "models",
    request_body = UnloadAdapterRequest, responses(
    (status = 200, description = "the adapter is not served any more", body = String, content_type = "text/plain"),
    (status = 400, description = "the configuration has the adapter", body = ErrorBody),
    (status = 403, description = "the request may not manage models", body = ErrorBody),
    (status = 404, description = "there is no such adapter", body = ErrorBody)))]
pub async fn unload(state: web::Data<AppState>, http: HttpRequest, body: JsonBody) -> Result<HttpResponse, ApiError> {
    Tenant::of(&http).check_admin(&http, state.keys.is_required())?;
    let (name, _held) = body.read(&schemas::UNLOAD_ADAPTERS, |value| name(&Fields::root(value)?)).await?;
    let (registry, shown) = (state.registry.clone(), quoted(&name));
    let gone = off_loop(move || registry.remove_adapter(&name)).await?;
    gone.map_err(|error| match error {
        RegistryError::NotFound { .. } => {
            ApiError::new(Kind::ModelNotFound, format!("the adapter `{shown}` does not exist")).with_param("lora_name")
        }
        other => worded(other),
    })?;
    Ok(HttpResponse::Ok().content_type("text/plain; charset=utf-8").body(format!("Success: LoRA adapter '{shown}' removed successfully.")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn requests_name_an_adapter_and_its_path() {
        let Load { name, path, base, in_place } = load_request(&json!({"lora_name": "a", "lora_path": "b", "load_inplace": true})).unwrap();
        assert_eq!((name.as_str(), path.to_str(), base, in_place), ("a", Some("b"), None, true));
        for (wrong, param) in [
            (json!({"lora_path": "b"}), "lora_name"),
            (json!({"lora_name": "a"}), "lora_path"),
            (json!({"lora_name": "", "lora_path": "b"}), "lora_name"),
            (json!({"lora_name": "a", "lora_path": ""}), "lora_path"),
            (json!({"lora_name": "a", "lora_path": "b", "load_inplace": "yes"}), "load_inplace"),
        ] {
            assert_eq!(load_request(&wrong).unwrap_err().param.as_deref(), Some(param), "{wrong}");
        }
    }
}
