//! One line of a batch, from its wait to its answer.

use std::fs::File;
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::time::sleep;
use uuid::Uuid;

use super::super::types::batches::{BatchLine, LineError, LineResponse};
use super::inside::Reply;
use super::lines::Task;
use super::state::Batch;
use super::workshop::{RETRY, Workshop, blocking};
use http::error::{ApiError, Kind};
use http::journal::Journal;
use http::tenant::Tenant;

/// A line that has ended.
pub struct Done {
    pub line: BatchLine,
    pub has_failed: bool,
}

/// What has come of a line's turn.
enum Turn {
    Ended(Reply),
    /// It did not run, and never will.
    Refused(ApiError),
    /// It may run after so long.
    Later(Duration),
}

/// The tenant of a batch, if it may still do what it did when it made the batch.
pub fn tenant(shop: &Workshop, batch: &Batch) -> Result<Tenant, ApiError> {
    let Some(name) = &batch.key else { return Ok(Tenant::default().of_batch()) };
    let key = shop.state.keys.named(name).filter(|key| *key.tenant == *batch.tenant);
    let key = key.ok_or_else(|| ApiError::new(Kind::Unauthorized, "the key that the batch was made with was revoked"))?;
    Ok(Tenant::with_key(key).of_batch())
}

/// Runs a line to its end. While it waits, it holds neither a place nor its text, so that it keeps up nobody else's.
pub async fn run(shop: Rc<Workshop>, batch: Batch, task: Task) -> Done {
    let id = request_id();
    let public_id = id.replacen("batch_req", "req", 1);
    loop {
        match turn(&shop, &batch, &task, &public_id).await {
            Turn::Ended(reply) if reply.error.as_ref().is_some_and(|error| is_passing(error.kind)) => sleep(RETRY).await,
            Turn::Later(wait) => sleep(wait).await,
            Turn::Ended(Reply { status, body, error }) => {
                let response = LineResponse { status_code: status, request_id: public_id, body };
                return Done {
                    line: BatchLine { id, custom_id: task.custom_id, response: Some(response), error: None },
                    has_failed: error.is_some(),
                };
            }
            Turn::Refused(error) => return never_run(task.custom_id, error.kind.code(), &error.message),
        }
    }
}

/// A line's turn, with one of the places for lines that run at once. `id`: of its request.
async fn turn(shop: &Workshop, batch: &Batch, task: &Task, id: &str) -> Turn {
    let _place = shop.places.take(&batch.tenant).await;
    let tenant = match tenant(shop, batch) {
        Ok(tenant) => tenant,
        Err(error) => return Turn::Refused(error),
    };
    let _in_flight = match tenant.begin(Instant::now()) {
        Ok(in_flight) => in_flight,
        Err(refusal) => return Turn::Later(refusal.retry_after.clamp(Duration::from_millis(50), Duration::from_secs(60))),
    };
    match body(shop, batch, task).await {
        Ok(Some(json)) => Turn::Ended(answer(shop, &batch.object.endpoint, json, tenant, id).await),
        Ok(None) => Turn::Refused(ApiError::new(Kind::BrokenBody, "the line cannot be read any more")),
        // The process may have too many open files.
        Err(_) => Turn::Later(RETRY),
    }
}

/// What the endpoint answers to a line. A line that is tried again has its line in the log once it has succeeded or failed for good.
async fn answer(shop: &Workshop, endpoint: &str, json: Vec<u8>, tenant: Tenant, id: &str) -> Reply {
    let journal = Journal::inside(endpoint, id, &tenant);
    let reply = shop.inside.post(endpoint, json, tenant, journal.clone()).await;
    if !reply.error.as_ref().is_some_and(|error| is_passing(error.kind)) {
        journal.conclude(reply.status, reply.error.as_ref());
    }
    reply
}

/// The body of a line as JSON, for its endpoint. `None`: the input does not have it any more.
async fn body(shop: &Workshop, batch: &Batch, task: &Task) -> std::io::Result<Option<Vec<u8>>> {
    let input = shop.room.batches.path(&batch.object.id, "input.jsonl");
    let (task, endpoint) = (task.clone(), batch.object.endpoint.clone());
    let read = move || {
        let mut body = task.body(&File::open(input)?);
        if let Some(body) = body.as_mut().filter(|_| endpoint == "/v1/responses") {
            // Otherwise a batch would displace what its tenant has stored and still continues.
            let store = body.entry("store").or_insert(Value::Null);
            if store.is_null() {
                *store = false.into();
            }
        }
        Ok(body.map(|body| Value::Object(body).to_string().into_bytes()))
    };
    blocking(read).await
}

fn request_id() -> String {
    format!("batch_req_{}", Uuid::new_v4().simple())
}

pub fn never_run(custom_id: String, code: &str, message: &str) -> Done {
    let error = Some(LineError { code: code.into(), message: message.into() });
    Done { line: BatchLine { id: request_id(), custom_id, response: None, error }, has_failed: true }
}

/// Whether a line may succeed later: the model is busy or being loaded, or the server ends.
fn is_passing(kind: Kind) -> bool {
    use Kind::*;
    matches!(kind, RateLimit | QueueFull | QueueTimeout | Overloaded | ModelLoading | ModelNoRoom | Draining | EngineStopped)
}
