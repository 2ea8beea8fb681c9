//! `POST /v1/embeddings`

use std::sync::Arc;

use actix_web::{HttpMessage, HttpRequest, HttpResponse, web};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::{StreamExt, TryStreamExt, stream};

use super::convert::embeddings::{Embeddings, Encoding};
use super::convert::{self, request_error};
use super::error::{ApiError, Kind};
use super::json::JsonBody;
use super::middleware::ModelLabel;
use super::state::{Active, AppState, off_loop};
use super::types::embeddings::{EmbeddingList, EmbeddingObject, EmbeddingRequest, EmbeddingUsage, Vector};
use super::types::error::ErrorBody;
use crate::registry::LoadedModel;
use crate::serving::{ValidRequest, embedding};

/// Inputs of a request that are in the queue or running.
const AT_ONCE: usize = 64;

/// Vectors of texts
///
/// Pooled as the model file says (mean, first or last token; a generative model's last), and of length 1.
#[utoipa::path(post, path = "/v1/embeddings", operation_id = "createEmbedding", tag = "generation", request_body = EmbeddingRequest, responses(
    (status = 200, description = "a vector for each input, in order", body = EmbeddingList),
    (status = 400, description = "a field is wrong, or an input is longer than the context", body = ErrorBody),
    (status = 404, description = "the model is unknown", body = ErrorBody),
    (status = 429, description = "the queue is full", body = ErrorBody),
    (status = 503, description = "the model is loading, or the server is shutting down", body = ErrorBody)))]
pub async fn create(state: web::Data<AppState>, http: HttpRequest, body: JsonBody) -> Result<HttpResponse, ApiError> {
    let request = convert::embeddings::parse(&body.0)?;
    let model = state.model(&request.model).await?;
    http.extensions_mut().insert(ModelLabel(model.id.clone()));
    let hidden = model.spec.hidden_dim;
    if let Some(count) = request.dimensions.filter(|&count| count > hidden) {
        return Err(ApiError::field("dimensions", format!("`dimensions` is {count}, and the model's vectors have {hidden}")));
    }
    let (encoding, id, active) = (request.encoding, model.id.clone(), Active::new(state));
    let (vectors, num_tokens) = tokio::select! {
        result = vectors(model, request) => result?,
        () = active.state().drain.when_cut() => return Err(ApiError::new(Kind::Draining, "the server is shutting down")),
    };
    let object = |(index, vector)| EmbeddingObject { object: "embedding".into(), index, embedding: encoded(vector, encoding) };
    let data = vectors.into_iter().enumerate().map(object).collect();
    let usage = EmbeddingUsage { prompt_tokens: num_tokens, total_tokens: num_tokens };
    Ok(HttpResponse::Ok().json(EmbeddingList { object: "list".into(), data, model: id, usage }))
}

/// Every input's vector, and how many tokens the inputs have together.
async fn vectors(model: Arc<LoadedModel>, request: Embeddings) -> Result<(Vec<Vec<f32>>, u32), ApiError> {
    let Embeddings { inputs, dimensions, tenant, .. } = request;
    let validate = move || inputs.into_iter().map(|input| embedding::validate(model.clone(), input, tenant)).collect::<Result<Vec<_>, _>>();
    let requests = off_loop(validate).await?.map_err(|error| request_error(error, "input"))?;
    let num_tokens = requests.iter().map(ValidRequest::num_tokens).sum();
    let vectors = stream::iter(requests.into_iter().map(|request| vector(request, dimensions)));
    Ok((vectors.buffered(AT_ONCE).try_collect().await?, num_tokens))
}

async fn vector(request: ValidRequest, dimensions: Option<usize>) -> Result<Vec<f32>, ApiError> {
    let vector = embedding::embed(request)?.vector(dimensions).await;
    vector.map_err(|(message, alive)| ApiError::new(if alive { Kind::GenerationFailed } else { Kind::EngineStopped }, message))
}

fn encoded(vector: Vec<f32>, encoding: Encoding) -> Vector {
    match encoding {
        Encoding::Float => Vector::Float(vector),
        Encoding::Base64 => Vector::Base64(STANDARD.encode(vector.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>())),
    }
}
