//! `POST /v1/embeddings`.

use std::sync::Arc;

use actix_web::{HttpRequest, HttpResponse, web};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::convert::embeddings::{Embeddings, Encoding};
use super::convert::{self, names};
use super::types::embeddings::{EmbeddingList, EmbeddingObject, EmbeddingRequest, EmbeddingUsage, Vector};
use super::types::error::ErrorBody;
use http::error::{ApiError, Kind};
use http::journal::Journal;
use http::json::JsonBody;
use http::memory_budget::MemoryPermit;
use http::middleware::requested_model;
use http::state::{ActiveGeneration, AppState, off_loop};
use http::tenant::Tenant;
use serving::Model;
use serving::embedding::{self, ValidText};

/// Embed texts as vectors
///
/// The model file determines the pooling (mean, first or last token). A generative model uses the last token. Every vector has length 1.
#[utoipa::path(post, path = "/v1/embeddings", operation_id = "createEmbedding", tag = "generation",
    request_body = EmbeddingRequest, responses(
    (status = 200, description = "one vector per input, in order", body = EmbeddingList),
    (status = 400, description = "a field is wrong, or an input is longer than the context", body = ErrorBody),
    (status = 404, description = "the model is unknown", body = ErrorBody),
    (status = 429, description = "the queue is full", body = ErrorBody),
    (status = 503, description = "the model is loading, or the server is shutting down", body = ErrorBody),
    (status = 504, description = "the request took longer than the server or its own `x-request-timeout` allows", body = ErrorBody)))]
pub async fn create(state: web::Data<AppState>, http: HttpRequest, body: JsonBody) -> Result<HttpResponse, ApiError> {
    let (request, held) = body.read(&convert::schemas::EMBEDDINGS, convert::embeddings::parse).await?;
    let model = requested_model(&state, &http, &request.model).await?;
    let hidden = model.base.spec.hidden_dim;
    if let Some(count) = request.dimensions.filter(|&count| count > hidden) {
        return Err(ApiError::field("dimensions", format!("`dimensions` is {count}, but the model's vectors have {hidden}")));
    }
    let (encoding, id, active, journal) = (request.encoding, model.id.clone(), ActiveGeneration::new(state), Journal::of(&http));
    let tenant = Tenant::of(&http);
    let (vectors, num_tokens) = tokio::select! {
        result = vectors(model, request, held, &tenant, &journal) => result?,
        () = active.state().drain.when_cut() => return Err(ApiError::new(Kind::Draining, "the server is shutting down")),
    };
    let object = |(index, vector)| EmbeddingObject { object: "embedding".into(), index, embedding: encoded(vector, encoding) };
    let data = vectors.into_iter().enumerate().map(object).collect();
    let usage = EmbeddingUsage { prompt_tokens: num_tokens, total_tokens: num_tokens };
    Ok(HttpResponse::Ok().json(EmbeddingList { object: "list".into(), data, model: id, usage }))
}

/// Returns the vector of each input, and the total number of tokens.
async fn vectors(
    model: Arc<Model>,
    request: Embeddings,
    held: Arc<MemoryPermit>,
    tenant: &Tenant,
    journal: &Journal,
) -> Result<(Vec<Vec<f32>>, u32), ApiError> {
    let Embeddings { inputs, dimensions, most_tokens, user, .. } = request;
    let salt = tenant.salt(user);
    let validate = move || {
        let _held = held;
        inputs.iter().map(|input| embedding::validate_within(&model, input, most_tokens, salt)).collect::<Result<Vec<_>, _>>()
    };
    let texts = off_loop(validate).await?.map_err(|error| names::EMBEDDINGS.request_error(&error))?;
    let num_tokens = texts.iter().map(ValidText::num_tokens).sum();
    let mut vectors = Vec::with_capacity(texts.len());
    let embeddings = embedding::submit(texts, tenant.client())?;
    tenant.spend(u64::from(num_tokens));
    embeddings.iter().for_each(|embedding| journal.follow(&embedding.account(), true));
    for embedding in embeddings {
        vectors.push(embedding.vector(dimensions).await.map_err(|failure| names::EMBEDDINGS.failure(&failure))?);
    }
    Ok((vectors, num_tokens))
}

fn encoded(vector: Vec<f32>, encoding: Encoding) -> Vector {
    match encoding {
        Encoding::Float => Vector::Float(vector),
        Encoding::Base64 => Vector::Base64(STANDARD.encode(vector.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>())),
    }
}
