//! Loaded models: each is loaded by one thread, on which the others wait. No lock is held while loading.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Why there is nothing to hand out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// Another thread is loading it still.
    Loading,
    Failed(String),
}

enum State<T> {
    Empty,
    Loading,
    Ready(Arc<T>),
    /// A load that failed is not tried again at once: requests would queue up behind a hopeless one.
    Failed(String, Instant),
    Stopped,
}

/// The place of one model.
pub struct Slot<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    /// False: what is there has died and is replaced at the next `get`.
    alive: fn(&T) -> bool,
    stop: fn(&T),
}

/// How long threads wait, and for how long a failure is remembered.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    pub wait: Duration,
    pub failure: Duration,
}

impl<T> Slot<T> {
    pub fn new(alive: fn(&T) -> bool, stop: fn(&T)) -> Self {
        Self { state: Mutex::new(State::Empty), changed: Condvar::new(), alive, stop }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // Nothing that can panic runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is loaded and alive; never waits for a load.
    pub fn peek(&self) -> Option<Arc<T>> {
        match &*self.lock() {
            State::Ready(value) if (self.alive)(value) => Some(value.clone()),
            _ => None,
        }
    }

    /// What was loaded, where it has died and was not replaced yet.
    pub fn died(&self) -> Option<Arc<T>> {
        match &*self.lock() {
            State::Ready(value) if !(self.alive)(value) => Some(value.clone()),
            _ => None,
        }
    }

    /// What is loaded; where nothing is, this thread loads it or waits for the one that does.
    pub fn get(&self, patience: Patience, load: impl FnOnce() -> Result<T, String>) -> Result<Arc<T>, Unavailable> {
        let deadline = Instant::now() + patience.wait;
        let mut state = self.lock();
        let dead = loop {
            match &*state {
                State::Ready(value) if (self.alive)(value) => return Ok(value.clone()),
                State::Ready(_) | State::Empty => break std::mem::replace(&mut *state, State::Loading),
                State::Failed(_, at) if at.elapsed() >= patience.failure => break std::mem::replace(&mut *state, State::Loading),
                State::Failed(cause, _) => return Err(Unavailable::Failed(cause.clone())),
                State::Stopped => return Err(stopping()),
                State::Loading => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Unavailable::Loading);
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        };
        drop(state);
        // Its memory is needed for the one to come.
        drop(dead);
        self.settle(catch_unwind(AssertUnwindSafe(load)).unwrap_or_else(|panic| Err(panic_text(&*panic))))
    }

    /// Makes a load's outcome known.
    fn settle(&self, loaded: Result<T, String>) -> Result<Arc<T>, Unavailable> {
        let mut state = self.lock();
        let outcome = match (loaded, &*state) {
            (Ok(value), State::Stopped) => {
                drop(state);
                (self.stop)(&value);
                return Err(stopping());
            }
            (Err(_), State::Stopped) => Err(stopping()),
            (Ok(value), _) => {
                let value = Arc::new(value);
                *state = State::Ready(value.clone());
                Ok(value)
            }
            (Err(cause), _) => {
                *state = State::Failed(cause.clone(), Instant::now());
                Err(Unavailable::Failed(cause))
            }
        };
        drop(state);
        self.changed.notify_all();
        outcome
    }

    /// Stops what is loaded, and what is being loaded once it is; nothing is loaded any more.
    pub fn stop(&self) {
        let before = std::mem::replace(&mut *self.lock(), State::Stopped);
        self.changed.notify_all();
        if let State::Ready(value) = before {
            (self.stop)(&value);
        }
    }
}

fn stopping() -> Unavailable {
    Unavailable::Failed("the server is shutting down".into())
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    format!("internal error: {}", text.unwrap_or("a panic while loading"))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

    use super::*;

    /// A stand-in for a model.
    #[derive(Default)]
    struct Fake {
        dead: AtomicBool,
        stopped: AtomicBool,
    }

    const PATIENT: Patience = Patience { wait: Duration::from_secs(20), failure: Duration::from_secs(3600) };
    const HASTY: Patience = Patience { wait: Duration::from_millis(20), failure: Duration::ZERO };

    fn slot() -> Arc<Slot<Fake>> {
        Arc::new(Slot::new(|fake: &Fake| !fake.dead.load(SeqCst), |fake: &Fake| fake.stopped.store(true, SeqCst)))
    }

    /// Starts a load that ends when the sender says so.
    fn slow_load(slot: &Arc<Slot<Fake>>) -> (std::sync::mpsc::Sender<()>, std::thread::JoinHandle<Result<Arc<Fake>, Unavailable>>) {
        let (go, wait) = std::sync::mpsc::channel();
        let (started, begun) = std::sync::mpsc::channel();
        let slot = slot.clone();
        let thread = std::thread::spawn(move || {
            slot.get(PATIENT, || {
                started.send(()).unwrap();
                wait.recv().unwrap();
                Ok(Fake::default())
            })
        });
        begun.recv().unwrap();
        (go, thread)
    }

    #[test]
    fn many_callers_make_one_load() {
        let (slot, loads) = (slot(), Arc::new(AtomicUsize::new(0)));
        let threads: Vec<_> = (0..16)
            .map(|_| {
                let (slot, loads) = (slot.clone(), loads.clone());
                std::thread::spawn(move || {
                    slot.get(PATIENT, || {
                        loads.fetch_add(1, SeqCst);
                        std::thread::sleep(Duration::from_millis(50));
                        Ok(Fake::default())
                    })
                })
            })
            .collect();
        let got: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect();
        assert_eq!(loads.load(SeqCst), 1);
        assert!(got.iter().all(|one| Arc::ptr_eq(one, &got[0])));
    }

    #[test]
    fn no_lock_is_held_while_loading_and_the_impatient_are_told() {
        let slot = slot();
        let (go, thread) = slow_load(&slot);
        assert!(slot.peek().is_none());
        assert_eq!(slot.get(HASTY, || unreachable!("a second load")).err(), Some(Unavailable::Loading));
        go.send(()).unwrap();
        let loaded = thread.join().unwrap().unwrap();
        assert!(Arc::ptr_eq(&loaded, &slot.peek().unwrap()));
    }

    #[test]
    fn failures_and_panics_are_remembered_for_a_while() {
        let slot = slot();
        let failed = |cause: &str| Some(Unavailable::Failed(cause.into()));
        assert_eq!(slot.get(PATIENT, || Err("bad file".into())).err(), failed("bad file"));
        assert_eq!(slot.get(PATIENT, || unreachable!("tried again at once")).err(), failed("bad file"));
        assert_eq!(slot.get(HASTY, || panic!("boom")).err(), failed("internal error: boom"));
        assert!(slot.get(HASTY, || Ok(Fake::default())).is_ok());
    }

    #[test]
    fn waiters_hear_of_a_failure() {
        let slot = slot();
        let (go, first) = slow_load(&slot);
        let waiter = {
            let slot = slot.clone();
            std::thread::spawn(move || slot.get(PATIENT, || unreachable!("a second load")))
        };
        drop(go);
        assert!(matches!(first.join().unwrap(), Err(Unavailable::Failed(_))));
        assert!(matches!(waiter.join().unwrap(), Err(Unavailable::Failed(_))));
    }

    #[test]
    fn the_dead_are_replaced() {
        let slot = slot();
        assert!(slot.died().is_none(), "nothing was loaded");
        let first = slot.get(PATIENT, || Ok(Fake::default())).unwrap();
        assert!(slot.died().is_none());
        first.dead.store(true, SeqCst);
        assert!(slot.peek().is_none() && slot.died().is_some());
        let second = slot.get(PATIENT, || Ok(Fake::default())).unwrap();
        assert!(!Arc::ptr_eq(&first, &second) && slot.died().is_none());
    }

    #[test]
    fn stop_reaches_what_is_loaded_and_what_is_being_loaded() {
        let ready = slot();
        let fake = ready.get(PATIENT, || Ok(Fake::default())).unwrap();
        ready.stop();
        assert!(fake.stopped.load(SeqCst) && ready.peek().is_none());
        assert_eq!(ready.get(PATIENT, || unreachable!("a load after stop")).err(), Some(stopping()));
        static STOPS: AtomicUsize = AtomicUsize::new(0);
        let loading = Arc::new(Slot::new(
            |_: &Fake| true,
            |_: &Fake| {
                STOPS.fetch_add(1, SeqCst);
            },
        ));
        let (go, thread) = slow_load(&loading);
        loading.stop();
        go.send(()).unwrap();
        assert_eq!(thread.join().unwrap().err(), Some(stopping()));
        assert_eq!(STOPS.load(SeqCst), 1);
    }
}
