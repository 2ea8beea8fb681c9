//! The life of a batch's line, from waiting to its answer.

use std::fs::File;
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::time::sleep;
use uuid::Uuid;

use super::super::types::batches::{BatchLine, LineError, LineResponse};
use super::context::{BatchContext, RETRY, blocking};
use super::in_process::Reply;
use super::lines::Task;
use super::state::Batch;
use http::error::{ApiError, Kind};
use http::journal::Journal;
use http::tenant::Tenant;

/// A line that has ended.
pub struct FinishedLine {
    pub line: BatchLine,
    pub has_failed: bool,
}

/// The result of an attempt to run a line.
enum LineOutcome {
    Ended(Reply),
    /// The line did not run and never will.
    Refused(ApiError),
    /// The line may be tried again after this time.
    Later(Duration),
}

/// Returns the tenant of a batch, if its key still exists and still belongs to that tenant.
pub fn tenant(context: &BatchContext, batch: &Batch) -> Result<Tenant, ApiError> {
    let Some(name) = &batch.key else { return Ok(Tenant::default().of_batch()) };
    let key = context.state.keys.named(name).filter(|key| *key.tenant == *batch.tenant);
    let key = key.ok_or_else(|| ApiError::new(Kind::Unauthorized, "the key that the batch was made with was revoked"))?;
    Ok(Tenant::with_key(key).of_batch())
}

/// Runs a line until it has ended. While it waits, it holds neither a permit nor its text, so it delays no other line.
pub async fn run(context: Rc<BatchContext>, batch: Batch, task: Task) -> FinishedLine {
    let id = request_id();
    let public_id = id.replacen("batch_req", "req", 1);
    loop {
        match turn(&context, &batch, &task, &public_id).await {
            LineOutcome::Ended(reply) if reply.error.as_ref().is_some_and(|error| is_passing(error.kind)) => sleep(RETRY).await,
            LineOutcome::Later(wait) => sleep(wait).await,
            LineOutcome::Ended(Reply { status, body, error }) => {
                let response = LineResponse { status_code: status, request_id: public_id, body };
                return FinishedLine {
                    line: BatchLine { id, custom_id: task.custom_id, response: Some(response), error: None },
                    has_failed: error.is_some(),
                };
            }
            LineOutcome::Refused(error) => return never_run(task.custom_id, error.kind.code(), &error.message),
        }
    }
}

/// Tries to run a line, with a permit for running lines. `id` is that of its request.
async fn turn(context: &BatchContext, batch: &Batch, task: &Task, id: &str) -> LineOutcome {
    let _permit = context.line_permits.take(&batch.tenant).await;
    let tenant = match tenant(context, batch) {
        Ok(tenant) => tenant,
        Err(error) => return LineOutcome::Refused(error),
    };
    let _in_flight = match tenant.begin(Instant::now()) {
        Ok(in_flight) => in_flight,
        Err(refusal) => return LineOutcome::Later(refusal.retry_after.clamp(Duration::from_millis(50), Duration::from_secs(60))),
    };
    match body(context, batch, task).await {
        Ok(Some(json)) => LineOutcome::Ended(answer(context, &batch.object.endpoint, json, tenant, id).await),
        Ok(None) => LineOutcome::Refused(ApiError::new(Kind::BrokenBody, "the line cannot be read any more")),
        // Opening may fail because the process has too many open files.
        Err(_) => LineOutcome::Later(RETRY),
    }
}

/// Returns the endpoint's answer to a line. A line that is retried is written to the access log once, after it has finally succeeded or
/// failed.
async fn answer(context: &BatchContext, endpoint: &str, json: Vec<u8>, tenant: Tenant, id: &str) -> Reply {
    let journal = Journal::inside(endpoint, id, &tenant);
    let reply = context.client.post(endpoint, json, tenant, journal.clone()).await;
    if !reply.error.as_ref().is_some_and(|error| is_passing(error.kind)) {
        journal.conclude(reply.status, reply.error.as_ref());
    }
    reply
}

/// Reads the body of a line as JSON for its endpoint. `None` if the input no longer has it.
async fn body(context: &BatchContext, batch: &Batch, task: &Task) -> std::io::Result<Option<Vec<u8>>> {
    let input = context.folder.batches.path(&batch.object.id, "input.jsonl");
    let (task, endpoint) = (task.clone(), batch.object.endpoint.clone());
    let read = move || {
        let mut body = task.body(&File::open(input)?);
        if let Some(body) = body.as_mut().filter(|_| endpoint == "/v1/responses") {
            // Without this, a batch would displace its tenant's stored responses, which may still be continued.
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

pub fn never_run(custom_id: String, code: &str, message: &str) -> FinishedLine {
    let error = Some(LineError { code: code.into(), message: message.into() });
    FinishedLine { line: BatchLine { id: request_id(), custom_id, response: None, error }, has_failed: true }
}

/// Whether a line may succeed later: the model is busy or loading, or the server is ending.
fn is_passing(kind: Kind) -> bool {
    use Kind::*;
    matches!(kind, RateLimit | QueueFull | QueueTimeout | Overloaded | ModelLoading | ModelNoRoom | Draining | EngineStopped)
}
