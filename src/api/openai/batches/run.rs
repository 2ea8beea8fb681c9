//! A batch from its check to its end.

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;

use super::super::disk::now;
use super::super::files::entry::{Entry, OUTPUT};
use super::super::types::batches::BatchError;
use super::check::Check;
use super::line::{self, Done};
use super::lines::{self, Lines, Task};
use super::sink::Sink;
use super::state::{Batch, Ending};
use super::workshop::{RETRY, Workshop, blocking};

/// How often a running batch looks whether its time is over.
const TICK: Duration = Duration::from_millis(500);

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
        let Some(batch) = shop.room.batches.get(&id) else { return };
        if batch.has_ended() {
            let (room, of_id) = (shop.room.clone(), id.clone());
            if let Err(error) = blocking(move || room.batches.let_go(&of_id)).await {
                // The next sweep tries it again.
                tracing::error!(batch = id, "the input of a batch that has ended cannot be removed: {error}");
            }
            return;
        }
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
    let tenant = match line::tenant(shop, batch) {
        Ok(tenant) => tenant,
        Err(error) => {
            let error = BatchError { code: error.kind.code().into(), message: error.message, param: None, line: None };
            return change(shop, &batch.object.id, move |batch| batch.fail(vec![error])).await;
        }
    };
    let (state, stop, max_lines) = (shop.state.clone(), shop.stop.clone(), shop.storage.max_batch_lines);
    let (endpoint, path) = (batch.object.endpoint.clone(), shop.room.batches.path(&batch.object.id, "input.jsonl"));
    let _place = shop.checking.take(&batch.tenant).await;
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
    let opened = blocking(move || {
        let (mut ids, failed) = (lines::done(&output)?, lines::done(&errors)?);
        let results = Results { completed: ids.len(), failed: failed.len(), output: Sink::open(&output)?, errors: Sink::open(&errors)? };
        ids.extend(failed);
        // How long a line may be was checked, and may have changed since: its endpoint will say so.
        Ok((results, ids, Lines::open(&input, usize::MAX)?))
    });
    let (mut results, mut done, mut lines) = opened.await?;
    results.count(&shop, id);
    // Each goes on by itself, so that none keeps its place while the batch waits for something else.
    let mut running: JoinSet<Done> = JoinSet::new();
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
            let _reading = shop.reading.take(&batch.tenant).await;
            let next;
            (lines, done, next) = blocking(move || next_task(lines, done)).await?;
            has_more = next.is_some();
            next.into_iter().for_each(|task| drop(running.spawn_local(line::run(shop.clone(), batch.clone(), task))));
        }
        tokio::select! {
            Some(ended) = running.join_next() => {
                let ended = ended.map_err(io::Error::other)?;
                let custom_id = ended.line.custom_id.clone();
                let is_kept;
                (results, is_kept) = keep(&shop, id, results, ended).await?;
                done.extend(is_kept.then_some(custom_id));
                results.count(&shop, id);
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
    let task = Task::next(&mut lines, &done)?;
    Ok((lines, done, task))
}

impl Results {
    /// Adds a line that ends with a line break, and counts it.
    fn append(&mut self, line: &[u8], has_failed: bool) -> io::Result<()> {
        if has_failed {
            self.errors.append(line)?;
            self.failed += 1;
        } else {
            self.output.append(line)?;
            self.completed += 1;
        }
        Ok(())
    }

    fn count(&self, shop: &Workshop, id: &str) {
        let num_bytes = self.output.num_bytes() + self.errors.num_bytes();
        shop.room.batches.count(id, self.completed, self.failed, num_bytes);
    }

    fn sync(&mut self) -> io::Result<()> {
        self.output.sync().and_then(|()| self.errors.sync())
    }
}

/// Writes what a line has come to, however long that takes: a full disk loses nothing, and neither does a tenant whose files take all the
/// room that it may have. `false`: the batch has ended in the meantime.
async fn keep(shop: &Workshop, id: &str, results: Results, done: Done) -> io::Result<(Results, bool)> {
    let mut line = serde_json::to_vec(&done.line).map_err(io::Error::other)?;
    line.push(b'\n');
    let (line, mut results, mut has_complained) = (Arc::new(line), results, false);
    loop {
        let (room, of_id, line, mut back) = (shop.room.clone(), id.to_owned(), line.clone(), results);
        let written;
        (results, written) = blocking(move || {
            let has_room = room.batches.make_room(&of_id, line.len() as u64).map_err(io::Error::other);
            let written = has_room.and_then(|()| back.append(&line, done.has_failed));
            Ok((back, written))
        })
        .await?;
        let Err(error) = written else { return Ok((results, true)) };
        // What was taken for it is not needed yet.
        results.count(shop, id);
        if !has_complained {
            tracing::error!(batch = id, "a batch waits, because its results cannot be written: {error}");
        }
        has_complained = true;
        sleep(RETRY).await;
        if shop.room.batches.get(id).is_none_or(|batch| batch.ending.is_some() || batch.is_overdue()) {
            return Ok((results, false));
        }
    }
}

/// Ends a batch whose time is over. Its other lines are reported as not run.
async fn expire(shop: &Workshop, batch: &Batch, mut results: Results, mut done: HashSet<String>) -> io::Result<()> {
    let input = shop.room.batches.path(&batch.object.id, "input.jsonl");
    let message = format!("the line was not run within {}, the batch's completion_window", batch.object.completion_window);
    let written = blocking(move || {
        let mut lines = Lines::open(&input, usize::MAX)?;
        loop {
            let task;
            (lines, done, task) = next_task(lines, done)?;
            let Some(task) = task else { break };
            let mut line =
                serde_json::to_vec(&line::never_run(task.custom_id, "batch_expired", &message).line).map_err(io::Error::other)?;
            line.push(b'\n');
            results.append(&line, true)?;
        }
        results.sync()?;
        Ok(results)
    });
    let results = written.await?;
    results.count(shop, &batch.object.id);
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
        Ok(())
    })
    .await
}

fn output_entry(batch: &Batch, name: &str, id: &str, from: &Path) -> io::Result<Entry> {
    let filename = format!("{}_{name}", batch.object.id);
    let entry = Entry::new(&batch.tenant, filename, OUTPUT);
    Ok(Entry { id: id.to_owned(), bytes: from.metadata()?.len(), expires_at: Some(now() + batch.keep_output), ..entry })
}
