//! `/v1/models`.

use actix_web::{HttpRequest, HttpResponse, web};

use super::types::error::ErrorBody;
use super::types::models::{Model, ModelList, ModelSampling, ModelSizes};
use http::error::ApiError;
use http::percent::percent_decode;
use http::server_paths::{shown_path, shows_paths};
use http::state::{AppState, off_loop};
use http::tenant::Tenant;
use logits::SamplingChoice;
use registry::{ListedModel, ModelInfo};
use serving::ModelDescription;

/// The prefix of a model's path.
pub const PREFIX: &str = "/v1/models/";

impl Model {
    /// `shows_paths`: whether the client may know where the server's files are.
    fn of(offered: ListedModel, shows_paths: bool) -> Self {
        let (owned_by, kind) = ("penstock".into(), offered.kind.map(|kind| kind.name().into()));
        let ModelInfo { id, created, context, loaded, root, parent, adapter, sampling } = offered.info;
        // As in vLLM: the root of an adapter is its file.
        let root = adapter.map_or(root, |adapter| shown_path(&adapter.path, shows_paths));
        let sampling = sampling.map(ModelSampling::from);
        let modalities = ["text"].into_iter().chain(offered.sees_pictures.then_some("image")).map(str::to_owned);
        Self {
            id,
            object: "model".into(),
            created,
            owned_by,
            root,
            parent,
            kind,
            input_modalities: modalities.collect(),
            max_model_len: context,
            loaded,
            sampling,
            meta: offered.file.map(|file| ModelSizes::from(&file.description)),
        }
    }
}

impl From<&ModelDescription> for ModelSizes {
    fn from(file: &ModelDescription) -> Self {
        Self {
            n_params: file.parameters,
            size: file.file_bytes,
            n_ctx_train: file.arch_number("context_length"),
            n_embd: file.arch_number("embedding_length"),
        }
    }
}

impl From<SamplingChoice> for ModelSampling {
    fn from(choice: SamplingChoice) -> Self {
        let SamplingChoice { temperature, top_k, top_p, min_p, presence_penalty, frequency_penalty, repetition_penalty, .. } = choice;
        Self { temperature, top_k, top_p, min_p, presence_penalty, frequency_penalty, repetition_penalty }
    }
}

/// List the models
///
/// Models that chat come first.
#[utoipa::path(get, path = "/v1/models", operation_id = "listModels", tag = "models", responses(
    (status = 200, description = "every model that the key may use, loaded or not", body = ModelList)))]
pub async fn list(state: web::Data<AppState>, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let (tenant, registry, shows) = (Tenant::of(&request), state.registry.clone(), shows_paths(&state, &request));
    let usable = move || {
        let offered = registry.offered().into_iter().filter(|offered| tenant.may_use(&registry, &offered.info.id));
        offered.map(|offered| Model::of(offered, shows)).collect()
    };
    let data = off_loop(usable).await?;
    Ok(HttpResponse::Ok().json(ModelList { object: "list".into(), data }))
}

/// Describe a model
#[utoipa::path(get, path = "/v1/models/{id}", operation_id = "retrieveModel", tag = "models",
    params(("id" = String, Path, description = "the percent-encoded id of the model")),
    responses(
        (status = 200, description = "the model", body = Model),
        (status = 404, description = "the model is unknown", body = ErrorBody)))]
pub async fn retrieve(state: web::Data<AppState>, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    // The router leaves %2F encoded, so this handler decodes the path.
    let raw = request.uri().path().strip_prefix(PREFIX).unwrap_or_default();
    let id = percent_decode(raw).ok_or_else(|| ApiError::model_not_found(raw, None))?;
    // A model that the key may not use is treated as unknown, as in the list.
    let (tenant, registry) = (Tenant::of(&request), state.registry.clone());
    let find = move || registry.offered_as(&id).filter(|_| tenant.may_use(&registry, &id)).ok_or_else(|| tenant.not_found(&registry, &id));
    Ok(HttpResponse::Ok().json(Model::of(off_loop(find).await??, shows_paths(&state, &request))))
}
