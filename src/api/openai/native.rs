//! llama.cpp's own endpoints: `POST /completion`, and the words in which `/completion` and `/infill` answer.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use actix_web::{HttpRequest, HttpResponse, web};
use bytes::Bytes;
use serde_json::{Value, json};

use super::convert::native::{NativeGeneration, parse};
use super::convert::schemas;
use super::stream::error_event;
use super::tokens::name_or_first;
use super::types::error::ErrorBody;
use super::types::native::{NativeCompletion, NativeCompletionRequest, NativeEnd, NativeSettings, NativeTimings, NativeToken};
use chat::{Piece, Text};
use http::caller::Caller;
use http::client_stream;
use http::error::ApiError;
use http::journal::Journal;
use http::json::JsonBody;
use http::memory_budget::MemoryPermit;
use http::response_frames::{StreamFormat, frames};
use http::sse::{FRAMING, data};
use http::state::AppState;
use http::stream::respond;
use serving::{Account, Answer, End, EndReason, Model, Options, ResponseRequest, StopCause};

/// Continue a text, in llama.cpp's words
///
/// Of several prompts, the results come as a list. With `stream`, the response is a stream of `NativeCompletion` events, of which the last
/// of each prompt has `stop: true`.
#[utoipa::path(post, path = "/completion", operation_id = "nativeCompletion", tag = "generation",
    request_body = NativeCompletionRequest, responses(
    (status = 200, description = "the text", content((NativeCompletion = "application/json"), (NativeCompletion = "text/event-stream"))),
    (status = 400, description = "a field is wrong, or the context is too short", body = ErrorBody),
    (status = 404, description = "the model is unknown", body = ErrorBody),
    (status = 429, description = "the queue is full", body = ErrorBody),
    (status = 503, description = "the model is loading, or the server is shutting down", body = ErrorBody)))]
pub async fn create(state: web::Data<AppState>, http: HttpRequest, body: JsonBody) -> Result<HttpResponse, ApiError> {
    let limits = state.limits();
    let (request, held) = body.read(&schemas::NATIVE_COMPLETIONS, move |value| parse(value, &limits)).await?;
    answer(state, http, request, held).await
}

/// Answers a request to `/completion` or `/infill`.
pub async fn answer(
    state: web::Data<AppState>,
    http: HttpRequest,
    request: NativeGeneration,
    held: Arc<MemoryPermit>,
) -> Result<HttpResponse, ApiError> {
    let NativeGeneration { model, prompts, options, lora, names, stream, members } = request;
    let (caller, name) = (Caller::of(&http), name_or_first(&state, &http, model.as_deref()).await?);
    let model = caller.model_with(&state, &name, lora.as_deref()).await?;
    let texts = prompts.iter().map(|_| TextState::default()).collect();
    let settings = settings(&model, &options, stream);
    let mut events = NativeEvents { model: model.id.clone(), settings, members, texts, journal: caller.journal.clone() };
    let asked = ResponseRequest { model, prompts, options };
    let response = client_stream::start(state.clone(), &caller, asked, names, held).await?;
    if stream {
        return Ok(respond(FRAMING, frames(response, events), state.keep_alive));
    }
    let answers = response.collect().await?;
    let mut whole: Vec<Value> = answers.into_iter().enumerate().map(|(index, answer)| events.whole(index, answer)).collect();
    Ok(match whole.len() {
        1 => HttpResponse::Ok().json(whole.remove(0)),
        _ => HttpResponse::Ok().json(whole),
    })
}

fn settings(model: &Model, options: &Options, stream: bool) -> NativeSettings {
    let sampling = model.sampling_of(options);
    NativeSettings {
        seed: sampling.seed,
        temperature: sampling.temperature,
        top_k: sampling.top_k,
        top_p: sampling.top_p,
        min_p: sampling.min_p,
        repeat_penalty: sampling.repetition_penalty,
        presence_penalty: sampling.presence_penalty,
        frequency_penalty: sampling.frequency_penalty,
        stop: options.stop.clone(),
        n_predict: options.budget.asked().map_or(-1, i64::from),
        n_probs: options.logprobs.unwrap_or(0),
        ignore_eos: options.ignore_eos,
        stream,
    }
}

/// Words texts as llama.cpp's server does.
struct NativeEvents {
    model: String,
    settings: NativeSettings,
    /// The paths of the members to return.
    members: Option<Vec<String>>,
    /// What is known of each text so far.
    texts: Vec<TextState>,
    journal: Rc<Journal>,
}

#[derive(Default)]
struct TextState {
    /// The ids since the last event. Empty unless the request asks for them.
    ids: Vec<u32>,
    has_new_line: bool,
}

impl NativeEvents {
    fn event(&mut self, index: usize, text: Text) -> NativeCompletion {
        let account = self.journal.ledger().account(index).unwrap_or_default();
        let state = &mut self.texts[index];
        state.has_new_line |= text.text.contains('\n');
        NativeCompletion {
            index,
            content: text.text,
            tokens: std::mem::take(&mut state.ids),
            model: self.model.clone(),
            tokens_evaluated: account.prompt_tokens(),
            tokens_predicted: account.generated_tokens(),
            completion_probabilities: text.tokens.into_iter().map(NativeToken::from).collect(),
            ..NativeCompletion::default()
        }
    }

    /// A text that has ended, whose last piece is `text`.
    fn last(&mut self, index: usize, text: Text, end: End) -> Value {
        let account = self.journal.ledger().account(index).unwrap_or_default();
        let stopping_word = match end.stop {
            Some(StopCause::Text(index)) => self.settings.stop.get(index).cloned(),
            _ => None,
        };
        let stop_type = match (end.reason, &stopping_word) {
            (EndReason::Length, _) => "limit",
            (_, Some(_)) => "word",
            _ => "eos",
        };
        let event = self.event(index, text);
        let end = NativeEnd {
            tokens_cached: account.cached_tokens(),
            truncated: false,
            has_new_line: self.texts[index].has_new_line,
            stop_type: stop_type.into(),
            stopping_word: stopping_word.unwrap_or_default(),
            generation_settings: self.settings.clone(),
            timings: timings(&account),
        };
        let whole = json!(NativeCompletion { stop: true, end: Some(end), ..event });
        match &self.members {
            Some(paths) => chosen(&whole, paths),
            None => whole,
        }
    }

    fn whole(&mut self, index: usize, mut answer: Answer) -> Value {
        let (shown, ..) = answer.take_by_kind();
        self.texts[index].ids = answer.ids;
        self.last(index, shown, End { reason: answer.reason, stop: answer.stop })
    }
}

/// The members at some paths, each under the last part of its path. What does not exist is left out.
fn chosen(whole: &Value, paths: &[String]) -> Value {
    let member = |path: &String| Some((path.rsplit('/').next()?.to_owned(), whole.pointer(&format!("/{path}"))?.clone()));
    Value::Object(paths.iter().filter_map(member).collect())
}

fn timings(account: &Account) -> NativeTimings {
    let milliseconds = |from: Option<Instant>, to: Option<Instant>| {
        from.zip(to).map_or(0.0, |(from, to)| to.saturating_duration_since(from).as_secs_f64() * 1000.0)
    };
    let rates = |count: u32, time: f64| match (count, time > 0.0) {
        (1.., true) => (time / f64::from(count), f64::from(count) / time * 1000.0),
        _ => (0.0, 0.0),
    };
    let (prompt_n, predicted_n) = (account.prompt_tokens().saturating_sub(account.cached_tokens()), account.generated_tokens());
    let prompt_ms = milliseconds(account.admitted(), account.prefilled());
    let predicted_ms = milliseconds(account.prefilled(), account.last());
    let ((prompt_per_token_ms, prompt_per_second), (predicted_per_token_ms, predicted_per_second)) =
        (rates(prompt_n, prompt_ms), rates(predicted_n, predicted_ms));
    NativeTimings {
        cache_n: account.cached_tokens(),
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

impl StreamFormat for NativeEvents {
    fn ids(&mut self, index: usize, ids: Vec<u32>) {
        self.texts[index].ids.extend(ids);
    }

    fn piece(&mut self, index: usize, piece: Piece) -> Vec<Bytes> {
        match piece {
            Piece::Text(text) => vec![data(&self.event(index, text))],
            Piece::Prompt(_) | Piece::Reasoning(_) | Piece::CallStart { .. } | Piece::Arguments { .. } => Vec::new(),
        }
    }

    async fn end(&mut self, index: usize, end: End) -> Vec<Bytes> {
        vec![data(&self.last(index, Text::default(), end))]
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Bytes> {
        vec![error_event(error)]
    }
}
