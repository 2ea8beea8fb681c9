//! `POST /v1/embeddings`.

use std::sync::Arc;

use actix_web::{HttpRequest, HttpResponse, web};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::convert::embeddings::{Embeddings, Encoding};
use super::convert::{self, names, schemas};
use super::tokens::name_or_first;
use super::types::embeddings::{EmbeddingList, EmbeddingObject, EmbeddingRequest, EmbeddingUsage, PoolingList, PoolingObject, Vector};
use super::types::error::ErrorBody;
use super::types::native::{NativeEmbedding, NativeEmbeddingList, NativeEmbeddingRequest};
use http::caller::Caller;
use http::error::ApiError;
use http::json::JsonBody;
use http::memory_budget::MemoryPermit;
use http::response_head::ResponseHead;
use http::state::AppState;
use http::vectors::{VectorForm, check_dimensions, vectors};
use serving::{Prompt, embedding};

/// Embed texts as vectors
///
/// The model file determines the pooling (mean, first or last token). A generative model uses the last token. Every vector has length 1,
/// unless `normalize` is false.
#[utoipa::path(post, path = "/v1/embeddings", operation_id = "createEmbedding", tag = "generation",
    request_body = EmbeddingRequest, responses(
    (status = 200, description = "one vector per input, in order", body = EmbeddingList),
    (status = 400, description = "a field is wrong, or an input is longer than the context", body = ErrorBody),
    (status = 404, description = "the model is unknown", body = ErrorBody),
    (status = 429, description = "the queue is full", body = ErrorBody),
    (status = 503, description = "the model is loading, or the server is shutting down", body = ErrorBody),
    (status = 504, description = "the request took longer than the server or its own `x-request-timeout` allows", body = ErrorBody)))]
pub async fn create(state: web::Data<AppState>, http: HttpRequest, body: JsonBody) -> Result<HttpResponse, ApiError> {
    let Embedded { head, vectors, usage } = read_and_embed(state, &http, body).await?;
    let object = |(index, embedding)| EmbeddingObject { object: "embedding".into(), index, embedding };
    let data = vectors.into_iter().enumerate().map(object).collect();
    Ok(HttpResponse::Ok().json(EmbeddingList { object: "list".into(), data, model: head.model, usage }))
}

/// Pool texts to vectors, as vLLM does
///
/// The vectors are those of `/v1/embeddings`.
#[utoipa::path(post, path = "/pooling", operation_id = "createPooling", tag = "generation",
    request_body = EmbeddingRequest, responses(
    (status = 200, description = "one vector per input, in order", body = PoolingList),
    (status = 400, description = "a field is wrong, or an input is longer than the context", body = ErrorBody),
    (status = 404, description = "the model is unknown", body = ErrorBody),
    (status = 429, description = "the queue is full", body = ErrorBody),
    (status = 503, description = "the model is loading, or the server is shutting down", body = ErrorBody)))]
pub async fn pooling(state: web::Data<AppState>, http: HttpRequest, body: JsonBody) -> Result<HttpResponse, ApiError> {
    let Embedded { head, vectors, usage } = read_and_embed(state, &http, body).await?;
    let data = vectors.into_iter().enumerate().map(|(index, data)| PoolingObject { index, object: "pooling".into(), data }).collect();
    let ResponseHead { id, created, model, .. } = head;
    Ok(HttpResponse::Ok().json(PoolingList { id, object: "list".into(), created, model, data, usage }))
}

/// Embed texts as vectors, in llama.cpp's words
#[utoipa::path(post, path = "/embedding", operation_id = "nativeEmbedding", tag = "generation",
    request_body = NativeEmbeddingRequest, responses(
    (status = 200, description = "one vector per text, in order", body = NativeEmbeddingList),
    (status = 400, description = "a field is wrong, or a text is longer than the context", body = ErrorBody),
    (status = 404, description = "the model is unknown", body = ErrorBody),
    (status = 429, description = "the queue is full", body = ErrorBody),
    (status = 503, description = "the model is loading, or the server is shutting down", body = ErrorBody)))]
pub async fn native(state: web::Data<AppState>, http: HttpRequest, body: JsonBody) -> Result<HttpResponse, ApiError> {
    let ((model, asked), held) = body.read(&schemas::NATIVE_EMBEDDINGS, convert::native::embedding).await?;
    let model = name_or_first(&state, &http, model.as_deref()).await?;
    let (_, vectors, _) = embed(state, &http, Embeddings { model, ..asked }, held).await?;
    let object = |(index, vector)| NativeEmbedding { index, embedding: vec![vector] };
    Ok(HttpResponse::Ok().json(NativeEmbeddingList(vectors.into_iter().enumerate().map(object).collect())))
}

/// The vectors of a request.
struct Embedded {
    head: ResponseHead,
    vectors: Vec<Vector>,
    usage: EmbeddingUsage,
}

async fn read_and_embed(state: web::Data<AppState>, http: &HttpRequest, body: JsonBody) -> Result<Embedded, ApiError> {
    let (request, held) = body.read(&schemas::EMBEDDINGS, convert::embeddings::parse).await?;
    let encoding = request.encoding;
    let (head, vectors, num_tokens) = embed(state, http, request, held).await?;
    let vectors = vectors.into_iter().map(|vector| encoded(vector, encoding)).collect();
    Ok(Embedded { head, vectors, usage: EmbeddingUsage { prompt_tokens: num_tokens, total_tokens: num_tokens } })
}

/// Returns the vectors of a request, and the number of its tokens.
async fn embed(
    state: web::Data<AppState>,
    http: &HttpRequest,
    request: Embeddings,
    held: Arc<MemoryPermit>,
) -> Result<(ResponseHead, Vec<Vec<f32>>, u32), ApiError> {
    let caller = Caller::of(http);
    let model = caller.model(&state, &request.model).await?;
    check_dimensions(&model, request.dimensions)?;
    let Embeddings { inputs, dimensions, normalize, most_tokens, user, .. } = request;
    let (head, salt) = (ResponseHead::new("pool", &model), caller.tenant.salt(user));
    let names = if matches!(inputs[..], [Prompt::Chat(_)]) { names::CHAT } else { names::EMBEDDINGS };
    let validate = move || {
        let _held = held;
        inputs.iter().map(|input| embedding::validate_within(&model, input, most_tokens, salt)).collect()
    };
    let (vectors, num_tokens) = vectors(state, &caller, names, VectorForm { dimensions, normalize }, validate).await?;
    Ok((head, vectors, num_tokens))
}

fn encoded(vector: Vec<f32>, encoding: Encoding) -> Vector {
    match encoding {
        Encoding::Float => Vector::Float(vector),
        Encoding::Base64 => Vector::Base64(STANDARD.encode(vector.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>())),
    }
}
