//! `POST /tokenize`, `/detokenize`, `/apply-template`: what a prompt becomes, without a generation.

use actix_web::{HttpMessage, HttpRequest, HttpResponse, web};

use super::convert::{self, request_error};
use super::error::ApiError;
use super::json::JsonBody;
use super::middleware::ModelLabel;
use super::state::{AppState, off_loop};
use super::types::error::ErrorBody;
use super::types::tokens::{DetokenizeRequest, PromptText, TemplateRequest, TokenizeRequest, Tokens};
use crate::serving;

/// The token ids of a text or a conversation
#[utoipa::path(post, path = "/tokenize", operation_id = "tokenize", tag = "tokens", request_body = TokenizeRequest, responses(
    (status = 200, description = "the ids, exactly as a request would have them", body = Tokens),
    (status = 400, description = "a field is wrong", body = ErrorBody),
    (status = 404, description = "the model is unknown", body = ErrorBody)))]
pub async fn tokenize(state: web::Data<AppState>, http: HttpRequest, body: JsonBody) -> Result<HttpResponse, ApiError> {
    let request = convert::tokens::tokenize(&body.0)?;
    let model = state.model(&request.model).await?;
    http.extensions_mut().insert(ModelLabel(model.id.clone()));
    let (source, max_model_len) = (request.source, model.context);
    let work = move || {
        let tokens = serving::tokenize(&model, request.prompt, request.add_special)?;
        let token_strs = request.with_pieces.then(|| serving::pieces(&model, &tokens));
        Ok(Tokens { count: tokens.len(), max_model_len, tokens, token_strs })
    };
    Ok(HttpResponse::Ok().json(off_loop(work).await?.map_err(|error| request_error(error, source))?))
}

/// The text of token ids
#[utoipa::path(post, path = "/detokenize", operation_id = "detokenize", tag = "tokens", request_body = DetokenizeRequest, responses(
    (status = 200, description = "the text, with control tokens by their names", body = PromptText),
    (status = 400, description = "a field is wrong", body = ErrorBody),
    (status = 404, description = "the model is unknown", body = ErrorBody)))]
pub async fn detokenize(state: web::Data<AppState>, http: HttpRequest, body: JsonBody) -> Result<HttpResponse, ApiError> {
    let (model, ids) = convert::tokens::detokenize(&body.0)?;
    let model = state.model(&model).await?;
    http.extensions_mut().insert(ModelLabel(model.id.clone()));
    let prompt = off_loop(move || serving::detokenize(&model, &ids)).await?.map_err(|error| request_error(error, "tokens"))?;
    Ok(HttpResponse::Ok().json(PromptText { prompt }))
}

/// The prompt that a conversation becomes
#[utoipa::path(post, path = "/apply-template", operation_id = "applyTemplate", tag = "tokens", request_body = TemplateRequest, responses(
    (status = 200, description = "what the model's chat template makes of it", body = PromptText),
    (status = 400, description = "a field is wrong, or the template refuses", body = ErrorBody),
    (status = 404, description = "the model is unknown", body = ErrorBody)))]
pub async fn apply_template(state: web::Data<AppState>, http: HttpRequest, body: JsonBody) -> Result<HttpResponse, ApiError> {
    let (model, input) = convert::tokens::apply_template(&body.0)?;
    let model = state.model(&model).await?;
    http.extensions_mut().insert(ModelLabel(model.id.clone()));
    let prompt = off_loop(move || serving::apply_template(&model, input)).await?.map_err(|error| request_error(error, "messages"))?;
    Ok(HttpResponse::Ok().json(PromptText { prompt }))
}
