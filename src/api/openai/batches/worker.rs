//! The task that runs batches for as long as the server runs.

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use actix_web::rt;
use actix_web::web::{Data, ServiceConfig};
use tokio::time::{sleep, timeout};

use super::super::files::storage_folder::{LazyStorage, StorageFolder};
use super::context::BatchContext;
use super::fair_semaphore::FairSemaphore;
use super::in_process::InProcessClient;
use super::run::run;
use http::state::{AppState, off_loop};

/// How often the worker looks for work without being notified.
const TICK: Duration = Duration::from_secs(2);
/// How often expired files and batches are deleted.
const SWEEP: Duration = Duration::from_secs(30);

/// Runs batches until the server drains. Lines that run then are dropped, and run again at the next start.
pub async fn keep_running(rooms: Arc<LazyStorage>, state: Data<AppState>, routes: impl FnOnce(&mut ServiceConfig) + 'static) {
    let stop = Arc::new(AtomicBool::new(false));
    let (of_work, drained) = (stop.clone(), state.clone());
    let work = async move {
        let folder = open(&rooms).await;
        let client = InProcessClient::new(state.clone(), routes).await;
        let storage = rooms.storage.clone();
        let (line_permits, reading, checking) =
            (FairSemaphore::new(storage.batch_concurrency), FairSemaphore::new(1), FairSemaphore::new(1));
        let context =
            Rc::new(BatchContext { state, folder: folder.clone(), client, storage, line_permits, reading, checking, stop: of_work });
        follow(&rooms, &context).await;
    };
    tokio::select! {
        () = work => {}
        () = drained.drain.when_draining() => stop.store(true, Ordering::Relaxed),
    }
}

/// Waits for the folder, which an earlier process or the first request creates.
async fn open(rooms: &Arc<LazyStorage>) -> Arc<StorageFolder> {
    loop {
        let again = rooms.clone();
        if let Ok(Some(folder)) = off_loop(move || again.resume()).await {
            return folder;
        }
        // A notification only shortens the wait, so it does not matter which one ends it.
        let _ = timeout(TICK, rooms.wake.notified()).await;
    }
}

async fn follow(rooms: &LazyStorage, context: &Rc<BatchContext>) {
    let running: Rc<RefCell<HashSet<String>>> = Rc::default();
    let mut tasks = Tasks::default();
    let mut swept: Option<Instant> = None;
    loop {
        let idle = context.storage.batch_concurrency == 0;
        for id in context.folder.batches.unfinished() {
            // If no lines may run, batches that are ending still end.
            let waits = idle && context.folder.batches.get(&id).is_some_and(|batch| batch.ending.is_none());
            if !waits && running.borrow_mut().insert(id.clone()) {
                let (context, running) = (context.clone(), running.clone());
                tasks.0.push(rt::spawn(async move {
                    run(context, id.clone()).await;
                    running.borrow_mut().remove(&id);
                }));
            }
        }
        tasks.0.retain(|task| !task.is_finished());
        if swept.is_none_or(|at| at.elapsed() >= SWEEP) {
            swept = Some(Instant::now());
            sweep(context.folder.clone()).await;
        }
        let _ = timeout(TICK, rooms.wake.notified()).await;
    }
}

async fn sweep(folder: Arc<StorageFolder>) {
    let swept = off_loop(move || folder.files.sweep().and_then(|()| folder.batches.sweep())).await;
    if let Ok(Err(error)) = swept {
        tracing::error!("cannot delete expired files or batches: {error}");
        sleep(TICK).await;
    }
}

/// The tasks of running batches, which end with the worker.
#[derive(Default)]
struct Tasks(Vec<rt::task::JoinHandle<()>>);

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(rt::task::JoinHandle::abort);
    }
}
