//! The life of a batch, from its check to its end.

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;

use super::super::disk::now;
use super::super::files::record::{FileRecord, OUTPUT};
use super::super::types::batches::BatchError;
use super::check::Check;
use super::context::{BatchContext, RETRY, blocking};
use super::line::{self, FinishedLine};
use super::lines::{self, Lines, Task};
use super::sink::Sink;
use super::state::{Batch, BatchEnd};

/// How often a running batch checks whether its time is up.
const TICK: Duration = Duration::from_millis(500);

/// The results written so far.
struct Results {
    output: Sink,
    errors: Sink,
    completed: usize,
    failed: usize,
}

/// Runs a batch until it has ended. Returns early only if the server ends, and the batch then continues at the next start.
pub async fn run(context: Rc<BatchContext>, id: String) {
    loop {
        let Some(batch) = context.folder.batches.get(&id) else { return };
        if batch.has_ended() {
            let (folder, of_id) = (context.folder.clone(), id.clone());
            if let Err(error) = blocking(move || folder.batches.let_go(&of_id)).await {
                // The next sweep tries again.
                tracing::error!(batch = id, "cannot remove the input of a batch that has ended: {error}");
            }
            return;
        }
        let step = match (batch.ending, batch.object.status.as_str()) {
            (Some(ending), _) => publish(&context, &batch, ending).await,
            (None, "validating") => validate(&context, &batch).await,
            (None, _) => work(context.clone(), &batch).await,
        };
        if let Err(error) = step {
            // Nothing is lost, because the step is tried again, also after a restart.
            tracing::error!(batch = id, "a batch cannot continue and will be retried: {error}");
            sleep(RETRY).await;
        }
    }
}

/// Changes a batch on disk.
async fn change(context: &BatchContext, id: &str, change: impl FnOnce(&mut Batch) + Send + 'static) -> io::Result<()> {
    let (folder, id) = (context.folder.clone(), id.to_owned());
    let unless_cancelled = move |batch: &mut Batch| {
        // A cancellation by a client in the meantime takes precedence.
        let may = batch.ending.is_none();
        if may {
            change(batch);
        }
        may
    };
    blocking(move || folder.batches.change(&id, unless_cancelled)).await.map(drop)
}

async fn validate(context: &BatchContext, batch: &Batch) -> io::Result<()> {
    let tenant = match line::tenant(context, batch) {
        Ok(tenant) => tenant,
        Err(error) => {
            let error = BatchError { code: error.kind.code().into(), message: error.message, param: None, line: None };
            return change(context, &batch.object.id, move |batch| batch.fail(vec![error])).await;
        }
    };
    let (state, stop, max_lines) = (context.state.clone(), context.stop.clone(), context.storage.max_batch_lines);
    let (endpoint, path) = (batch.object.endpoint.clone(), context.folder.batches.path(&batch.object.id, "input.jsonl"));
    let _place = context.checking.take(&batch.tenant).await;
    let checked = blocking(move || {
        let limits = state.limits();
        let (endpoint, registry) = (endpoint.as_str(), &*state.registry);
        Check { endpoint, limits: &limits, registry, tenant: &tenant, max_lines, stop: &stop }.file(&path)
    });
    match checked.await? {
        None => Err(io::Error::other("the server is shutting down")),
        Some(Ok(total)) => change(context, &batch.object.id, move |batch| batch.start(total)).await,
        Some(Err(errors)) => change(context, &batch.object.id, move |batch| batch.fail(errors)).await,
    }
}

/// Runs the lines that are not done.
async fn work(context: Rc<BatchContext>, batch: &Batch) -> io::Result<()> {
    let id = &batch.object.id;
    let path = |name: &str| context.folder.batches.path(id, name);
    let (output, errors, input) = (path("output.jsonl"), path("errors.jsonl"), path("input.jsonl"));
    let opened = blocking(move || {
        let (mut ids, failed) = (lines::done(&output)?, lines::done(&errors)?);
        let results = Results { completed: ids.len(), failed: failed.len(), output: Sink::open(&output)?, errors: Sink::open(&errors)? };
        ids.extend(failed);
        // The lengths of lines were checked earlier. If the limit has changed since, the endpoint reports the error.
        Ok((results, ids, Lines::open(&input, usize::MAX)?))
    });
    let (mut results, mut done, mut lines) = opened.await?;
    results.count(&context, id);
    // Each line is a task of its own, so that none keeps its permit while the batch waits for something else.
    let mut running: JoinSet<FinishedLine> = JoinSet::new();
    let mut has_more = true;
    loop {
        let cancelled = context.folder.batches.cancelled.notified();
        let now = context.folder.batches.get(id).ok_or_else(|| io::Error::other("the batch is gone"))?;
        if now.ending.is_some() {
            return blocking(move || results.sync()).await;
        }
        if now.is_overdue() {
            drop(running);
            return expire(&context, batch, results, done).await;
        }
        while has_more && running.len() < context.storage.batch_concurrency {
            let _reading = context.reading.take(&batch.tenant).await;
            let next;
            (lines, done, next) = blocking(move || next_task(lines, done)).await?;
            has_more = next.is_some();
            next.into_iter().for_each(|task| drop(running.spawn_local(line::run(context.clone(), batch.clone(), task))));
        }
        tokio::select! {
            Some(ended) = running.join_next() => {
                let ended = ended.map_err(io::Error::other)?;
                let custom_id = ended.line.custom_id.clone();
                let is_kept;
                (results, is_kept) = keep(&context, id, results, ended).await?;
                done.extend(is_kept.then_some(custom_id));
                results.count(&context, id);
            }
            () = cancelled => {}
            () = sleep(TICK) => {}
        }
        if !has_more && running.is_empty() {
            blocking(move || results.sync()).await?;
            return change(&context, id, |batch| batch.finalize(BatchEnd::Completed)).await;
        }
    }
}

/// Finds the next line that is not done.
fn next_task(mut lines: Lines, done: HashSet<String>) -> io::Result<(Lines, HashSet<String>, Option<Task>)> {
    let task = Task::next(&mut lines, &done)?;
    Ok((lines, done, task))
}

impl Results {
    /// Appends a line that ends with a line break, and counts it.
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

    fn count(&self, context: &BatchContext, id: &str) {
        let num_bytes = self.output.num_bytes() + self.errors.num_bytes();
        context.folder.batches.count(id, self.completed, self.failed, num_bytes);
    }

    fn sync(&mut self) -> io::Result<()> {
        self.output.sync().and_then(|()| self.errors.sync())
    }
}

/// Writes the result of a line, and retries until that succeeds. So nothing is lost if the disk is full, or if the tenant has used up its
/// room for files. Returns false if the batch has ended in the meantime.
async fn keep(context: &BatchContext, id: &str, results: Results, done: FinishedLine) -> io::Result<(Results, bool)> {
    let mut line = serde_json::to_vec(&done.line).map_err(io::Error::other)?;
    line.push(b'\n');
    let (line, mut results, mut has_complained) = (Arc::new(line), results, false);
    loop {
        let (folder, of_id, line, mut back) = (context.folder.clone(), id.to_owned(), line.clone(), results);
        let written;
        (results, written) = blocking(move || {
            let has_room = folder.batches.make_room(&of_id, line.len() as u64).map_err(io::Error::other);
            let written = has_room.and_then(|()| back.append(&line, done.has_failed));
            Ok((back, written))
        })
        .await?;
        let Err(error) = written else { return Ok((results, true)) };
        // Gives back the room that was taken for the line, which is not needed yet.
        results.count(context, id);
        if !has_complained {
            tracing::error!(batch = id, "a batch waits because its results cannot be written: {error}");
        }
        has_complained = true;
        sleep(RETRY).await;
        if context.folder.batches.get(id).is_none_or(|batch| batch.ending.is_some() || batch.is_overdue()) {
            return Ok((results, false));
        }
    }
}

/// Ends a batch whose time is up. The remaining lines are reported as not run.
async fn expire(context: &BatchContext, batch: &Batch, mut results: Results, mut done: HashSet<String>) -> io::Result<()> {
    let input = context.folder.batches.path(&batch.object.id, "input.jsonl");
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
    results.count(context, &batch.object.id);
    change(context, &batch.object.id, |batch| batch.finalize(BatchEnd::Expired)).await
}

/// Turns the results into files and ends the batch.
async fn publish(context: &BatchContext, batch: &Batch, ending: BatchEnd) -> io::Result<()> {
    let (folder, batch) = (context.folder.clone(), batch.clone());
    blocking(move || {
        let path = |name: &str| folder.batches.path(&batch.object.id, name);
        let shelve = |name: &str, id: &str| -> io::Result<Option<(String, usize)>> {
            let from = path(name);
            if from.metadata().is_ok_and(|data| data.len() > 0) {
                let count = lines::done(&from)?.len();
                folder.files.take(output_entry(&batch, name, id, &from)?, &from)?;
                return Ok(Some((id.to_owned(), count)));
            }
            // The file may have been added already, before a crash.
            let Some(entry) = folder.files.get(&batch.tenant, id) else { return Ok(None) };
            Ok(Some((id.to_owned(), lines::done(&folder.files.path(&entry.id))?.len())))
        };
        let (output, errors) = (shelve("output.jsonl", &batch.output_id)?, shelve("errors.jsonl", &batch.errors_id)?);
        let count = |file: &Option<(String, usize)>| file.as_ref().map_or(0, |(_, count)| *count);
        let (completed, failed) = (count(&output), count(&errors));
        folder.batches.change(&batch.object.id, |batch| {
            (batch.object.request_counts.completed, batch.object.request_counts.failed) = (completed, failed);
            batch.end(ending, output.map(|(id, _)| id), errors.map(|(id, _)| id));
            true
        })?;
        Ok(())
    })
    .await
}

fn output_entry(batch: &Batch, name: &str, id: &str, from: &Path) -> io::Result<FileRecord> {
    let filename = format!("{}_{name}", batch.object.id);
    let entry = FileRecord::new(&batch.tenant, filename, OUTPUT);
    Ok(FileRecord { id: id.to_owned(), bytes: from.metadata()?.len(), expires_at: Some(now() + batch.keep_output), ..entry })
}
