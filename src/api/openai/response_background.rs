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
use super::response_start::{check_earlier, start};
use super::shelves::Shelves;
use super::store::{Stored, named};
use super::stream;
use http::budget::Held;
use http::caller::Caller;
use http::error::{ApiError, Kind};
use http::head::Head;
use http::sse::FRAMING;
use http::state::AppState;
use http::stream::{Frames, respond};
use http::tenant::Tenant;
use keys::InFlight;

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
    check_earlier(&shelves, caller.tenant.name(), &request.settings)?;
    let model = state.registry.id(&request.model).unwrap_or_else(|| request.model.clone());
    let head = Head { id: format!("resp_{}", Uuid::new_v4().simple()), created: now(), model, fingerprint: String::new() };
    let mut draft = Draft::new(head.clone(), request.settings.clone(), false);
    draft.status = "queued";
    let response = value(&draft.object());
    let live = Live::new(response.to_string(), request.input.iter().map(named).collect());
    shelves.lives.insert(caller.tenant.name(), &head.id, live.clone())?;
    live.push(whole_event("response.created", &response, 0));
    live.push(whole_event("response.queued", &response, 1));
    let (streams, keep_alive) = (request.stream, state.keep_alive);
    let follower = live.follow(0)?;
    let (tenant, _in_flight) = (caller.tenant.clone(), caller.journal.take_in_flight());
    let running = Running { shelves, tenant, head, live, _in_flight };
    rt::spawn(run(state, caller, (request, held), running));
    match streams {
        true => Ok(respond(FRAMING, follower, keep_alive)),
        false => Ok(HttpResponse::Ok().json(response)),
    }
}

/// Makes the response, unless it is cancelled before its end.
async fn run(state: web::Data<AppState>, caller: Caller, asked: (Responses, Arc<Held>), running: Running) {
    let (shelves, begun) = (running.shelves.clone(), (running.head.clone(), running.live.clone()));
    let work = async move {
        let ((request, held), live) = (asked, begun.1.clone());
        let obfuscates = request.obfuscates;
        let (choices, answer) = start(state, shelves, &caller, request, held, Some(begun)).await?;
        live.set_response(value(&answer.draft.object()).to_string());
        let mut frames = stream::frames(choices, Streamed::after(answer, obfuscates, 2));
        while let Some(frame) = frames.next().await {
            live.push(frame);
        }
        Ok::<_, ApiError>(())
    };
    tokio::select! {
        done = work => {
            if let Err(error) = done {
                running.end("failed", Some(&error));
            }
        }
        () = running.live.when_cancelled() => running.end("cancelled", None),
    }
}

/// A response in the background. Dropping it ends it, even if what makes it has panicked.
struct Running {
    shelves: web::Data<Shelves>,
    tenant: Tenant,
    head: Head,
    live: Arc<Live>,
    /// It counts against the limits of its key until it ends.
    _in_flight: Option<InFlight>,
}

impl Running {
    /// Ends the response before its time. One that has come to its end stays as it is.
    fn end(&self, status: &str, error: Option<&ApiError>) {
        // The server itself wrote the text.
        let mut response: Value = serde_json::from_str(&self.live.response()).unwrap_or_default();
        if !matches!(response["status"].as_str(), Some("queued" | "in_progress")) {
            return;
        }
        response["status"] = status.into();
        response["error"] = error.map_or(Value::Null, |error| json!({"code": response_code(error.kind), "message": error.message}));
        response["output"] = json!([]);
        self.live.set_response(response.to_string());
        let (live, input) = (Some(self.live.clone()), self.live.input.clone());
        let stored = Stored { response: response.to_string(), live, input, ..Stored::default() };
        self.shelves.responses.insert(self.tenant.name(), &self.head.id, stored);
        if error.is_some() {
            self.live.push(whole_event("response.failed", &response, self.live.num_events()));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end("failed", Some(&ApiError::new(Kind::Internal, "an internal error occurred")));
        self.shelves.lives.remove(&self.head.id);
        self.live.close();
        // Its last events came after it was stored.
        self.shelves.responses.measure(self.tenant.name(), &self.head.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::{Config, Overrides, Surroundings};

    #[actix_web::test]
    async fn a_response_whose_task_panics_has_failed_and_leaves_its_place() {
        let env = vec![("HOME".to_owned(), "/nowhere".to_owned())];
        let config = Config::load_from(&Surroundings { env, ..Default::default() }, &Overrides::default()).unwrap();
        let shelves = web::Data::new(Shelves::new(&config));
        let head = Head { id: "resp_1".into(), created: 0, model: "m".into(), fingerprint: String::new() };
        let live = Live::new(json!({"id": "resp_1", "status": "in_progress"}).to_string(), Vec::new());
        shelves.lives.insert("", "resp_1", live.clone()).unwrap();
        let running = Running { shelves: shelves.clone(), tenant: Tenant::default(), head, live: live.clone(), _in_flight: None };
        let task = rt::spawn(async move {
            let _running = running;
            panic!("as a fault of the program");
        });
        assert!(task.await.is_err());
        live.end_now().await.unwrap();
        assert!(shelves.lives.get("", "resp_1").is_none());
        let stored = shelves.responses.get("", "resp_1").unwrap();
        let response: Value = serde_json::from_str(&stored.response).unwrap();
        assert_eq!((&response["status"], &response["error"]["code"]), (&json!("failed"), &json!("server_error")));
        let mut events = live.follow(0).unwrap();
        assert!(events.next().await.is_some() && events.next().await.is_none());
    }
}
