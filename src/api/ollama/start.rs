//! The start of every generation: getting the model, and the checks that depend on the model.

use std::sync::Arc;

use actix_web::{HttpRequest, HttpResponse, web};

use super::answer_part::AnswerPart;
use super::convert::common::Think;
use super::lines::FRAMING;
use super::stream::{AnswerFormat, AnswerLines};
use super::timing::Timings;
use chat::{Conversation, REASON, nearest_efforts};
use http::caller::Caller;
use http::client_stream::ClientStream;
use http::error::{ApiError, quoted};
use http::response_frames::frames;
use http::state::AppState;
use http::stream::respond;
use registry::KeepAlive;
use serving::Model;

/// Whether a request may say how long models stay loaded. If the server has keys, the request's key must be one that may manage models.
pub fn may_keep(state: &AppState, http: &HttpRequest, caller: &Caller) -> bool {
    !state.keys.is_required() || caller.tenant.check_admin(http, true).is_ok()
}

/// Returns the model of a request, and waits for its load if necessary.
pub async fn model(
    state: &web::Data<AppState>,
    http: &HttpRequest,
    caller: &Caller,
    name: &str,
    keep: Option<KeepAlive>,
) -> Result<Arc<Model>, ApiError> {
    let model = caller.model(state, name).await?;
    if let Some(keep) = keep.filter(|_| may_keep(state, http, caller)) {
        state.registry.keep(name, keep);
    }
    Ok(model)
}

/// Sets how much the template makes the model reason.
pub fn set_effort(model: &Model, think: Option<Think>, conversation: &mut Conversation) -> Result<(), ApiError> {
    let reasons = model.dialect.as_ref().is_some_and(|dialect| dialect.thinking.is_some());
    conversation.effort = match think {
        None => return Ok(()),
        // The model does not reason, so there is nothing to switch off.
        Some(Think::Switch(false)) if !reasons => return Ok(()),
        Some(_) if !reasons => {
            let message = format!("`think`: the model `{}` does not reason before it answers: leave it out", quoted(&model.id));
            return Err(ApiError::field("think", message));
        }
        // A model whose reasoning cannot be switched off reasons anyway.
        Some(Think::Switch(false)) => {
            conversation.or_efforts = Some(Vec::new());
            Some("none".to_owned())
        }
        Some(Think::Switch(true)) => Some(REASON.to_owned()),
        // If the template has no levels, every level switches reasoning on.
        Some(Think::Level(level)) => {
            conversation.or_efforts = Some(nearest_efforts(&level).into_iter().chain([REASON.to_owned()]).collect());
            Some(level)
        }
    };
    Ok(())
}

/// Sends the answer as a stream of lines or as one object.
pub async fn answer<W: AnswerFormat>(
    state: &AppState,
    response: ClientStream,
    clock: Timings,
    mut words: W,
    streams: bool,
) -> Result<HttpResponse, ApiError> {
    if streams {
        return Ok(respond(FRAMING, frames(response, AnswerLines::new(clock, words)), state.keep_alive));
    }
    let answers = response.collect().await?;
    let answer = answers.into_iter().next().unwrap_or_default();
    let reason = answer.reason;
    let said = AnswerPart::of(answer);
    words.hear(&said);
    words.finish().await;
    Ok(HttpResponse::Ok().json(words.object(said, Some(clock.end(reason)))))
}
