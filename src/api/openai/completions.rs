//! `POST /v1/completions`

use std::sync::Arc;

use actix_web::{HttpRequest, HttpResponse, web};

use super::chat::finish_reason;
use super::convert;
use super::convert::completions::Completions;
use super::extras::{Extras, Note};
use super::stream::{self, ChunkFormat};
use super::types::completions::{Completion, CompletionChoice, CompletionRequest};
use super::types::error::ErrorBody;
use super::types::logprobs::{CompletionLogprobs, prompt_logprobs};
use super::types::usage::Usage;
use chat::{Piece, TokenLogprob};
use http::budget::Held;
use http::caller::Caller;
use http::choices::{self, Answer, Ask, Choices};
use http::error::ApiError;
use http::head::Head;
use http::json::JsonBody;
use http::later;
use http::state::AppState;
use serving::End;

/// Continue a text
///
/// Each prompt has its own `n` choices, in order. With `stream`, the answer is a stream of `Completion` events that ends with
/// `data: [DONE]`.
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
    let (caller, has_logprobs) = (Caller::of(&http), request.options.logprobs.is_some());
    let (extras, scores_prompt) = (Extras::of(&request.options, request.stream), request.options.prompt_logprobs.is_some());
    if let Some(options) = request.stream {
        let (model, journal, of_stream) = (request.model.clone(), caller.journal.clone(), state.clone());
        let begin = async move {
            let (choices, head) = start(of_stream, &caller, request, held).await?;
            let prompt_ids = choices.prompt_ids().into_iter().map(Some).collect();
            let (include_usage, echo) = (options.include_usage, choices.echoes());
            let chunks = Chunks { head, include_usage, echo, has_logprobs, extras, prompt_ids };
            Ok(stream::chunks(choices, chunks, options))
        };
        return later::stream(&state, &model, journal, stream::error_event, begin).await;
    }
    let (choices, head) = start(state, &caller, request, held).await?;
    let (echo, mut prompt_ids) = (choices.echoes(), choices.prompt_ids());
    let (answers, usage) = choices.collect().await?;
    let choice = |(index, mut answer): (usize, Answer)| {
        // Without an echo, the prompt is no part of the text.
        let prompt = scores_prompt.then(|| std::mem::take(&mut answer.prompt));
        let echo = echo.get(index).map_or("", String::as_str);
        let logprobs = has_logprobs.then(|| {
            let mut logprobs = CompletionLogprobs::default();
            logprobs.extend(answer.prompt, 0);
            logprobs.extend(answer.shown.tokens, echo.chars().count());
            logprobs
        });
        CompletionChoice {
            index,
            text: format!("{echo}{}", answer.shown.text),
            logprobs,
            finish_reason: Some(finish_reason(answer.reason).into()),
            stop_reason: extras.stop_reason(answer.stop),
            token_ids: extras.ids(answer.ids),
            prompt_token_ids: prompt_ids.get_mut(index).map(std::mem::take),
            prompt_logprobs: prompt.map(|prompt| prompt_logprobs(&prompt)),
        }
    };
    let choices = answers.into_iter().enumerate().map(choice).collect();
    let Head { id, created, model, fingerprint } = head;
    let (object, usage) = ("text_completion".into(), Some(Some(usage.into())));
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

/// Starts the choices of a request once its model is there.
async fn start(state: web::Data<AppState>, caller: &Caller, request: Completions, held: Arc<Held>) -> Result<(Choices, Head), ApiError> {
    let model = caller.model(&state, &request.model).await?;
    let head = Head::new("cmpl", &model);
    let Completions { prompts, options, names, num_choices, best_of, .. } = request;
    let (tenant, journal) = (caller.tenant.clone(), caller.journal.clone());
    let ask = Ask { model, prompts, options, num_choices, best_of, names, held, tenant, journal };
    Ok((choices::start(state, ask).await?, head))
}

struct Chunks {
    head: Head,
    include_usage: bool,
    /// Each choice's prompt. Empty without `echo`.
    echo: Vec<String>,
    has_logprobs: bool,
    extras: Extras,
    /// Each choice's prompt as ids, until its first chunk. Empty unless the request wants them.
    prompt_ids: Vec<Option<Vec<u32>>>,
}

impl Chunks {
    fn chunk(&self, choices: Vec<CompletionChoice>, usage: Option<Usage>) -> Completion {
        let Head { id, created, model, fingerprint } = self.head.clone();
        let (object, usage) = ("text_completion".into(), self.include_usage.then_some(usage));
        Completion { id, object, created, model, choices, system_fingerprint: fingerprint, usage, obfuscation: None }
    }

    fn choice(&self, index: usize, text: String, finish_reason: Option<String>) -> Completion {
        self.chunk(vec![CompletionChoice { index, text, finish_reason, ..CompletionChoice::default() }], None)
    }

    /// A text and its tokens, which follow `shift` characters.
    fn text_with(&self, index: usize, text: String, tokens: Vec<TokenLogprob>, shift: usize) -> Completion {
        let logprobs = self.has_logprobs.then(|| {
            let mut logprobs = CompletionLogprobs::default();
            logprobs.extend(tokens, shift);
            logprobs
        });
        self.chunk(vec![CompletionChoice { index, text, logprobs, ..CompletionChoice::default() }], None)
    }
}

impl ChunkFormat for Chunks {
    type Chunk = Completion;

    fn first(&self, index: usize) -> Option<Completion> {
        // With log-probabilities, the echo comes in the chunk of the prompt's tokens.
        self.echo.get(index).filter(|_| !self.has_logprobs).map(|echo| self.choice(index, echo.clone(), None))
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

    fn end(&self, index: usize, end: End) -> Completion {
        let mut chunk = self.choice(index, String::new(), Some(finish_reason(end.reason).into()));
        chunk.choices[0].stop_reason = self.extras.stop_reason(end.stop);
        chunk
    }

    fn complete(&mut self, index: usize, chunk: &mut Completion, note: Option<Note>) {
        if let Some(choice) = chunk.choices.first_mut() {
            chunk.obfuscation = self.extras.obfuscation(choice.text.len());
            choice.prompt_token_ids = self.prompt_ids.get_mut(index).and_then(Option::take);
            choice.token_ids = self.extras.ids(note.as_ref().map(|note| note.ids.clone()).unwrap_or_default());
        }
        if self.extras.counts {
            chunk.usage = note.map(|note| Some(note.usage)).or(chunk.usage);
        }
    }

    fn usage(&self, usage: Usage) -> Completion {
        self.chunk(Vec::new(), Some(usage))
    }
}
