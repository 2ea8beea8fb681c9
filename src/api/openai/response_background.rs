//! Responses that are made in the background: the client gets an answer at once, and asks for the rest later.

use std::sync::Arc;

use actix_web::{HttpResponse, rt, web};
use serde_json::{Value, json};
use uuid::Uuid;

use super::convert::responses::Responses;
use super::disk::now;
use super::error::response_code;
use super::live::Live;
use super::response_draft::{Draft, value};
use super::response_events::{Streamed, whole_event};
use super::response_start::{start, with_earlier};
use super::shelves::Shelves;
use super::store::{Stored, named};
use super::stream;
use crate::http::budget::Held;
use crate::http::caller::Caller;
use crate::http::error::ApiError;
use crate::http::head::Head;
use crate::http::sse::FRAMING;
use crate::http::state::AppState;
use crate::http::stream::{Frames, respond};

/// Begins a response and leaves it to itself.
pub fn begin(
    state: web::Data<AppState>,
    shelves: web::Data<Shelves>,
    caller: Caller,
    request: Responses,
    held: Arc<Held>,
) -> Result<HttpResponse, ApiError> {
    // What is wrong by now is refused by now.
    caller.tenant.check_model(&state.registry, &request.model)?;
    with_earlier(&shelves, caller.tenant.name(), Vec::new(), &request.settings)?;
    let model = state.registry.id(&request.model).unwrap_or_else(|| request.model.clone());
    let head = Head { id: format!("resp_{}", Uuid::new_v4().simple()), created: now(), model, fingerprint: String::new() };
    let mut draft = Draft::new(head.clone(), request.settings.clone(), false);
    draft.status = "queued";
    let response = value(&draft.object());
    let live = Live::new(response.clone(), request.input.iter().map(named).collect());
    shelves.lives.insert(caller.tenant.name(), &head.id, live.clone())?;
    live.push(whole_event("response.created", &response, 0));
    live.push(whole_event("response.queued", &response, 1));
    let (streams, keep_alive) = (request.stream, state.keep_alive);
    let follower = live.follow(0)?;
    rt::spawn(run(state, shelves, caller, (request, held), (head, live)));
    match streams {
        true => Ok(respond(FRAMING, follower, keep_alive)),
        false => Ok(HttpResponse::Ok().json(response)),
    }
}

/// Makes the response, unless it is cancelled before its end.
async fn run(
    state: web::Data<AppState>,
    shelves: web::Data<Shelves>,
    caller: Caller,
    asked: (Responses, Arc<Held>),
    begun: (Head, Arc<Live>),
) {
    let ((head, live), tenant) = (begun.clone(), caller.tenant.clone());
    let of_work = shelves.clone();
    let work = async move {
        let ((request, held), live) = (asked, begun.1.clone());
        let obfuscates = request.obfuscates;
        let (choices, answer) = start(state, of_work, &caller, request, held, Some(begun)).await?;
        live.set_response(value(&answer.draft.object()));
        let mut frames = stream::frames(choices, Streamed::after(answer, obfuscates, 2));
        while let Some(frame) = frames.next().await {
            live.push(frame);
        }
        Ok::<_, ApiError>(())
    };
    let (status, error): (_, Option<Value>) = tokio::select! {
        done = work => match done {
            Ok(()) => ("", None),
            Err(error) => ("failed", Some(json!({"code": response_code(error.kind), "message": error.message}))),
        },
        () = live.when_cancelled() => ("cancelled", None),
    };
    if !status.is_empty() {
        let failed = error.is_some();
        shelves.responses.insert(tenant.name(), &head.id, ended(&live, status, error));
        if failed {
            live.push(whole_event("response.failed", &live.response(), 2));
        }
    }
    shelves.lives.remove(&head.id);
    live.close();
}

/// What remains of a response that was cancelled or has failed before it began.
fn ended(live: &Arc<Live>, status: &str, error: Option<Value>) -> Stored {
    let mut response = live.response();
    response["status"] = status.into();
    response["error"] = error.unwrap_or_default();
    response["output"] = json!([]);
    live.set_response(response.clone());
    Stored { response: response.to_string(), live: Some(live.clone()), input: live.input.clone(), ..Stored::default() }
}
