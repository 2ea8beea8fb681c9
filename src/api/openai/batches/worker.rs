//! The task that runs batches beside the server, from its start to its end.

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use actix_web::rt;
use actix_web::web::{Data, ServiceConfig};
use tokio::time::{sleep, timeout};

use super::super::files::room::{Room, Rooms};
use super::inside::Inside;
use super::places::Places;
use super::run::run;
use super::workshop::Workshop;
use http::state::{AppState, off_loop};

/// How often the worker looks for work of which nobody has told it.
const TICK: Duration = Duration::from_secs(2);
/// How often what has expired is deleted.
const SWEEP: Duration = Duration::from_secs(30);

/// Runs batches until the server drains. Lines that run then are dropped, and run again at the next start.
pub async fn keep_running(rooms: Arc<Rooms>, state: Data<AppState>, routes: impl FnOnce(&mut ServiceConfig) + 'static) {
    let stop = Arc::new(AtomicBool::new(false));
    let (of_work, drained) = (stop.clone(), state.clone());
    let work = async move {
        let room = open(&rooms).await;
        let inside = Inside::new(state.clone(), routes).await;
        let storage = rooms.storage.clone();
        let (places, reading, checking) = (Places::new(storage.batch_concurrency), Places::new(1), Places::new(1));
        let shop = Rc::new(Workshop { state, room: room.clone(), inside, storage, places, reading, checking, stop: of_work });
        follow(&rooms, &shop).await;
    };
    tokio::select! {
        () = work => {}
        () = drained.drain.when_draining() => stop.store(true, Ordering::Relaxed),
    }
}

/// Waits for the folder, which an earlier process or the first request makes.
async fn open(rooms: &Arc<Rooms>) -> Arc<Room> {
    loop {
        let again = rooms.clone();
        if let Ok(Some(room)) = off_loop(move || again.resume()).await {
            return room;
        }
        // Whether something else comes first does not matter.
        let _ = timeout(TICK, rooms.wake.notified()).await;
    }
}

async fn follow(rooms: &Rooms, shop: &Rc<Workshop>) {
    let running: Rc<RefCell<HashSet<String>>> = Rc::default();
    let mut tasks = Tasks::default();
    let mut swept: Option<Instant> = None;
    loop {
        let idle = shop.storage.batch_concurrency == 0;
        for id in shop.room.batches.unfinished() {
            // Without places for lines, a batch that is to end still ends.
            let waits = idle && shop.room.batches.get(&id).is_some_and(|batch| batch.ending.is_none());
            if !waits && running.borrow_mut().insert(id.clone()) {
                let (shop, running) = (shop.clone(), running.clone());
                tasks.0.push(rt::spawn(async move {
                    run(shop, id.clone()).await;
                    running.borrow_mut().remove(&id);
                }));
            }
        }
        tasks.0.retain(|task| !task.is_finished());
        if swept.is_none_or(|at| at.elapsed() >= SWEEP) {
            swept = Some(Instant::now());
            sweep(shop.room.clone()).await;
        }
        let _ = timeout(TICK, rooms.wake.notified()).await;
    }
}

async fn sweep(room: Arc<Room>) {
    let swept = off_loop(move || room.files.sweep().and_then(|()| room.batches.sweep())).await;
    if let Ok(Err(error)) = swept {
        tracing::error!("what has expired could not be deleted: {error}");
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
