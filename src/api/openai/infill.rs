//! `POST /infill`: the text in a gap, as llama.cpp's server writes it for editors.

use std::rc::Rc;
use std::time::Instant;

use actix_web::{HttpRequest, HttpResponse, web};
use bytes::Bytes;

use super::convert::infill::{Infill, parse};
use super::convert::schemas;
use super::stream::error_event;
use super::tokens::name_or_first;
use super::types::error::ErrorBody;
use super::types::infill::{InfillEnd, InfillRequest, InfillTimings, Infilled};
use chat::Piece;
use http::caller::Caller;
use http::client_stream;
use http::error::ApiError;
use http::journal::Journal;
use http::json::JsonBody;
use http::response_frames::{StreamFormat, frames};
use http::sse::{FRAMING, data};
use http::state::AppState;
use http::stream::respond;
use serving::{Account, Counts, End, EndReason, ResponseRequest, StopCause};

/// Fill in a gap in a text, as llama.cpp's server does
///
/// With `stream`, the response is a stream of `Infilled` events, of which the last has `stop: true`.
#[utoipa::path(post, path = "/infill", operation_id = "infill", tag = "generation", request_body = InfillRequest, responses(
    (status = 200, description = "the text in the gap", content((Infilled = "application/json"), (Infilled = "text/event-stream"))),
    (status = 400, description = "a field is wrong, the texts are too long, or the model cannot fill in", body = ErrorBody),
    (status = 404, description = "the model is unknown", body = ErrorBody),
    (status = 429, description = "the queue is full", body = ErrorBody),
    (status = 503, description = "the model is loading, or the server is shutting down", body = ErrorBody)))]
pub async fn create(state: web::Data<AppState>, http: HttpRequest, body: JsonBody) -> Result<HttpResponse, ApiError> {
    let limits = state.limits();
    let (request, held) = body.read(&schemas::INFILLS, move |value| parse(value, &limits)).await?;
    let Infill { model, prompt, options, lora, names, stream } = request;
    let (caller, name) = (Caller::of(&http), name_or_first(&state, &http, model.as_deref()).await?);
    let model = caller.model_with(&state, &name, lora.as_deref()).await?;
    let words = InfillEvents { model: model.id.clone(), stop: options.stop.clone(), journal: caller.journal.clone() };
    let asked = ResponseRequest::new(model, prompt, options);
    let response = client_stream::start(state.clone(), &caller, asked, names, held).await?;
    if stream {
        return Ok(respond(FRAMING, frames(response, words), state.keep_alive));
    }
    let mut answers = response.collect().await?;
    let mut answer = answers.pop().unwrap_or_default();
    let (shown, ..) = answer.take_by_kind();
    let end = End { reason: answer.reason, stop: answer.stop };
    Ok(HttpResponse::Ok().json(Infilled { content: shown.text, ..words.last(end) }))
}

/// Words a text as llama.cpp's server does.
struct InfillEvents {
    model: String,
    /// The stop texts, in the request's order.
    stop: Vec<String>,
    journal: Rc<Journal>,
}

impl InfillEvents {
    fn said(&self, content: String) -> Infilled {
        let Counts { prompt, generated, .. } = self.journal.ledger().counts();
        Infilled { content, model: self.model.clone(), tokens_evaluated: prompt, tokens_predicted: generated, ..Infilled::default() }
    }

    /// The last event, or the answer without its text.
    fn last(&self, end: End) -> Infilled {
        let ledger = self.journal.ledger();
        let stopping_word = match end.stop {
            Some(StopCause::Text(index)) => self.stop.get(index).cloned(),
            _ => None,
        };
        let stop_type = match (end.reason, &stopping_word) {
            (EndReason::Length, _) => "limit",
            (_, Some(_)) => "word",
            _ => "eos",
        };
        let (counts, account) = (ledger.counts(), ledger.first().unwrap_or_default());
        let end = InfillEnd {
            tokens_cached: counts.cached,
            truncated: false,
            stop_type: stop_type.into(),
            stopping_word: stopping_word.unwrap_or_default(),
            timings: timings(counts, &account),
        };
        Infilled { stop: true, end: Some(end), ..self.said(String::new()) }
    }
}

fn timings(counts: Counts, account: &Account) -> InfillTimings {
    let milliseconds = |from: Option<Instant>, to: Option<Instant>| {
        from.zip(to).map_or(0.0, |(from, to)| to.saturating_duration_since(from).as_secs_f64() * 1000.0)
    };
    let rates = |count: u32, time: f64| match (count, time > 0.0) {
        (1.., true) => (time / f64::from(count), f64::from(count) / time * 1000.0),
        _ => (0.0, 0.0),
    };
    let (prompt_n, predicted_n) = (counts.prompt.saturating_sub(counts.cached), counts.generated);
    let prompt_ms = milliseconds(account.admitted(), account.prefilled());
    let predicted_ms = milliseconds(account.prefilled(), account.last());
    let ((prompt_per_token_ms, prompt_per_second), (predicted_per_token_ms, predicted_per_second)) =
        (rates(prompt_n, prompt_ms), rates(predicted_n, predicted_ms));
    InfillTimings {
        cache_n: counts.cached,
        prompt_n,
        prompt_ms,
        prompt_per_token_ms,
        prompt_per_second,
        predicted_n,
        predicted_ms,
        predicted_per_token_ms,
        predicted_per_second,
    }
}

impl StreamFormat for InfillEvents {
    fn piece(&mut self, _choice: usize, piece: Piece) -> Vec<Bytes> {
        match piece {
            Piece::Text(piece) => vec![data(&self.said(piece.text))],
            Piece::Prompt(_) | Piece::Reasoning(_) | Piece::CallStart { .. } | Piece::Arguments { .. } => Vec::new(),
        }
    }

    async fn end(&mut self, _choice: usize, end: End) -> Vec<Bytes> {
        vec![data(&self.last(end))]
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Bytes> {
        vec![error_event(error)]
    }
}
