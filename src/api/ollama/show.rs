//! `POST /api/show`

use actix_web::{HttpRequest, HttpResponse, web};
use serde_json::{Map, Value};

use super::body::Body;
use super::convert;
use super::models::{adapter, details};
use super::types::common::ErrorBody;
use super::types::make::ExampleMessage;
use super::types::models::{Show, ShowRequest, Tensor};
use http::error::ApiError;
use http::rfc3339::of_seconds;
use http::state::{AppState, off_loop};
use http::tenant::Tenant;
use logits::SamplingChoice;
use registry::ModelFacts;
use serving::{Capabilities, Metadata, TensorFacts};

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
    let (registry, model, verbose) = (state.registry.clone(), request.model, request.verbose);
    let describe = move |facts: &ModelFacts| {
        let abilities = facts.abilities()?;
        let metadata = match verbose {
            true => facts.file.whole_metadata()?,
            false => facts.file.description.metadata.clone(),
        };
        // Verbose metadata is large, so it is serialised here and not on the event loop.
        let mut shown = worded(facts, abilities);
        shown.model_info.extend(metadata);
        if verbose {
            let tensor = |facts: TensorFacts| Tensor { name: facts.name, kind: facts.kind.to_owned(), shape: facts.dims };
            shown.tensors = Some(facts.file.tensors()?.into_iter().map(tensor).collect());
        }
        bound_context(&mut shown.model_info, &facts.file.description.architecture, facts.context);
        Ok(serde_json::to_vec(&shown)?)
    };
    let text = off_loop(move || registry.read(&model, describe)).await??;
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
        ("vision", abilities.vision),
    ];
    let made = facts.made.as_deref();
    let of_file = description.metadata.get("general.license").and_then(Value::as_str).map(str::to_owned);
    let given = made.and_then(|made| made.template.as_ref()).map(|template| template.source.clone());
    let license = made.filter(|made| !made.licences.is_empty()).map(|made| made.licences.join("\n"));
    let example = |message: &config::ExampleMessage| ExampleMessage { role: message.role.name().into(), content: message.content.clone() };
    Show {
        license: license.or(of_file),
        modelfile: modelfile(facts, given.as_deref()),
        parameters: lines("", facts),
        template: given.or_else(|| description.template.clone()).unwrap_or_default(),
        system: facts.system.clone(),
        messages: made.into_iter().flat_map(|made| &made.messages).map(example).collect(),
        details: details(facts),
        adapter: adapter(facts),
        model_info: [("general.parameter_count".to_owned(), description.parameters.into())].into_iter().collect(),
        tensors: None,
        capabilities: named.into_iter().filter(|(_, has)| *has).map(|(name, _)| name.to_owned()).collect(),
        modified_at: of_seconds(facts.modified),
    }
}

/// A Modelfile that makes the same model.
fn modelfile(facts: &ModelFacts, template: Option<&str>) -> String {
    let quoted = |word: &str, text: &str| format!("{word} \"\"\"{text}\"\"\"");
    let mut parts = vec![format!("FROM {}", facts.parent.as_deref().unwrap_or(&facts.id))];
    parts.extend(adapter(facts).map(|file| format!("ADAPTER ./{file}")));
    parts.extend(template.map(|text| quoted("TEMPLATE", text)));
    parts.extend(Some(lines("PARAMETER ", facts)).filter(|text| !text.is_empty()));
    parts.extend(facts.system.iter().map(|text| quoted("SYSTEM", text)));
    if let Some(made) = &facts.made {
        parts.extend(made.messages.iter().map(|message| quoted(&format!("MESSAGE {}", message.role.name()), &message.content)));
        parts.extend(made.licences.iter().map(|text| quoted("LICENSE", text)));
    }
    parts.join("\n")
}

/// The parameters of a model, one per line: those that it was made with, and the sampling values that come from elsewhere.
fn lines(word: &str, facts: &ModelFacts) -> String {
    let none = Map::new();
    let made = facts.made.as_ref().map_or(&none, |made| &made.parameters);
    let text = |value: &Value| match value {
        // The quotes keep white space at the ends.
        Value::String(text) => format!("\"{text}\""),
        // 1 rather than 1.0, as Ollama shows it
        Value::Number(number) => number.as_f64().map_or_else(|| number.to_string(), |number| number.to_string()),
        other => other.to_string(),
    };
    let of_made = made.iter().flat_map(|(name, value)| {
        let values = value.as_array().map_or_else(|| vec![text(value)], |items| items.iter().map(text).collect());
        values.into_iter().map(move |value| (name.as_str(), value))
    });
    let others = parameters(&facts.sampling).into_iter().filter(|(name, _)| !made.contains_key(*name));
    of_made.chain(others).map(|(name, value)| format!("{word}{name:<30} {value}")).collect::<Vec<_>>().join("\n")
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
