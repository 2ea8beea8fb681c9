//! `/api/version`, `/api/tags`, `/api/ps` and `/api/delete`.

use std::time::SystemTime;

use actix_web::{HttpRequest, HttpResponse, web};
use time::OffsetDateTime;

use super::body::Body;
use super::convert;
use super::types::common::ErrorBody;
use super::types::models::{Details, Loaded, Running, Tag, Tags, Version};
use http::error::ApiError;
use http::rfc3339::{NEVER, of_seconds, written};
use http::server_paths::shown_path;
use http::state::{AppState, off_loop};
use http::tenant::Tenant;
use registry::{LATEST, ModelFacts, ModelState, ModelStatus};

/// The version of Ollama whose API this is. Clients use it to decide which features they may use.
const VERSION: &str = "0.13.0";

pub fn now() -> String {
    written(OffsetDateTime::now_utc())
}

fn of_time(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    of_seconds(since.as_secs())
}

/// The version of Ollama whose API this is
#[utoipa::path(get, path = "/api/version", operation_id = "ollamaVersion", tag = "ollama", responses(
    (status = 200, description = "the version", body = Version)))]
pub async fn version() -> HttpResponse {
    HttpResponse::Ok().json(Version { version: VERSION.into() })
}

/// List the models on disk, as Ollama does
#[utoipa::path(get, path = "/api/tags", operation_id = "ollamaTags", tag = "ollama", responses(
    (status = 200, description = "every model on disk that the key may use", body = Tags)))]
pub async fn tags(state: web::Data<AppState>, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let (tenant, registry) = (Tenant::of(&request), state.registry.clone());
    let models = off_loop(move || registry.on_disk(|id| tenant.may_use(&registry, id))).await?;
    let tag = |facts: ModelFacts| Tag {
        name: tagged(&facts.id),
        modified_at: of_seconds(facts.modified),
        size: facts.file.description.file_bytes,
        details: details(&facts),
        adapter: adapter(&facts),
        model: tagged(&facts.id),
        digest: facts.digest,
    };
    Ok(HttpResponse::Ok().json(Tags { models: models.into_iter().map(tag).collect() }))
}

/// List the loaded models, as Ollama does
#[utoipa::path(get, path = "/api/ps", operation_id = "ollamaPs", tag = "ollama", responses(
    (status = 200, description = "every loaded model that the key may use", body = Running)))]
pub async fn ps(state: web::Data<AppState>, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let (tenant, registry) = (Tenant::of(&request), state.registry.clone());
    let shows = move |status: &ModelStatus| status.state == ModelState::Loaded && tenant.may_use(&registry, &status.id);
    let registry = state.registry.clone();
    let loaded = move || {
        let statuses = registry.statuses().into_iter().filter(shows);
        // A model whose file was removed while it was loaded is left out.
        statuses.filter_map(|status| Some((registry.facts(&status.id).ok()?, registry.expires(&status.id), status))).collect::<Vec<_>>()
    };
    let models = off_loop(loaded).await?.into_iter().map(|(facts, expires, status)| {
        let size = status.bytes.map_or(0, |bytes| bytes.total());
        Loaded {
            name: tagged(&facts.id),
            model: tagged(&facts.id),
            size,
            details: details(&facts),
            digest: facts.digest,
            expires_at: expires.map_or_else(|| NEVER.into(), of_time),
            size_vram: if status.backend == Some("cuda") { size } else { 0 },
            context_length: status.context.unwrap_or(0),
        }
    });
    Ok(HttpResponse::Ok().json(Running { models: models.collect() }))
}

/// Delete a model, as Ollama does
///
/// The body names the model: `{"model": "NAME"}`. Models that the server was started with, and the operator's own files, are not deleted.
#[utoipa::path(delete, path = "/api/delete", operation_id = "ollamaDelete", tag = "ollama", responses(
    (status = 200, description = "its files are gone"),
    (status = 403, description = "the request may not manage models", body = ErrorBody),
    (status = 404, description = "the model is unknown", body = ErrorBody),
    (status = 409, description = "the model is in use or may not be deleted", body = ErrorBody)))]
pub async fn delete(state: web::Data<AppState>, http: HttpRequest, body: Body) -> Result<HttpResponse, ApiError> {
    Tenant::of(&http).check_admin(&http, state.keys.is_required())?;
    let (model, _held) = body.0.read(&convert::schemas::DELETES, convert::model::delete).await?;
    let registry = state.registry.clone();
    off_loop(move || registry.delete(&model)).await??;
    Ok(HttpResponse::Ok().finish())
}

/// Formats a name as Ollama lists it, always with a tag.
fn tagged(id: &str) -> String {
    let name = id.rsplit('/').next().unwrap_or(id);
    if name.contains(':') { id.to_owned() } else { format!("{id}{LATEST}") }
}

/// The name of the file or folder with the model's adapter.
pub fn adapter(facts: &ModelFacts) -> Option<String> {
    facts.adapter.as_ref().map(|adapter| shown_path(&adapter.path, false))
}

pub fn details(facts: &ModelFacts) -> Details {
    let description = &facts.file.description;
    Details {
        parent_model: facts.parent.clone().unwrap_or_default(),
        format: "gguf".into(),
        family: description.architecture.clone(),
        families: vec![description.architecture.clone()],
        parameter_size: human(description.parameters),
        quantization_level: description.quantisation.clone(),
    }
}

/// Formats a number of weights with about three digits.
fn human(count: u64) -> String {
    let number = count as f64;
    match count {
        1_000_000_000.. => format!("{:.1}B", number / 1e9),
        1_000_000.. => format!("{:.2}M", number / 1e6),
        1000.. => format!("{:.2}K", number / 1e3),
        _ => count.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_written_as_clients_read_them() {
        let due = ["a:latest", "a:7b", "hf:o/a:latest", "hf:o/a:Q4_0"];
        assert_eq!(["a", "a:7b", "hf:o/a", "hf:o/a:Q4_0"].map(tagged), due);
        assert_eq!([7, 1500, 134_515_008, 8_030_261_248].map(human), ["7", "1.50K", "134.52M", "8.0B"]);
    }
}
