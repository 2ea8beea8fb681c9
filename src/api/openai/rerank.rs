//! `POST /v1/rerank` and `POST /score`: how well texts answer a query.

use std::sync::Arc;

use actix_web::{HttpRequest, HttpResponse, web};

use super::convert::rerank::{self, RankForm, RankOptions};
use super::convert::{names, schemas};
use super::tokens::name_or_first;
use super::types::error::ErrorBody;
use super::types::rerank::{DocumentText, RankUsage, Ranked, RankedText, Ranking, RerankRequest, Score, ScoreRequest, Scores};
use http::error::{ApiError, Kind};
use http::journal::Journal;
use http::json::JsonBody;
use http::memory_budget::MemoryPermit;
use http::middleware::requested_model;
use http::response_head::ResponseHead;
use http::state::{ActiveGeneration, AppState, off_loop};
use http::subject::FieldNames;
use http::tenant::Tenant;
use serving::score;

/// Rank documents by how well they answer a query
///
/// A reranking model reads the query and each document together. An embedding model's vectors are compared. A generative model is asked
/// whether the document answers the query.
///
/// A body with `texts` in place of `documents` has the form of text-embeddings-inference (`raw_scores`, `return_text`, `truncate`). It gets
/// a list of `index` and `score`.
#[utoipa::path(post, path = "/v1/rerank", operation_id = "rerank", tag = "generation", request_body = RerankRequest, responses(
    (status = 200, description = "the documents' indices in the request, the best first", body = Ranking),
    (status = 400, description = "a field is wrong, a text is longer than the context, or the model cannot rank", body = ErrorBody),
    (status = 404, description = "the model is unknown", body = ErrorBody),
    (status = 429, description = "the queue is full", body = ErrorBody),
    (status = 503, description = "the model is loading, or the server is shutting down", body = ErrorBody),
    (status = 504, description = "the request took longer than the server or its own `x-request-timeout` allows", body = ErrorBody)))]
pub async fn create(state: web::Data<AppState>, http: HttpRequest, body: JsonBody) -> Result<HttpResponse, ApiError> {
    let (request, held) = body.read(&schemas::RERANKS, rerank::rerank).await?;
    // The documents' memory is held until the response is written.
    let (documents, _held) = if request.return_documents { (request.documents.clone(), Some(held.clone())) } else { (Vec::new(), None) };
    let query = request.query;
    let pairs = request.documents.into_iter().map(|document| (query.clone(), document)).collect();
    let (head, scores, usage) = scored(state, &http, RankJob { asked: request.asked, pairs, held, names: names::RERANK }).await?;
    let mut order: Vec<usize> = (0..scores.len()).collect();
    // Documents with equal scores stay in the client's order.
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    if request.form == RankForm::Texts {
        let ranked =
            |&index: &usize| RankedText { index, score: scores[index].into(), text: documents.get(index).map(ToString::to_string) };
        return Ok(HttpResponse::Ok().json(order.iter().take(request.top_n).map(ranked).collect::<Vec<_>>()));
    }
    let ranked = |index: usize| {
        let document = documents.get(index).map(|text| DocumentText { text: text.to_string() });
        Ranked { index, relevance_score: scores[index].into(), document }
    };
    let results = order.into_iter().take(request.top_n).map(ranked).collect();
    Ok(HttpResponse::Ok().json(Ranking { id: head.id.replacen("score", "rerank", 1), model: head.model, results, usage }))
}

/// Score pairs of texts
#[utoipa::path(post, path = "/v1/score", operation_id = "score", tag = "generation", request_body = ScoreRequest, responses(
    (status = 200, description = "one score per pair, in order", body = Scores),
    (status = 400, description = "a field is wrong, a text is longer than the context, or the model cannot rank", body = ErrorBody),
    (status = 404, description = "the model is unknown", body = ErrorBody),
    (status = 429, description = "the queue is full", body = ErrorBody),
    (status = 503, description = "the model is loading, or the server is shutting down", body = ErrorBody),
    (status = 504, description = "the request took longer than the server or its own `x-request-timeout` allows", body = ErrorBody)))]
pub async fn score(state: web::Data<AppState>, http: HttpRequest, body: JsonBody) -> Result<HttpResponse, ApiError> {
    let (request, held) = body.read(&schemas::SCORES, rerank::score).await?;
    let work = RankJob { asked: request.asked, pairs: request.pairs, held, names: names::SCORE };
    let (head, scores, usage) = scored(state, &http, work).await?;
    let one = |(index, score): (usize, f32)| Score { index, object: "score".into(), score: score.into() };
    let data = scores.into_iter().enumerate().map(one).collect();
    let ResponseHead { id, created, model, .. } = head;
    Ok(HttpResponse::Ok().json(Scores { id, object: "list".into(), created, model, data, usage }))
}

/// The pairs to score, and the request's options.
struct RankJob {
    asked: RankOptions,
    pairs: Vec<(Arc<str>, Arc<str>)>,
    held: Arc<MemoryPermit>,
    names: FieldNames,
}

/// Returns the scores of the pairs.
async fn scored(state: web::Data<AppState>, http: &HttpRequest, work: RankJob) -> Result<(ResponseHead, Vec<f32>, RankUsage), ApiError> {
    let RankJob { asked, pairs, held, names } = work;
    let name = name_or_first(&state, http, asked.model.as_deref()).await?;
    let model = requested_model(&state, http, &name).await?;
    let (tenant, journal, active) = (Tenant::of(http), Journal::of(http), ActiveGeneration::new(state));
    let (head, salt) = (ResponseHead::new("score", &model), tenant.salt(asked.user));
    let validate = move || {
        let _held = held;
        let pairs: Vec<(&str, &str)> = pairs.iter().map(|(one, other)| (&**one, &**other)).collect();
        score::validate(&model, &pairs, asked.cut, salt)
    };
    let valid = off_loop(validate).await?.map_err(|error| names.request_error(&error))?;
    let running = valid.submit(tenant.client())?;
    running.enter(&journal.ledger());
    let num_tokens = journal.ledger().counts().prompt;
    let scores = tokio::select! {
        scores = running.scores(asked.activated) => scores.map_err(|failure| names.failure(&failure))?,
        () = active.state().drain.when_cut() => return Err(ApiError::new(Kind::Draining, "the server is shutting down")),
    };
    Ok((head, scores, RankUsage { prompt_tokens: num_tokens, total_tokens: num_tokens }))
}
