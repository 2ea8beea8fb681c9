//! `POST /v1/embeddings`.

use actix_web::{HttpRequest, HttpResponse, web};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::convert::embeddings::{Embeddings, Encoding};
use super::convert::{self, names};
use super::types::embeddings::{EmbeddingList, EmbeddingObject, EmbeddingRequest, EmbeddingUsage, Vector};
use super::types::error::ErrorBody;
use http::caller::Caller;
use http::error::ApiError;
use http::json::JsonBody;
use http::state::AppState;
use http::vectors::{check_dimensions, vectors};
use serving::embedding;

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
    let caller = Caller::of(&http);
    let model = caller.model(&state, &request.model).await?;
    check_dimensions(&model, request.dimensions)?;
    let Embeddings { inputs, encoding, dimensions, most_tokens, user, .. } = request;
    let (id, salt) = (model.id.clone(), caller.tenant.salt(user));
    let validate = move || {
        let _held = held;
        inputs.iter().map(|input| embedding::validate_within(&model, input, most_tokens, salt)).collect()
    };
    let (vectors, num_tokens) = vectors(state, &caller, names::EMBEDDINGS, dimensions, validate).await?;
    let object = |(index, vector)| EmbeddingObject { object: "embedding".into(), index, embedding: encoded(vector, encoding) };
    let data = vectors.into_iter().enumerate().map(object).collect();
    let usage = EmbeddingUsage { prompt_tokens: num_tokens, total_tokens: num_tokens };
    Ok(HttpResponse::Ok().json(EmbeddingList { object: "list".into(), data, model: id, usage }))
}

fn encoded(vector: Vec<f32>, encoding: Encoding) -> Vector {
    match encoding {
        Encoding::Float => Vector::Float(vector),
        Encoding::Base64 => Vector::Base64(STANDARD.encode(vector.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>())),
    }
}
