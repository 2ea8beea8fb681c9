//! `POST /api/generate`

use std::sync::Arc;
use std::time::Instant;

use actix_web::{HttpRequest, HttpResponse, web};

use super::answer_part::AnswerPart;
use super::body::Body;
use super::convert::common::Think;
use super::convert::generate::{ChatTurn, Generate, Kind};
use super::convert::{self, common::Common};
use super::load_requests::load_or_unload;
use super::models::now;
use super::names;
use super::start::{self, answer, set_effort};
use super::stream::AnswerFormat;
use super::timing::Timings;
use super::types::common::{End, ErrorBody};
use super::types::generate::{GenerateRequest, Generated};
use chat::{Conversation, Ending, Message, Part, Role};
use create::TemplateText;
use http::caller::Caller;
use http::client_stream;
use http::error::ApiError;
use http::state::{AppState, off_loop};
use serving::{Around, Model, Options, Prompt, ResponseRequest};

/// Answer or continue a text, as Ollama does
///
/// The response is a stream of `OllamaGenerate` objects, one per line, unless `stream` is false. A request without a prompt loads the
/// model.
#[utoipa::path(post, path = "/api/generate", operation_id = "ollamaGenerate", tag = "ollama", request_body = GenerateRequest, responses(
    (status = 200, description = "the answer", content((Generated = "application/json"), (Generated = "application/x-ndjson"))),
    (status = 400, description = "a field is wrong, or the context is too short", body = ErrorBody),
    (status = 404, description = "the model is unknown", body = ErrorBody),
    (status = 429, description = "the queue is full", body = ErrorBody),
    (status = 503, description = "the model cannot be loaded now, or the server is shutting down", body = ErrorBody)))]
pub async fn create(state: web::Data<AppState>, http: HttpRequest, body: Body) -> Result<HttpResponse, ApiError> {
    let (began, limits) = (Instant::now(), state.limits());
    let (request, held) = body.0.read(&convert::schemas::GENERATES, move |value| convert::generate::parse(value, &limits)).await?;
    let Generate { common, prompt, kind } = request;
    let has_logprobs = common.settings.options.logprobs.is_some();
    let mut words = GenerateFormat { model: common.model.clone(), has_logprobs, told: None, answer: String::new(), context: None };
    if kind == Kind::Empty {
        let end = load_or_unload(&state, &http, &common, began).await?;
        return Ok(HttpResponse::Ok().json(words.object(AnswerPart::default(), Some(end))));
    }
    let (caller, Common { model: name, mut settings, think, keep, stream }) = (Caller::of(&http), common);
    let model = start::model(&state, &http, &caller, &name, keep).await?;
    settings.log_differences(&model);
    let (model, prompt, told) = prepared(model, prompt, kind, think, &mut settings.options).await?;
    words.told = told;
    let clock = Timings::new(began, caller.journal.clone());
    let asked = ResponseRequest::new(model, prompt, settings.options);
    let response = client_stream::start(state.clone(), &caller, asked, names::GENERATE, held).await?;
    answer(&state, response, clock, words, stream).await
}

/// The parts of the next request's context, apart from the answer.
struct ContextParts {
    model: Arc<Model>,
    /// This request's own context.
    before: Vec<u32>,
    prompt: Prompt,
}

/// Returns the model, the prompt in the form that it takes, and the parts of the next context.
async fn prepared(
    model: Arc<Model>,
    text: String,
    kind: Kind,
    think: Option<Think>,
    options: &mut Options,
) -> Result<(Arc<Model>, Prompt, Option<ContextParts>), ApiError> {
    let turn = match kind {
        Kind::ChatTurn(turn) => turn,
        _ if think.as_ref().is_some_and(|think| *think != Think::Switch(false)) => {
            return Err(ApiError::field("think", "`think` is not allowed without a chat template: leave `raw` and `suffix` out"));
        }
        Kind::Infill(suffix) => {
            return Ok((model, Prompt::Infill { prefix: text, suffix: suffix.into(), around: Around::default() }, None));
        }
        Kind::Raw | Kind::Empty => return Ok((model, Prompt::Text(text), None)),
    };
    let ChatTurn { system, template, context: before, images } = turn;
    let model = match template {
        Some(template) => with_template(model, template).await?,
        None => model,
    };
    if model.only_continues || model.template.is_none() {
        if !images.is_empty() {
            let message = "`images` are not possible: the model has no chat template, which says where pictures stand";
            return Err(ApiError::unsupported("images", message));
        }
        return plain(model, text, system, before).await;
    }
    let system = system.map(|text| Message::of_text(Role::System, text));
    let text = (!text.is_empty() || images.is_empty()).then_some(Part::Text(text));
    let asked = Message { parts: images.into_iter().chain(text).collect(), ..Message::new(Role::User) };
    let messages = system.into_iter().chain([asked]).collect();
    let mut conversation = Conversation { messages, ..Conversation::default() };
    set_effort(&model, think, &mut conversation)?;
    options.prefix.clone_from(&before);
    let prompt = Prompt::Chat(conversation);
    Ok((model.clone(), prompt.clone(), Some(ContextParts { model, before, prompt })))
}

/// Returns the model with the template that a request brings.
async fn with_template(model: Arc<Model>, source: String) -> Result<Arc<Model>, ApiError> {
    let make = move || {
        let template = TemplateText::new(&source)?;
        model.with_template(&template.jinja).map_err(|error| error.to_string())
    };
    off_loop(make).await?.map_err(|error| ApiError::field("template", format!("`template`: {error}")))
}

/// Makes a prompt for a model without a chat template, which continues texts.
async fn plain(
    model: Arc<Model>,
    text: String,
    system: Option<String>,
    before: Vec<u32>,
) -> Result<(Arc<Model>, Prompt, Option<ContextParts>), ApiError> {
    if system.is_some() {
        let message = format!("`system`: the model `{}` continues texts: it takes no system message", model.id);
        return Err(ApiError::field("system", message));
    }
    let told = |prompt: Prompt, before: Vec<u32>| Some(ContextParts { model: model.clone(), before, prompt });
    if before.is_empty() {
        let prompt = Prompt::Text(text);
        return Ok((model.clone(), prompt.clone(), told(prompt, before)));
    }
    let of = model.clone();
    let ids = off_loop(move || serving::tokenize(&of, &text, false)).await?.map_err(|error| names::GENERATE.request_error(&error))?;
    let prompt = Prompt::Ids([before, ids].concat());
    Ok((model.clone(), prompt.clone(), told(prompt, Vec::new())))
}

impl ContextParts {
    /// Returns the ids of the conversation including the answer.
    fn context(self, answer: String) -> Option<Vec<u32>> {
        let Self { model, before, prompt } = self;
        match prompt {
            Prompt::Chat(mut conversation) => {
                conversation.messages.push(Message::of_text(Role::Assistant, answer));
                conversation.ending = Ending::ClosedTurn;
                // Ids cannot stand for a picture.
                let tokens = serving::tokenize_behind(&model, &before, &conversation).ok()?;
                (tokens.count == tokens.ids.len()).then_some(tokens.ids)
            }
            Prompt::Text(text) => serving::tokenize(&model, &(text + &answer), true).ok(),
            Prompt::Ids(ids) => serving::tokenize(&model, &answer, false).ok().map(|answer| [ids, answer].concat()),
            Prompt::Infill { .. } => None,
        }
    }
}

struct GenerateFormat {
    /// The model's name as the request gives it.
    model: String,
    has_logprobs: bool,
    /// The parts of the next context. `None` if the answer returns no context.
    told: Option<ContextParts>,
    answer: String,
    context: Option<Vec<u32>>,
}

impl AnswerFormat for GenerateFormat {
    type Object = Generated;

    fn hear(&mut self, said: &AnswerPart) {
        if self.told.is_some() {
            self.answer.push_str(&said.text);
        }
    }

    async fn finish(&mut self) {
        let Some(told) = self.told.take() else { return };
        let answer = std::mem::take(&mut self.answer);
        self.context = off_loop(move || told.context(answer)).await.ok().flatten();
    }

    fn object(&mut self, said: AnswerPart, end: Option<End>) -> Generated {
        Generated {
            model: self.model.clone(),
            created_at: now(),
            response: said.text,
            thinking: Some(said.thinking).filter(|text| !text.is_empty()),
            done: end.is_some(),
            context: self.context.take(),
            logprobs: Some(said.logprobs).filter(|logprobs| self.has_logprobs && !logprobs.is_empty()),
            end: end.unwrap_or_default(),
        }
    }
}
