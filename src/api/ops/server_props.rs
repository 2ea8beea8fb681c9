//! `/props` and `/slots`: a model's settings and its places for sequences, as llama.cpp's server shows them. Reading them loads no model.

use std::collections::BTreeMap;

use actix_web::http::StatusCode;
use actix_web::{HttpRequest, HttpResponse, web};
use serde::Serialize;
use utoipa::ToSchema;

use http::error::{ApiError, Kind};
use http::state::AppState;
use http::tenant::Tenant;

/// A model's settings.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Props {
    #[schema(example = "smollm2:135m")]
    pub model_alias: String,
    /// The model's name again: clients do not learn the paths of the server.
    #[schema(example = "smollm2:135m")]
    pub model_path: String,
    #[schema(example = "penstock-0.1.0")]
    pub build_info: String,
    /// Whether the model is not loaded. What its file says is then missing here.
    pub is_sleeping: bool,
    /// The most sequences that run at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_slots: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_generation_settings: Option<GenerationSettings>,
    /// The source of the chat template. Absent if the model has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chat_template: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bos_token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eos_token: Option<String>,
    pub modalities: Modalities,
}

/// The settings of a request that sets none.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct GenerationSettings {
    /// The context length [tokens].
    pub n_ctx: usize,
    pub params: SamplingSettings,
}

/// The model's own sampling values. Null: the server's default.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SamplingSettings {
    pub temperature: Option<f32>,
    pub top_k: Option<u32>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
    pub presence_penalty: Option<f32>,
    pub frequency_penalty: Option<f32>,
    pub repeat_penalty: Option<f32>,
}

/// The kinds of input that the model takes besides text.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct Modalities {
    pub vision: bool,
    pub audio: bool,
}

/// A place for a sequence.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Slot {
    pub id: usize,
    /// The context length [tokens].
    pub n_ctx: usize,
    pub speculative: bool,
    pub is_processing: bool,
}

/// A model's places for sequences.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SlotList(Vec<Slot>);

/// The id of the model that a query names, or of the first one that the key may use.
fn asked(state: &AppState, request: &HttpRequest) -> Result<(String, BTreeMap<String, String>), ApiError> {
    let query = web::Query::<BTreeMap<String, String>>::from_query(request.query_string());
    let query = query.map_err(|_| ApiError::new(Kind::InvalidValue, "the query is not percent-encoded UTF-8"))?.into_inner();
    let (tenant, registry) = (Tenant::of(request), &state.registry);
    let id = match query.get("model") {
        Some(name) => {
            tenant.check_model(registry, name)?;
            registry.id(name)
        }
        None => registry.list().into_iter().map(|info| info.id).find(|id| tenant.may_use(registry, id)),
    };
    Ok((id.ok_or_else(|| ApiError::field("model", "`model` is required: no model is served"))?, query))
}

/// A model's settings, as llama.cpp's server shows them
#[utoipa::path(get, path = "/props", operation_id = "serverProps", tag = "operations",
    params(("model" = Option<String>, Query, description = "if absent, the first model that the server lists")),
    responses(
        (status = 200, description = "the settings", body = Props),
        (status = 404, description = "the model is unknown")))]
pub async fn props(state: web::Data<AppState>, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let (id, _) = asked(&state, &request)?;
    let loaded = state.registry.get_loaded(&id);
    let mut props = Props {
        model_alias: id.clone(),
        model_path: id,
        build_info: concat!("penstock-", env!("CARGO_PKG_VERSION")).into(),
        is_sleeping: loaded.is_none(),
        total_slots: None,
        default_generation_settings: None,
        chat_template: None,
        bos_token: None,
        eos_token: None,
        modalities: Modalities::default(),
    };
    if let Some(model) = loaded {
        let (base, sampling) = (&model.base, model.sampling);
        let text = |id: Option<u32>| id.and_then(|id| base.tokenizer.token_text(id)).map(str::to_owned);
        let params = SamplingSettings {
            temperature: sampling.temperature,
            top_k: sampling.top_k,
            top_p: sampling.top_p,
            min_p: sampling.min_p,
            presence_penalty: sampling.presence_penalty,
            frequency_penalty: sampling.frequency_penalty,
            repeat_penalty: sampling.repetition_penalty,
        };
        props.modalities.vision = model.pictures().is_some();
        props.total_slots = Some(base.max_running);
        props.default_generation_settings = Some(GenerationSettings { n_ctx: model.context(), params });
        props.chat_template = model.template.as_ref().map(|template| template.source().to_owned());
        (props.bos_token, props.eos_token) = (text(base.tokenizer.bos()), text(base.tokenizer.eos()));
    }
    Ok(HttpResponse::Ok().json(props))
}

/// A model's places for sequences, as llama.cpp's server shows them
///
/// A model that is not loaded has none.
#[utoipa::path(get, path = "/slots", operation_id = "serverSlots", tag = "operations",
    params(
        ("model" = Option<String>, Query, description = "if absent, the first model that the server lists"),
        ("fail_on_no_slot" = Option<String>, Query, description = "with any value: answer with 503 if no place is free")),
    responses(
        (status = 200, description = "the places", body = SlotList),
        (status = 404, description = "the model is unknown"),
        (status = 503, description = "no place is free, and the query asks for this status", body = SlotList)))]
pub async fn slots(state: web::Data<AppState>, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let (id, query) = asked(&state, &request)?;
    let mut slots = Vec::new();
    if let Some(model) = state.registry.get_loaded(&id) {
        let (busy, n_ctx) = (model.base.handle.num_active(), model.context());
        slots.extend((0..model.base.max_running).map(|id| Slot { id, n_ctx, speculative: false, is_processing: id < busy }));
    }
    let is_full = slots.iter().all(|slot| slot.is_processing);
    let status = if is_full && query.contains_key("fail_on_no_slot") { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    Ok(HttpResponse::build(status).json(SlotList(slots)))
}
