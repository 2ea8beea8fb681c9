//! `POST /api/show`

use actix_web::{HttpRequest, HttpResponse, web};
use serde_json::Value;

use super::body::Body;
use super::convert;
use super::models::details;
use super::types::common::ErrorBody;
use super::types::models::{Show, ShowRequest};
use http::error::ApiError;
use http::rfc3339::of_seconds;
use http::state::{AppState, off_loop};
use http::tenant::Tenant;
use logits::SamplingChoice;
use registry::{ModelFacts, RegistryError};
use serving::{Capabilities, Metadata};

/// Describe a model, as Ollama does
///
/// This does not load the model.
#[utoipa::path(post, path = "/api/show", operation_id = "ollamaShow", tag = "ollama", request_body = ShowRequest, responses(
    (status = 200, description = "the description from the model's file", body = Show),
    (status = 404, description = "the model is unknown", body = ErrorBody),
    (status = 503, description = "the model's file cannot be read", body = ErrorBody)))]
pub async fn show(state: web::Data<AppState>, http: HttpRequest, body: Body) -> Result<HttpResponse, ApiError> {
    let (request, _held) = body.0.read(&convert::schemas::SHOWS, convert::model::show).await?;
    Tenant::of(&http).check_model(&state.registry, &request.model)?;
    let registry = state.registry.clone();
    let describe = move || {
        let facts = registry.facts(&request.model)?;
        let failed = |error: anyhow::Error| {
            tracing::warn!("the model `{}` could not be described: {}", facts.id, format!("{error:#}").escape_debug());
            RegistryError::LoadFailed { id: facts.id.clone(), cause: String::new() }
        };
        let abilities = facts.file.abilities().map_err(failed)?;
        let metadata = match request.verbose {
            true => facts.file.whole_metadata().map_err(failed)?,
            false => facts.file.description.metadata.clone(),
        };
        // Verbose metadata is large, so it is serialised here and not on the event loop.
        let mut shown = worded(&facts, abilities);
        shown.model_info.extend(metadata);
        bound_context(&mut shown.model_info, &facts.file.description.architecture, facts.context);
        Ok::<_, RegistryError>(serde_json::to_vec(&shown).expect("a description is JSON"))
    };
    let text = off_loop(describe).await??;
    Ok(HttpResponse::Ok().content_type("application/json").body(text))
}

/// Lowers the reported context length to the one that the model is served with, if known, because clients ask for as much as is reported.
fn bound_context(info: &mut Metadata, architecture: &str, served: Option<usize>) {
    let trained = info.get_mut(&format!("{architecture}.context_length"));
    if let (Some(trained), Some(served)) = (trained, served.map(|served| served as u64))
        && trained.as_u64().is_some_and(|most| most > served)
    {
        *trained = served.into();
    }
}

fn worded(facts: &ModelFacts, abilities: Capabilities) -> Show {
    let description = &facts.file.description;
    let named = [
        ("completion", abilities.completion),
        ("tools", abilities.tools),
        ("thinking", abilities.thinking),
        ("embedding", abilities.embedding),
        ("insert", abilities.insert),
    ];
    let values = parameters(&facts.sampling);
    let lines = |word: &str| values.iter().map(|(name, value)| format!("{word}{name:<30} {value}")).collect::<Vec<_>>();
    let system = facts.system.iter().map(|text| format!("SYSTEM \"\"\"{text}\"\"\""));
    let modelfile: Vec<String> = [format!("FROM {}", facts.id)].into_iter().chain(lines("PARAMETER ")).chain(system).collect();
    Show {
        license: description.metadata.get("general.license").and_then(Value::as_str).map(str::to_owned),
        modelfile: modelfile.join("\n"),
        parameters: lines("").join("\n"),
        template: description.template.clone().unwrap_or_default(),
        system: facts.system.clone(),
        details: details(facts),
        model_info: [("general.parameter_count".to_owned(), description.parameters.into())].into_iter().collect(),
        capabilities: named.into_iter().filter(|(_, has)| *has).map(|(name, _)| name.to_owned()).collect(),
        modified_at: of_seconds(facts.modified),
    }
}

/// The model's sampling settings, under Ollama's names.
fn parameters(sampling: &SamplingChoice) -> Vec<(&'static str, String)> {
    let text = |value: Option<f32>| value.map(|value| value.to_string());
    [
        ("temperature", text(sampling.temperature)),
        ("top_k", sampling.top_k.map(|k| k.to_string())),
        ("top_p", text(sampling.top_p)),
        ("min_p", text(sampling.min_p)),
        ("repeat_penalty", text(sampling.repetition_penalty)),
        ("presence_penalty", text(sampling.presence_penalty)),
        ("frequency_penalty", text(sampling.frequency_penalty)),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name, value?)))
    .collect()
}
