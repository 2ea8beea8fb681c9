//! `POST /v1/completions`.

use std::sync::Arc;

use actix_web::{HttpRequest, HttpResponse, web};

use super::chat::finish_reason;
use super::convert;
use super::convert::completions::Completions;
use super::response_options::ResponseOptions;
use super::stream::{self, EventFormat};
use super::types::completions::{Completion, CompletionChoice, CompletionRequest};
use super::types::error::ErrorBody;
use super::types::logprobs::{CompletionLogprobs, TokenNames, prompt_logprobs};
use super::types::usage::Usage;
use chat::{Piece, TokenLogprob};
use http::caller::Caller;
use http::client_stream::{self, ClientStream};
use http::deferred_stream;
use http::error::ApiError;
use http::json::JsonBody;
use http::memory_budget::MemoryPermit;
use http::response_head::ResponseHead;
use http::state::AppState;
use serving::{Answer, End, Ledger, ResponseRequest};

/// Continue a text
///
/// Each prompt has its own `n` choices, in order. With `stream`, the response is a stream of `Completion` events that ends with `data:
/// [DONE]`.
#[utoipa::path(post, path = "/v1/completions", operation_id = "createCompletion", tag = "generation",
    request_body = CompletionRequest, responses(
    (status = 200, description = "the text", content((Completion = "application/json"), (Completion = "text/event-stream"))),
    (status = 400, description = "a field is wrong, or the context is too short", body = ErrorBody),
    (status = 404, description = "the model is unknown", body = ErrorBody),
    (status = 429, description = "the queue is full", body = ErrorBody),
    (status = 503, description = "the model is loading, or the server is shutting down", body = ErrorBody),
    (status = 504, description = "the request took longer than the server or its own `x-request-timeout` allows", body = ErrorBody)))]
pub async fn create(state: web::Data<AppState>, http: HttpRequest, body: JsonBody) -> Result<HttpResponse, ApiError> {
    let limits = state.limits();
    let (request, held) = body.read(&convert::schemas::COMPLETIONS, move |value| convert::completions::parse(value, &limits)).await?;
    let (caller, names) = (Caller::of(&http), request.options.logprobs.map(|_| request.token_names));
    let (extras, scores_prompt) = (ResponseOptions::of(&request.options, request.stream), request.options.prompt_logprobs.is_some());
    if let Some(options) = request.stream {
        let (model, journal, stream_state) = (request.model.clone(), caller.journal.clone(), state.clone());
        let begin = async move {
            let (response, head) = start(stream_state, &caller, request, held).await?;
            let prompt_ids = response.prompt_ids().into_iter().map(Some).collect();
            let (include_usage, echo) = (options.include_usage, response.echoes());
            let events = TextEvents { head, include_usage, echo, logprobs: names, extras, prompt_ids };
            Ok(stream::events(response, events, options))
        };
        return deferred_stream::stream(&state, &model, journal, stream::error_event, begin).await;
    }
    let (response, head) = start(state, &caller, request, held).await?;
    let (echo, mut prompt_ids) = (response.echoes(), response.prompt_ids());
    let answers = response.collect().await?;
    let choice = |(index, mut answer): (usize, Answer)| {
        // Without an echo, the prompt is not part of the text.
        let prompt = scores_prompt.then(|| std::mem::take(&mut answer.prompt));
        let echo = echo.get(index).map_or("", String::as_str);
        let (shown, ..) = answer.take_by_kind();
        let logprobs = names.map(|names| {
            let mut logprobs = CompletionLogprobs::default();
            logprobs.extend(answer.prompt, 0, names);
            logprobs.extend(shown.tokens, echo.chars().count(), names);
            logprobs
        });
        CompletionChoice {
            index,
            text: format!("{echo}{}", shown.text),
            logprobs,
            finish_reason: Some(finish_reason(answer.reason).into()),
            stop_reason: extras.stop_reason(answer.stop),
            token_ids: extras.ids(answer.ids),
            prompt_token_ids: prompt_ids.get_mut(index).map(std::mem::take),
            prompt_logprobs: prompt.map(|prompt| prompt_logprobs(&prompt)),
        }
    };
    let choices = answers.into_iter().enumerate().map(choice).collect();
    let ResponseHead { id, created, model, fingerprint } = head;
    let (object, usage) = ("text_completion".into(), Some(Some(caller.journal.ledger().counts().into())));
    Ok(HttpResponse::Ok().json(Completion {
        id,
        object,
        created,
        model,
        choices,
        system_fingerprint: fingerprint,
        usage,
        obfuscation: None,
    }))
}

/// Starts the response to a request, once its model is loaded.
async fn start(
    state: web::Data<AppState>,
    caller: &Caller,
    request: Completions,
    held: Arc<MemoryPermit>,
) -> Result<(ClientStream, ResponseHead), ApiError> {
    let model = caller.model_with(&state, &request.model, request.lora.as_deref()).await?;
    let head = ResponseHead::new("cmpl", &model);
    let Completions { prompts, options, names, .. } = request;
    let asked = ResponseRequest { model, prompts, options };
    Ok((client_stream::start(state, caller, asked, names, held).await?, head))
}

struct TextEvents {
    head: ResponseHead,
    include_usage: bool,
    /// The prompt of each choice. Empty without `echo`.
    echo: Vec<String>,
    /// How tokens with log-probabilities are named. `None` without log-probabilities.
    logprobs: Option<TokenNames>,
    extras: ResponseOptions,
    /// The prompt of each choice as ids, until its first event. Empty unless the request asks for them.
    prompt_ids: Vec<Option<Vec<u32>>>,
}

impl TextEvents {
    fn event(&self, choices: Vec<CompletionChoice>, usage: Option<Usage>) -> Completion {
        let ResponseHead { id, created, model, fingerprint } = self.head.clone();
        let (object, usage) = ("text_completion".into(), self.include_usage.then_some(usage));
        Completion { id, object, created, model, choices, system_fingerprint: fingerprint, usage, obfuscation: None }
    }

    fn choice(&self, index: usize, text: String, finish_reason: Option<String>) -> Completion {
        self.event(vec![CompletionChoice { index, text, finish_reason, ..CompletionChoice::default() }], None)
    }

    /// Returns an event with a text and its tokens, which start after `shift` characters.
    fn text_with(&self, index: usize, text: String, tokens: Vec<TokenLogprob>, shift: usize) -> Completion {
        let logprobs = self.logprobs.map(|names| {
            let mut logprobs = CompletionLogprobs::default();
            logprobs.extend(tokens, shift, names);
            logprobs
        });
        self.event(vec![CompletionChoice { index, text, logprobs, ..CompletionChoice::default() }], None)
    }
}

impl EventFormat for TextEvents {
    type Event = Completion;

    fn first(&self, index: usize) -> Option<Completion> {
        // With log-probabilities, the echo is sent with the prompt's tokens instead.
        self.echo.get(index).filter(|_| self.logprobs.is_none()).map(|echo| self.choice(index, echo.clone(), None))
    }

    fn piece(&mut self, index: usize, piece: Piece) -> Option<Completion> {
        match piece {
            Piece::Prompt(tokens) => self.echo.get(index).map(|echo| self.text_with(index, echo.clone(), tokens, 0)),
            Piece::Text(piece) => {
                let shift = self.echo.get(index).map_or(0, |echo| echo.chars().count());
                Some(self.text_with(index, piece.text, piece.tokens, shift))
            }
            Piece::Reasoning(_) | Piece::CallStart { .. } | Piece::Arguments { .. } => None,
        }
    }

    fn end(&mut self, index: usize, end: End) -> Completion {
        let mut event = self.choice(index, String::new(), Some(finish_reason(end.reason).into()));
        event.choices[0].stop_reason = self.extras.stop_reason(end.stop);
        event
    }

    fn complete(&mut self, index: usize, event: &mut Completion, ids: Option<Vec<u32>>, ledger: &Ledger) {
        if let Some(choice) = event.choices.first_mut() {
            event.obfuscation = self.extras.obfuscation(choice.text.len());
            choice.prompt_token_ids = self.prompt_ids.get_mut(index).and_then(Option::take);
            choice.token_ids = self.extras.ids(ids.clone().unwrap_or_default());
        }
        if self.extras.counts && ids.is_some() {
            event.usage = Some(Some(ledger.settled_counts().into()));
        }
    }

    fn usage(&self, usage: Usage) -> Completion {
        self.event(Vec::new(), Some(usage))
    }
}
