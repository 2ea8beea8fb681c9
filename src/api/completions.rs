//! `POST /v1/completions`

use std::sync::Arc;

use actix_web::{HttpMessage, HttpRequest, HttpResponse, web};

use super::choices;
use super::convert;
use super::error::ApiError;
use super::head::Head;
use super::json::JsonBody;
use super::middleware::ModelLabel;
use super::sse::{self, Dialect};
use super::state::{AppState, off_loop};
use super::types::completions::{Completion, CompletionChoice, CompletionRequest};
use super::types::error::ErrorBody;
use super::types::usage::Usage;
use crate::registry::LoadedModel;
use crate::serving::Prompt;

/// Continue a text
///
/// Each prompt is a choice of its own. With `stream` the answer is a stream of `Completion` events that ends with `data: [DONE]`.
#[utoipa::path(post, path = "/v1/completions", operation_id = "createCompletion", tag = "generation", request_body = CompletionRequest, responses(
    (status = 200, description = "the text", content((Completion = "application/json"), (Completion = "text/event-stream"))),
    (status = 400, description = "a field is wrong, or the context is too short", body = ErrorBody),
    (status = 404, description = "the model is unknown", body = ErrorBody),
    (status = 429, description = "the queue is full", body = ErrorBody),
    (status = 503, description = "the model is loading, or the server is shutting down", body = ErrorBody)))]
pub async fn create(state: web::Data<AppState>, http: HttpRequest, body: JsonBody) -> Result<HttpResponse, ApiError> {
    let request = convert::completions::parse(&body.0, &state.limits)?;
    let model = state.model(&request.model).await?;
    http.extensions_mut().insert(ModelLabel(model.id.clone()));
    let texts = if request.echo { Some(request.prompts.clone()) } else { None };
    let (choices, ids) = choices::start(state, model.clone(), request.prompts, request.options, "prompt").await?;
    let echo = match texts {
        Some(prompts) => echoes(model.clone(), prompts, ids).await?,
        None => Vec::new(),
    };
    let head = Head::new("cmpl", &model.id);
    if let Some(options) = request.stream {
        return Ok(sse::respond(choices, Chunks { head, include_usage: options.include_usage, echo }, options.include_usage));
    }
    let (answers, usage) = choices.collect().await?;
    let choice = |(index, (text, reason)): (usize, (String, &str))| {
        let echo = echo.get(index).map_or("", String::as_str);
        CompletionChoice { index, text: format!("{echo}{text}"), logprobs: None, finish_reason: Some(reason.into()) }
    };
    let choices = answers.into_iter().enumerate().map(choice).collect();
    let Head { id, created, model } = head;
    Ok(HttpResponse::Ok().json(Completion { id, object: "text_completion".into(), created, model, choices, usage: Some(Some(usage)) }))
}

/// The prompts as text: as they were given, or decoded from ids.
async fn echoes(model: Arc<LoadedModel>, prompts: Vec<Prompt>, ids: Vec<Vec<u32>>) -> Result<Vec<String>, ApiError> {
    off_loop(move || {
        let text = |(prompt, ids): (Prompt, Vec<u32>)| match prompt {
            Prompt::Text(text) => text,
            Prompt::Ids(_) | Prompt::Chat(_) => model.tokenizer.decode(&ids, true),
        };
        prompts.into_iter().zip(ids).map(text).collect()
    })
    .await
}

struct Chunks {
    head: Head,
    include_usage: bool,
    /// Each choice's prompt; empty without `echo`.
    echo: Vec<String>,
}

impl Chunks {
    fn chunk(&self, choices: Vec<CompletionChoice>, usage: Option<Usage>) -> Completion {
        let Head { id, created, model } = self.head.clone();
        let usage = self.include_usage.then_some(usage);
        Completion { id, object: "text_completion".into(), created, model, choices, usage }
    }

    fn choice(&self, index: usize, text: String, finish_reason: Option<String>) -> Completion {
        self.chunk(vec![CompletionChoice { index, text, logprobs: None, finish_reason }], None)
    }
}

impl Dialect for Chunks {
    type Chunk = Completion;

    fn first(&self, index: usize) -> Option<Completion> {
        self.echo.get(index).map(|echo| self.choice(index, echo.clone(), None))
    }

    fn text(&self, index: usize, text: String) -> Completion {
        self.choice(index, text, None)
    }

    fn finish(&self, index: usize, reason: &'static str) -> Completion {
        self.choice(index, String::new(), Some(reason.into()))
    }

    fn usage(&self, usage: Usage) -> Completion {
        self.chunk(Vec::new(), Some(usage))
    }
}
