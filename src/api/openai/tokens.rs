//! `POST /tokenize`, `/detokenize` and `/apply-template`, and `GET /tokenizer_info`: prompts as tokens and as text, without a generation.

use std::collections::BTreeMap;
use std::sync::Arc;

use actix_web::{HttpRequest, HttpResponse, web};

use super::convert::tokens::{Pieces, Rendering, Text};
use super::convert::{self, names, schemas};
use super::types::error::ErrorBody;
use super::types::tokens::{
    DetokenizeRequest, DetokenizedText, PromptText, TemplateRequest, TokenOrPiece, TokenizeRequest, TokenizerInfo, Tokens,
};
use chat::Message;
use http::chat_advice::refusal;
use http::error::{ApiError, Kind};
use http::fetched_pictures;
use http::json::JsonBody;
use http::middleware::requested_model;
use http::state::{AppState, off_loop};
use http::tenant::Tenant;
use serving::{self, Model, RequestError};

/// Convert a text or a conversation to token ids
#[utoipa::path(post, path = "/tokenize", operation_id = "tokenize", tag = "tokens", request_body = TokenizeRequest, responses(
    (status = 200, description = "the ids, exactly as a generation request would use them", body = Tokens),
    (status = 400, description = "a field is wrong", body = ErrorBody),
    (status = 404, description = "the model is unknown", body = ErrorBody)))]
pub async fn tokenize(state: web::Data<AppState>, http: HttpRequest, body: JsonBody) -> Result<HttpResponse, ApiError> {
    let limits = state.limits();
    let (mut request, mut held) = body.read(&schemas::TOKENIZES, move |value| convert::tokens::tokenize(value, &limits)).await?;
    let model = named_or_first(&state, &http, request.model.as_deref()).await?;
    if let Text::Chat { conversation, .. } = &mut request.of {
        held = fetched_pictures::fetch(&state, &model, conversation, held).await?;
    }
    let max_model_len = model.context();
    let (names, size) = match &request.of {
        Text::Plain { text, .. } => (names::COMPLETIONS, text.len()),
        Text::Chat { conversation, .. } => (names::CHAT, conversation.messages.iter().map(Message::num_text_bytes).sum()),
    };
    let mut memory = state.bodies.share();
    memory.set(serving::MEMORY_PER_BYTE * size.min(serving::MAX_TEXT))?;
    let work = move || {
        let _memory = (held, memory);
        let (tokens, count) = match request.of {
            Text::Plain { text, add_special } => {
                let ids = serving::tokenize(&model, &text, add_special)?;
                let count = ids.len();
                (ids, count)
            }
            Text::Chat { conversation, template } => {
                let model = model.or_with_template(template.as_deref())?;
                let tokens = serving::tokenize_chat(&model, &conversation)?;
                (tokens.ids, tokens.count)
            }
        };
        let pieces = request.pieces.map(|_| serving::texts_of(&model, &tokens)).unwrap_or_default();
        let whole = |id| TokenOrPiece::Id(id);
        let (tokens, token_strs) = match request.pieces {
            None => (tokens.into_iter().map(whole).collect(), None),
            Some(Pieces::Apart) => (tokens.into_iter().map(whole).collect(), Some(pieces)),
            Some(Pieces::Inside) => (tokens.into_iter().zip(pieces).map(|(id, piece)| TokenOrPiece::Piece { id, piece }).collect(), None),
        };
        Ok(Tokens { count, max_model_len, tokens, token_strs })
    };
    let counted: Result<Tokens, RequestError> = off_loop(work).await?;
    match counted {
        Ok(tokens) => Ok(HttpResponse::Ok().json(tokens)),
        Err(error) => Err(refusal(&state, &Tenant::of(&http), &names, &error).await),
    }
}

/// Returns the named model, or the first one that the key may use. Tools that ask for tokens often name none, since they expect one model
/// per server.
pub async fn named_or_first(state: &web::Data<AppState>, http: &HttpRequest, name: Option<&str>) -> Result<Arc<Model>, ApiError> {
    let name = name_or_first(state, http, name).await?;
    requested_model(state, http, &name).await
}

/// The name, or the id of the first model that the key may use.
pub async fn name_or_first(state: &web::Data<AppState>, http: &HttpRequest, name: Option<&str>) -> Result<String, ApiError> {
    if let Some(name) = name {
        return Ok(name.to_owned());
    }
    let (tenant, registry) = (Tenant::of(http), state.registry.clone());
    let first = move || registry.offered().into_iter().map(|offered| offered.info.id).find(|id| tenant.may_use(&registry, id));
    off_loop(first).await?.ok_or_else(|| ApiError::field("model", "`model` is required: no model is served"))
}

/// Describe the tokenizer, for tools that count tokens themselves
#[utoipa::path(get, path = "/tokenizer_info", operation_id = "tokenizerInfo", tag = "tokens",
    params(("model" = Option<String>, Query, description = "if absent, the first model that the server lists")),
    responses(
        (status = 200, description = "the tokenizer's special tokens and sizes", body = TokenizerInfo),
        (status = 404, description = "the model is unknown", body = ErrorBody)))]
pub async fn info(state: web::Data<AppState>, http: HttpRequest) -> Result<HttpResponse, ApiError> {
    let query = web::Query::<BTreeMap<String, String>>::from_query(http.query_string());
    let query = query.map_err(|_| ApiError::new(Kind::InvalidValue, "the query is not percent-encoded UTF-8"))?;
    let model = named_or_first(&state, &http, query.get("model").map(String::as_str)).await?;
    let text = |id: Option<u32>| id.and_then(|id| model.base.tokenizer.token_text(id)).map(str::to_owned);
    Ok(HttpResponse::Ok().json(TokenizerInfo {
        model: model.id.clone(),
        tokenizer_class: model.base.tokenizer.class().to_owned(),
        bos_token: text(model.base.tokenizer.bos()),
        eos_token: text(model.base.tokenizer.eos()),
        vocab_size: model.base.tokenizer.vocab_size(),
        max_model_len: model.context(),
    }))
}

/// Convert token ids to text
#[utoipa::path(post, path = "/detokenize", operation_id = "detokenize", tag = "tokens", request_body = DetokenizeRequest, responses(
    (status = 200, description = "the text, with the names of control tokens", body = DetokenizedText),
    (status = 400, description = "a field is wrong", body = ErrorBody),
    (status = 404, description = "the model is unknown", body = ErrorBody)))]
pub async fn detokenize(state: web::Data<AppState>, http: HttpRequest, body: JsonBody) -> Result<HttpResponse, ApiError> {
    let ((model, ids), held) = body.read(&schemas::DETOKENIZES, convert::tokens::detokenize).await?;
    let model = named_or_first(&state, &http, model.as_deref()).await?;
    let work = move || {
        let _held = held;
        serving::detokenize(&model, &ids)
    };
    let prompt = off_loop(work).await?.map_err(|error| names::DETOKENIZE.request_error(&error))?;
    Ok(HttpResponse::Ok().json(DetokenizedText { content: prompt.clone(), prompt }))
}

/// Apply the model's chat template to a conversation
#[utoipa::path(post, path = "/apply-template", operation_id = "applyTemplate", tag = "tokens", request_body = TemplateRequest, responses(
    (status = 200, description = "the prompt as text", body = PromptText),
    (status = 400, description = "a field is wrong, or the template refuses the conversation", body = ErrorBody),
    (status = 404, description = "the model is unknown", body = ErrorBody)))]
pub async fn apply_template(state: web::Data<AppState>, http: HttpRequest, body: JsonBody) -> Result<HttpResponse, ApiError> {
    let limits = state.limits();
    let (request, held) = body.read(&schemas::TEMPLATES, move |value| convert::tokens::apply_template(value, &limits)).await?;
    let Rendering { model, conversation, template } = request;
    let model = named_or_first(&state, &http, model.as_deref()).await?;
    let work = move || {
        let _held = held;
        let model = model.or_with_template(template.as_deref())?;
        serving::apply_template(&model, &conversation)
    };
    match off_loop(work).await? {
        Ok(prompt) => Ok(HttpResponse::Ok().json(PromptText { prompt })),
        Err(error) => Err(refusal(&state, &Tenant::of(&http), &names::CHAT, &error).await),
    }
}
