//! A batch from its check to its end.

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use actix_web::web::Data;
use futures_util::StreamExt;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Semaphore;
use tokio::time::sleep;
use uuid::Uuid;

use super::super::disk::{self, now};
use super::super::files::entry::{Entry, OUTPUT};
use super::super::files::room::Room;
use super::super::types::batches::{BatchError, BatchLine, LineError, LineResponse};
use super::check::Check;
use super::inside::{Inside, Reply};
use super::lines::{self, Lines, Task};
use super::sink::Sink;
use super::state::{Batch, Ending};
use crate::http::error::{ApiError, Kind};
use crate::http::journal::Journal;
use crate::http::state::{AppState, off_loop};
use crate::http::tenant::Tenant;
use config::Storage;

/// How long to wait before something is tried again that did not work: a busy model, a full disk.
const RETRY: Duration = Duration::from_secs(1);
/// How often a running batch looks whether its time is over.
const TICK: Duration = Duration::from_millis(500);

/// What every batch runs with.
pub struct Workshop {
    pub state: Data<AppState>,
    pub room: Arc<Room>,
    pub inside: Inside,
    pub storage: Storage,
    /// The places for lines that run at once.
    pub places: Semaphore,
    /// The server ends.
    pub stop: Arc<AtomicBool>,
}

/// A line that has ended.
struct Done {
    line: BatchLine,
    has_failed: bool,
}

/// What has been written so far.
struct Results {
    output: Sink,
    errors: Sink,
    completed: usize,
    failed: usize,
}

/// Brings a batch to its end. Returns early only if the server ends, and goes on at the next start then.
pub async fn run(shop: Rc<Workshop>, id: String) {
    loop {
        let Some(batch) = shop.room.batches.get(&id).filter(|batch| !batch.has_ended()) else { return };
        let step = match (batch.ending, batch.object.status.as_str()) {
            (Some(ending), _) => publish(&shop, &batch, ending).await,
            (None, "validating") => validate(&shop, &batch).await,
            (None, _) => work(shop.clone(), &batch).await,
        };
        if let Err(error) = step {
            // Nothing is lost: the step is tried again, and after a restart, too.
            tracing::error!(batch = id, "a batch cannot go on for now: {error}");
            sleep(RETRY).await;
        }
    }
}

/// The tenant of a batch, if it may still do what it did when it made the batch.
fn tenant(shop: &Workshop, batch: &Batch) -> Result<Tenant, ApiError> {
    let Some(name) = &batch.key else { return Ok(Tenant::default().of_batch()) };
    let key = shop.state.keys.named(name).filter(|key| *key.tenant == *batch.tenant);
    let key = key.ok_or_else(|| ApiError::new(Kind::Unauthorized, "the key that the batch was made with was revoked"))?;
    Ok(Tenant::with_key(key).of_batch())
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    off_loop(work).await.map_err(io::Error::other)?
}

/// Changes a batch on the disk.
async fn change(shop: &Workshop, id: &str, change: impl FnOnce(&mut Batch) + Send + 'static) -> io::Result<()> {
    let (room, id) = (shop.room.clone(), id.to_owned());
    let unless_cancelled = move |batch: &mut Batch| {
        // What a client has cancelled in the meantime stays so.
        let may = batch.ending.is_none();
        if may {
            change(batch);
        }
        may
    };
    blocking(move || room.batches.change(&id, unless_cancelled)).await.map(drop)
}

async fn validate(shop: &Workshop, batch: &Batch) -> io::Result<()> {
    let tenant = match tenant(shop, batch) {
        Ok(tenant) => tenant,
        Err(error) => {
            let error = BatchError { code: error.kind.code().into(), message: error.message, param: None, line: None };
            return change(shop, &batch.object.id, move |batch| batch.fail(vec![error])).await;
        }
    };
    let (state, stop, max_lines) = (shop.state.clone(), shop.stop.clone(), shop.storage.max_batch_lines);
    let (endpoint, path) = (batch.object.endpoint.clone(), shop.room.batches.path(&batch.object.id, "input.jsonl"));
    let checked = blocking(move || {
        let limits = state.limits();
        let (endpoint, registry) = (endpoint.as_str(), &*state.registry);
        Check { endpoint, limits: &limits, registry, tenant: &tenant, max_lines, stop: &stop }.file(&path)
    });
    match checked.await? {
        None => Err(io::Error::other("the server is shutting down")),
        Some(Ok(total)) => change(shop, &batch.object.id, move |batch| batch.start(total)).await,
        Some(Err(errors)) => change(shop, &batch.object.id, move |batch| batch.fail(errors)).await,
    }
}

/// Runs the lines that are not done.
async fn work(shop: Rc<Workshop>, batch: &Batch) -> io::Result<()> {
    let id = &batch.object.id;
    let path = |name: &str| shop.room.batches.path(id, name);
    let (output, errors, input) = (path("output.jsonl"), path("errors.jsonl"), path("input.jsonl"));
    let max = shop.state.limits().max_body_bytes;
    let opened = blocking(move || {
        let (mut ids, failed) = (lines::done(&output)?, lines::done(&errors)?);
        let results = Results { completed: ids.len(), failed: failed.len(), output: Sink::open(&output)?, errors: Sink::open(&errors)? };
        ids.extend(failed);
        Ok((results, ids, Lines::open(&input, max)?))
    });
    let (mut results, mut done, mut lines) = opened.await?;
    shop.room.batches.count(id, results.completed, results.failed);
    let mut running: FuturesUnordered<LocalBoxFuture<Done>> = FuturesUnordered::new();
    let mut has_more = true;
    loop {
        let cancelled = shop.room.batches.cancelled.notified();
        let now = shop.room.batches.get(id).ok_or_else(|| io::Error::other("the batch is gone"))?;
        if now.ending.is_some() {
            return blocking(move || results.sync()).await;
        }
        if now.is_overdue() {
            drop(running);
            return expire(&shop, batch, results, done).await;
        }
        while has_more && running.len() < shop.storage.batch_concurrency {
            let next;
            (lines, done, next) = blocking(move || next_task(lines, done)).await?;
            has_more = next.is_some();
            running.extend(next.map(|task| -> LocalBoxFuture<Done> { Box::pin(one(shop.clone(), batch.clone(), task)) }));
        }
        tokio::select! {
            Some(ended) = running.next() => {
                done.insert(ended.line.custom_id.clone());
                results = keep(&shop, id, results, ended).await?;
                shop.room.batches.count(id, results.completed, results.failed);
            }
            () = cancelled => {}
            () = sleep(TICK) => {}
        }
        if !has_more && running.is_empty() {
            blocking(move || results.sync()).await?;
            return change(&shop, id, |batch| batch.finalize(Ending::Completed)).await;
        }
    }
}

/// The next line that is not done.
fn next_task(mut lines: Lines, done: HashSet<String>) -> io::Result<(Lines, HashSet<String>, Option<Task>)> {
    while let Some(raw) = lines.next()? {
        let task: Task = serde_json::from_slice(&raw.bytes).map_err(io::Error::other)?;
        if !done.contains(&task.custom_id) {
            return Ok((lines, done, Some(task)));
        }
    }
    Ok((lines, done, None))
}

impl Results {
    fn write(&mut self, done: &Done) -> io::Result<()> {
        let mut line = serde_json::to_vec(&done.line).map_err(io::Error::other)?;
        line.push(b'\n');
        if done.has_failed { self.errors.append(&line) } else { self.output.append(&line) }
    }

    fn sync(&mut self) -> io::Result<()> {
        self.output.sync().and_then(|()| self.errors.sync())
    }
}

/// Writes what a line has come to, however long that takes: a full disk loses nothing.
async fn keep(shop: &Workshop, id: &str, mut results: Results, done: Done) -> io::Result<Results> {
    let done = Arc::new(done);
    let mut has_complained = false;
    loop {
        let (line, mut back) = (done.clone(), results);
        let written;
        (back, written) = blocking(move || {
            let written = back.write(&line);
            Ok((back, written))
        })
        .await?;
        results = back;
        match written {
            Ok(()) => {
                if done.has_failed {
                    results.failed += 1
                } else {
                    results.completed += 1
                }
                return Ok(results);
            }
            Err(error) => {
                if !has_complained {
                    tracing::error!(batch = id, "a batch waits, because its results cannot be written: {error}");
                }
                has_complained = true;
                sleep(RETRY).await;
                if shop.room.batches.get(id).is_none_or(|batch| batch.ending.is_some()) {
                    return Ok(results);
                }
            }
        }
    }
}

/// Runs one line to its end.
async fn one(shop: Rc<Workshop>, batch: Batch, task: Task) -> Done {
    // The semaphore is never closed.
    let _place = shop.places.acquire().await;
    let json = task.body.to_string().into_bytes();
    let (id, custom_id) = (request_id(), task.custom_id);
    let public_id = id.replacen("batch_req", "req", 1);
    let reply = loop {
        let (tenant, json) = (tenant(&shop, &batch), json.clone());
        let reply = match tenant.map(|tenant| (tenant.begin(Instant::now()), tenant)) {
            Err(error) => Err(error),
            Ok((Err(refusal), _)) => {
                sleep(refusal.retry_after.clamp(Duration::from_millis(50), Duration::from_secs(60))).await;
                continue;
            }
            Ok((Ok(_in_flight), tenant)) => Ok(answer(&shop, &batch.object.endpoint, json, tenant, &public_id).await),
        };
        match reply {
            Ok(reply) if reply.error.as_ref().is_some_and(|error| is_passing(error.kind)) => sleep(RETRY).await,
            other => break other,
        }
    };
    match reply {
        Ok(Reply { status, body, error }) => {
            let response = LineResponse { status_code: status, request_id: public_id, body };
            Done { line: BatchLine { id, custom_id, response: Some(response), error: None }, has_failed: error.is_some() }
        }
        Err(error) => never_run(custom_id, error.kind.code(), &error.message),
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

fn request_id() -> String {
    format!("batch_req_{}", Uuid::new_v4().simple())
}

fn never_run(custom_id: String, code: &str, message: &str) -> Done {
    let error = Some(LineError { code: code.into(), message: message.into() });
    Done { line: BatchLine { id: request_id(), custom_id, response: None, error }, has_failed: true }
}

/// Whether a line may succeed later: the model is busy or being loaded, or the server ends.
fn is_passing(kind: Kind) -> bool {
    use Kind::*;
    matches!(kind, RateLimit | QueueFull | QueueTimeout | Overloaded | ModelLoading | ModelNoRoom | Draining | EngineStopped)
}

/// Ends a batch whose time is over. Its other lines are reported as not run.
async fn expire(shop: &Workshop, batch: &Batch, mut results: Results, mut done: HashSet<String>) -> io::Result<()> {
    let input = shop.room.batches.path(&batch.object.id, "input.jsonl");
    let max = shop.state.limits().max_body_bytes;
    let message = format!("the line was not run within {}, the batch's completion_window", batch.object.completion_window);
    let written = blocking(move || {
        let mut lines = Lines::open(&input, max)?;
        loop {
            let task;
            (lines, done, task) = next_task(lines, done)?;
            let Some(task) = task else { break };
            results.write(&never_run(task.custom_id, "batch_expired", &message))?;
            results.failed += 1;
        }
        results.sync()?;
        Ok(results)
    });
    let results = written.await?;
    shop.room.batches.count(&batch.object.id, results.completed, results.failed);
    change(shop, &batch.object.id, |batch| batch.finalize(Ending::Expired)).await
}

/// Makes files of the results, and ends the batch.
async fn publish(shop: &Workshop, batch: &Batch, ending: Ending) -> io::Result<()> {
    let (room, batch) = (shop.room.clone(), batch.clone());
    blocking(move || {
        let path = |name: &str| room.batches.path(&batch.object.id, name);
        let shelve = |name: &str, id: &str| -> io::Result<Option<(String, usize)>> {
            let from = path(name);
            if from.metadata().is_ok_and(|data| data.len() > 0) {
                let count = lines::done(&from)?.len();
                room.files.take(output_entry(&batch, name, id, &from)?, &from)?;
                return Ok(Some((id.to_owned(), count)));
            }
            // It was put there before a crash.
            let Some(entry) = room.files.get(&batch.tenant, id) else { return Ok(None) };
            Ok(Some((id.to_owned(), lines::done(&room.files.path(&entry.id))?.len())))
        };
        let (output, errors) = (shelve("output.jsonl", &batch.output_id)?, shelve("errors.jsonl", &batch.errors_id)?);
        let count = |file: &Option<(String, usize)>| file.as_ref().map_or(0, |(_, count)| *count);
        let (completed, failed) = (count(&output), count(&errors));
        room.batches.change(&batch.object.id, |batch| {
            (batch.object.request_counts.completed, batch.object.request_counts.failed) = (completed, failed);
            batch.end(ending, output.map(|(id, _)| id), errors.map(|(id, _)| id));
            true
        })?;
        ["input.jsonl", "output.jsonl", "errors.jsonl"].iter().try_for_each(|name| disk::remove(&path(name)))
    })
    .await
}

fn output_entry(batch: &Batch, name: &str, id: &str, from: &Path) -> io::Result<Entry> {
    let filename = format!("{}_{name}", batch.object.id);
    let entry = Entry::new(&batch.tenant, filename, OUTPUT);
    Ok(Entry { id: id.to_owned(), bytes: from.metadata()?.len(), expires_at: Some(now() + batch.keep_output), ..entry })
}
