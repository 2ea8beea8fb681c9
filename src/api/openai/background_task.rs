//! The tasks that make background responses. The client gets an answer at once and fetches the result later.

use std::sync::Arc;

use actix_web::{HttpResponse, rt, web};
use serde_json::{Value, json};
use uuid::Uuid;

use super::background_responses::BackgroundResponse;
use super::convert::responses::Responses;
use super::disk::now;
use super::error::response_code;
use super::response_builder::{ResponseBuilder, value};
use super::response_events::{ResponseEvents, whole_event};
use super::response_start::{check_earlier, start};
use super::response_store::{StoredResponse, named};
use super::stores::Stores;
use http::caller::Caller;
use http::error::{ApiError, Kind};
use http::memory_budget::MemoryPermit;
use http::response_frames::frames;
use http::response_head::ResponseHead;
use http::sse::FRAMING;
use http::state::AppState;
use http::stream::{Frames, respond};
use http::tenant::Tenant;
use keys::InFlight;

/// Starts a background response and answers the request.
pub fn begin(
    state: web::Data<AppState>,
    stores: web::Data<Stores>,
    caller: Caller,
    request: Responses,
    held: Arc<MemoryPermit>,
) -> Result<HttpResponse, ApiError> {
    // Errors that can be detected now are reported now.
    caller.tenant.check_model(&state.registry, &request.model)?;
    check_earlier(&stores, caller.tenant.name(), &request.settings)?;
    let model = state.registry.id(&request.model).unwrap_or_else(|| request.model.clone());
    let head = ResponseHead { id: format!("resp_{}", Uuid::new_v4().simple()), created: now(), model, fingerprint: String::new() };
    let mut draft = ResponseBuilder::new(head.clone(), request.settings.clone(), false);
    draft.status = "queued";
    let response = value(&draft.object());
    let background = BackgroundResponse::new(response.to_string(), request.input.iter().map(named).collect());
    stores.background.insert(caller.tenant.name(), &head.id, background.clone())?;
    background.push(whole_event("response.created", &response, 0));
    background.push(whole_event("response.queued", &response, 1));
    let (streams, keep_alive) = (request.stream, state.keep_alive);
    let follower = background.follow(0)?;
    let (tenant, _in_flight) = (caller.tenant.clone(), caller.journal.take_in_flight());
    let running = BackgroundTask { stores, tenant, head, background, _in_flight };
    rt::spawn(run(state, caller, (request, held), running));
    match streams {
        true => Ok(respond(FRAMING, follower, keep_alive)),
        false => Ok(HttpResponse::Ok().json(response)),
    }
}

/// Makes the response, unless it is cancelled first.
async fn run(state: web::Data<AppState>, caller: Caller, asked: (Responses, Arc<MemoryPermit>), running: BackgroundTask) {
    let (stores, begun) = (running.stores.clone(), (running.head.clone(), running.background.clone()));
    let work = async move {
        let ((request, held), background) = (asked, begun.1.clone());
        let obfuscates = request.obfuscates;
        let (response, answer) = start(state, stores, &caller, request, held, Some(begun)).await?;
        background.set_response(value(&answer.draft.object()).to_string());
        let mut frames = frames(response, ResponseEvents::new(answer, caller.journal.ledger(), obfuscates, 2));
        while let Some(next) = frames.next().await {
            next.into_iter().for_each(|frame| background.push(frame));
        }
        Ok::<_, ApiError>(())
    };
    tokio::select! {
        done = work => {
            if let Err(error) = done {
                running.end("failed", Some(&error));
            }
        }
        () = running.background.when_cancelled() => running.end("cancelled", None),
    }
}

/// A running background response. Dropping it ends the response, even after a panic.
struct BackgroundTask {
    stores: web::Data<Stores>,
    tenant: Tenant,
    head: ResponseHead,
    background: Arc<BackgroundResponse>,
    /// Counts the response against the limits of its key until it has ended.
    _in_flight: Option<InFlight>,
}

impl BackgroundTask {
    /// Ends the response early. A response that has already ended is not changed.
    fn end(&self, status: &str, error: Option<&ApiError>) {
        // The server wrote this text itself, so parsing it cannot fail.
        let mut response: Value = serde_json::from_str(&self.background.response()).unwrap_or_default();
        if !matches!(response["status"].as_str(), Some("queued" | "in_progress")) {
            return;
        }
        response["status"] = status.into();
        response["error"] = error.map_or(Value::Null, |error| json!({"code": response_code(error.kind), "message": error.message}));
        response["output"] = json!([]);
        self.background.set_response(response.to_string());
        let (background, input) = (Some(self.background.clone()), self.background.input.clone());
        let stored = StoredResponse { response: response.to_string(), background, input, ..StoredResponse::default() };
        self.stores.responses.insert(self.tenant.name(), &self.head.id, stored);
        if error.is_some() {
            self.background.push(whole_event("response.failed", &response, self.background.num_events()));
        }
    }
}

impl Drop for BackgroundTask {
    fn drop(&mut self) {
        self.end("failed", Some(&ApiError::new(Kind::Internal, "an internal error occurred")));
        self.stores.background.remove(&self.head.id);
        self.background.close();
        // The last events came after the response was stored, so its size has changed.
        self.stores.responses.measure(self.tenant.name(), &self.head.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::{Config, ConfigSources, Overrides};

    #[actix_web::test]
    async fn a_response_whose_task_panics_has_failed_and_leaves_its_place() {
        let env = vec![("HOME".to_owned(), "/nowhere".to_owned())];
        let config = Config::load_from(&ConfigSources { env, ..Default::default() }, &Overrides::default()).unwrap();
        let stores = web::Data::new(Stores::new(&config));
        let head = ResponseHead { id: "resp_1".into(), created: 0, model: "m".into(), fingerprint: String::new() };
        let background = BackgroundResponse::new(json!({"id": "resp_1", "status": "in_progress"}).to_string(), Vec::new());
        stores.background.insert("", "resp_1", background.clone()).unwrap();
        let running =
            BackgroundTask { stores: stores.clone(), tenant: Tenant::default(), head, background: background.clone(), _in_flight: None };
        let task = rt::spawn(async move {
            let _running = running;
            panic!("as a fault of the program");
        });
        assert!(task.await.is_err());
        background.end_now().await.unwrap();
        assert!(stores.background.get("", "resp_1").is_none());
        let stored = stores.responses.get("", "resp_1").unwrap();
        let response: Value = serde_json::from_str(&stored.response).unwrap();
        assert_eq!((&response["status"], &response["error"]["code"]), (&json!("failed"), &json!("server_error")));
        let mut events = background.follow(0).unwrap();
        assert!(events.next().await.is_some() && events.next().await.is_none());
    }
}
