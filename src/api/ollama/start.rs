//! What every generation begins with: its model, and what that model must agree with.

use std::sync::Arc;

use actix_web::{HttpRequest, HttpResponse, web};

use super::convert::ask::Think;
use super::lines::FRAMING;
use super::said::Said;
use super::stream::{Lines, Words};
use super::timing::Clock;
use chat::{Conversation, REASON, nearest_efforts};
use http::caller::Caller;
use http::choices::Choices;
use http::error::{ApiError, quoted};
use http::state::AppState;
use http::stream::respond;
use registry::Keep;
use serving::Model;

/// Whether a request may say how long models stay loaded. With keys, its key must be one that manages models.
pub fn may_keep(state: &AppState, http: &HttpRequest, caller: &Caller) -> bool {
    !state.keys.is_required() || caller.tenant.check_admin(http, true).is_ok()
}

/// The model of a request, which waits for it if it is not loaded.
pub async fn model(
    state: &web::Data<AppState>,
    http: &HttpRequest,
    caller: &Caller,
    name: &str,
    keep: Option<Keep>,
) -> Result<Arc<Model>, ApiError> {
    let model = caller.model(state, name).await?;
    if let Some(keep) = keep.filter(|_| may_keep(state, http, caller)) {
        state.registry.keep(name, keep);
    }
    Ok(model)
}

/// Tells the template how much to reason.
pub fn set_effort(model: &Model, think: Option<Think>, conversation: &mut Conversation) -> Result<(), ApiError> {
    let reasons = model.dialect.as_ref().is_some_and(|dialect| dialect.thinking.is_some());
    conversation.effort = match think {
        None => return Ok(()),
        // Nothing has to be switched off.
        Some(Think::Switch(false)) if !reasons => return Ok(()),
        Some(_) if !reasons => {
            let message = format!("`think`: the model `{}` does not reason before it answers: leave it out", quoted(&model.id));
            return Err(ApiError::field("think", message));
        }
        // A model that nothing switches off reasons.
        Some(Think::Switch(false)) => {
            conversation.or_efforts = Some(Vec::new());
            Some("none".to_owned())
        }
        Some(Think::Switch(true)) => Some(REASON.to_owned()),
        // Where the template has no levels, every level switches reasoning on.
        Some(Think::Level(level)) => {
            conversation.or_efforts = Some(nearest_efforts(&level).into_iter().chain([REASON.to_owned()]).collect());
            Some(level)
        }
    };
    Ok(())
}

/// The answer, as a stream of lines or as one object.
pub async fn answer<W: Words>(
    state: &AppState,
    choices: Choices,
    clock: Clock,
    mut words: W,
    streams: bool,
) -> Result<HttpResponse, ApiError> {
    if streams {
        return Ok(respond(FRAMING, Lines::new(choices, clock, words), state.keep_alive));
    }
    let (answers, counts) = choices.collect().await?;
    let answer = answers.into_iter().next().unwrap_or_default();
    let reason = answer.reason;
    let said = Said::of(answer);
    words.hear(&said);
    words.finish().await;
    Ok(HttpResponse::Ok().json(words.object(said, Some(clock.end(reason, counts)))))
}
