//! `POST /api/embed` and the older `POST /api/embeddings`.

use std::sync::Arc;
use std::time::Instant;

use actix_web::{HttpRequest, HttpResponse, web};

use super::body::Body;
use super::convert;
use super::convert::embed::Embed;
use super::convert::schemas::{EMBEDS, OLDER_EMBEDS};
use super::names;
use super::start;
use super::timing::Timings;
use super::types::common::ErrorBody;
use super::types::embed::{EmbedRequest, Embedded, EmbeddingsRequest, OneEmbedding};
use http::caller::Caller;
use http::error::ApiError;
use http::memory_budget::MemoryPermit;
use http::state::AppState;
use http::subject::FieldNames;
use http::vectors::{VectorForm, check_dimensions, vectors};
use serving::{Prompt, embedding};

/// Embed texts as vectors, as Ollama does
#[utoipa::path(post, path = "/api/embed", operation_id = "ollamaEmbed", tag = "ollama", request_body = EmbedRequest, responses(
    (status = 200, description = "one vector per text, in order", body = Embedded),
    (status = 400, description = "a field is wrong, or a text is longer than the context and `truncate` is false", body = ErrorBody),
    (status = 404, description = "the model is unknown", body = ErrorBody),
    (status = 429, description = "the queue is full", body = ErrorBody)))]
pub async fn embed(state: web::Data<AppState>, http: HttpRequest, body: Body) -> Result<HttpResponse, ApiError> {
    let (began, limits) = (Instant::now(), state.limits());
    let (request, held) = body.0.read(&EMBEDS, move |value| convert::embed::embed(value, &limits)).await?;
    let name = request.model.clone();
    let Done { vectors, num_tokens, clock } = run(&state, &http, began, request, held, names::EMBED).await?;
    Ok(HttpResponse::Ok().json(Embedded {
        model: name,
        embeddings: vectors,
        total_duration: clock.total(),
        load_duration: clock.load(),
        prompt_eval_count: num_tokens,
    }))
}

/// Embed one text as a vector, as older versions of Ollama do
///
/// A text longer than the context is cut at its end.
#[utoipa::path(post, path = "/api/embeddings", operation_id = "ollamaEmbeddings", tag = "ollama", request_body = EmbeddingsRequest,
    responses(
    (status = 200, description = "the text's vector", body = OneEmbedding),
    (status = 400, description = "a field is wrong", body = ErrorBody),
    (status = 404, description = "the model is unknown", body = ErrorBody),
    (status = 429, description = "the queue is full", body = ErrorBody)))]
pub async fn embeddings(state: web::Data<AppState>, http: HttpRequest, body: Body) -> Result<HttpResponse, ApiError> {
    let (began, limits) = (Instant::now(), state.limits());
    let (request, held) = body.0.read(&OLDER_EMBEDS, move |value| convert::embed::embeddings(value, &limits)).await?;
    let done = run(&state, &http, began, request, held, names::EMBEDDINGS).await?;
    Ok(HttpResponse::Ok().json(OneEmbedding { embedding: done.vectors.into_iter().next().unwrap_or_default() }))
}

struct Done {
    vectors: Vec<Vec<f32>>,
    num_tokens: u32,
    clock: Timings,
}

async fn run(
    state: &web::Data<AppState>,
    http: &HttpRequest,
    began: Instant,
    request: Embed,
    held: Arc<MemoryPermit>,
    names: FieldNames,
) -> Result<Done, ApiError> {
    let caller = Caller::of(http);
    let model = start::model(state, http, &caller, &request.model, request.keep).await?;
    request.settings.log_differences(&model);
    check_dimensions(&model, request.dimensions)?;
    let clock = Timings::new(began, caller.journal.clone());
    let Embed { inputs, dimensions, truncate, .. } = request;
    let salt = caller.tenant.salt(0);
    let validate = move || {
        let _held = held;
        let most = truncate.then_some(usize::MAX);
        let texts = inputs.into_iter().map(Prompt::Text);
        texts.map(|text| embedding::validate_within(&model, &text, most, salt)).collect()
    };
    let (vectors, num_tokens) = vectors(state.clone(), &caller, names, VectorForm { dimensions, normalize: true }, validate).await?;
    Ok(Done { vectors, num_tokens, clock })
}
