//! Concurrent loads, failures and stops.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use super::*;

/// A fake model.
#[derive(Default)]
struct Fake {
    dead: AtomicBool,
    stopped: AtomicBool,
}

const PATIENT: Patience = Patience { wait: Duration::from_secs(20), failure: Duration::from_secs(3600) };
const HASTY: Patience = Patience { wait: Duration::from_millis(20), failure: Duration::ZERO };

fn unloaded() -> Arc<LoadOnce<Fake>> {
    Arc::new(LoadOnce::new(|fake: &Fake| !fake.dead.load(SeqCst), |fake: &Fake| fake.stopped.store(true, SeqCst)))
}

/// Starts a load that ends when the sender sends.
fn slow_load(value: &Arc<LoadOnce<Fake>>) -> (std::sync::mpsc::Sender<()>, std::thread::JoinHandle<Result<Arc<Fake>, Unavailable>>) {
    let (go, wait) = std::sync::mpsc::channel();
    let (started, begun) = std::sync::mpsc::channel();
    let value = value.clone();
    let thread = std::thread::spawn(move || {
        value.get(PATIENT, || {
            started.send(()).unwrap();
            wait.recv().unwrap();
            Ok(Fake::default())
        })
    });
    begun.recv().unwrap();
    (go, thread)
}

#[test]
fn many_callers_share_one_load() {
    let (value, loads) = (unloaded(), Arc::new(AtomicUsize::new(0)));
    let threads: Vec<_> = (0..16)
        .map(|_| {
            let (value, loads) = (value.clone(), loads.clone());
            std::thread::spawn(move || {
                value.get(PATIENT, || {
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
fn other_threads_are_not_blocked_by_a_load() {
    let value = unloaded();
    let (go, thread) = slow_load(&value);
    assert!(value.peek().is_none());
    assert_eq!(value.get(HASTY, || unreachable!("a second load")).err(), Some(Unavailable::Loading));
    go.send(()).unwrap();
    let loaded = thread.join().unwrap().unwrap();
    assert!(Arc::ptr_eq(&loaded, &value.peek().unwrap()));
}

#[test]
fn failures_and_panics_are_remembered_for_a_while() {
    let value = unloaded();
    let failed = |cause: &str| Some(Unavailable::Failed(cause.into()));
    assert_eq!(value.get(PATIENT, || Err("bad file".into())).err(), failed("bad file"));
    assert_eq!(value.get(PATIENT, || unreachable!("tried again at once")).err(), failed("bad file"));
    assert_eq!(value.get(HASTY, || panic!("boom")).err(), failed("internal error: boom"));
    assert!(value.get(HASTY, || Ok(Fake::default())).is_ok());
}

#[test]
fn waiting_threads_get_the_failure() {
    let value = unloaded();
    let (go, first) = slow_load(&value);
    let waiter = {
        let value = value.clone();
        std::thread::spawn(move || value.get(PATIENT, || unreachable!("a second load")))
    };
    drop(go);
    assert!(matches!(first.join().unwrap(), Err(Unavailable::Failed(_))));
    assert!(matches!(waiter.join().unwrap(), Err(Unavailable::Failed(_))));
}

#[test]
fn a_dead_value_is_replaced() {
    let value = unloaded();
    assert!(value.died().is_none(), "nothing was loaded");
    let first = value.get(PATIENT, || Ok(Fake::default())).unwrap();
    assert!(value.died().is_none());
    first.dead.store(true, SeqCst);
    assert!(value.peek().is_none() && value.died().is_some());
    let second = value.get(PATIENT, || Ok(Fake::default())).unwrap();
    assert!(!Arc::ptr_eq(&first, &second) && value.died().is_none());
}

#[test]
fn stop_also_ends_a_load_in_progress() {
    let ready = unloaded();
    let fake = ready.get(PATIENT, || Ok(Fake::default())).unwrap();
    ready.stop();
    assert!(fake.stopped.load(SeqCst) && ready.peek().is_none());
    assert_eq!(ready.get(PATIENT, || unreachable!("a load after stop")).err(), Some(stopping()));
    static STOPS: AtomicUsize = AtomicUsize::new(0);
    let loading = Arc::new(LoadOnce::new(
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
