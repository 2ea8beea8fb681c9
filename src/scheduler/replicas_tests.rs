//! Several engine threads behind one handle: where sequences go, and what the loss of an engine takes.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::client::Client;
use crate::engine_fault::EngineFault;
use crate::event::Event;
use crate::fake::{Control, FakeEngine, solo_run};
use crate::handle::{EnqueueError, Handle};
use crate::new_sequence::{NewSequence, SequenceGroup};
use crate::options::SchedulerOptions;
use crate::replica::{EventStream, ReplicaParts};
use crate::testing::{params, sequence, until};
use crate::watchdog::Watchdog;
use engine::{Engine, EngineError, KvCapacity};
use metrics::ModelMetrics;

fn capacity() -> KvCapacity {
    KvCapacity::blocks(64, 4)
}

fn options() -> SchedulerOptions {
    SchedulerOptions { max_batch_tokens: 32, max_running: 4, max_waiting: 16, max_waiting_tokens: 0, prefix_cache: true, drafts: true }
}

fn parts(engine: Option<FakeEngine>) -> ReplicaParts {
    let engines = engine.map(|engine| (Box::new(engine) as Box<dyn Engine>).into());
    ReplicaParts { engines, place: "cpu".into(), share: None, saved: None }
}

type Controls = Vec<Arc<Mutex<Control>>>;

fn spawn(name: &str, count: usize, on_fault: fn(EngineFault)) -> (Handle, Controls) {
    let (engines, controls): (Vec<_>, Vec<_>) = (0..count).map(|_| FakeEngine::new(capacity(), 4, 2)).unzip();
    for control in &controls {
        control.lock().unwrap().step_time = Duration::from_millis(1);
    }
    let watchdog = Watchdog { step_timeout: Duration::from_millis(400), on_fault };
    let engines = engines.into_iter().map(|engine| parts(Some(engine))).collect();
    (Handle::spawn_replicas(name, engines, options(), ModelMetrics::for_model(name), Some(watchdog)), controls)
}

fn last(stream: &mut EventStream) -> Event {
    while let Some(event) = stream.blocking_next() {
        if event.is_last() {
            return event;
        }
    }
    panic!("no last event");
}

fn finishes(stream: &mut EventStream) -> bool {
    matches!(last(stream), Event::Finished { .. })
}

fn active(handle: &Handle) -> Vec<usize> {
    handle.replicas().iter().map(|replica| replica.num_active).collect()
}

#[test]
fn sequences_spread_and_later_turns_go_where_their_prefix_is() {
    let (handle, _) = spawn("r-spread", 2, |_| {});
    let of = |first: u32, len: u32| (0..len).map(|i| first + i).collect::<Vec<u32>>();
    let send = |prompt: Vec<u32>, max_tokens| handle.enqueue(sequence(prompt, max_tokens)).unwrap();
    let mut streams: Vec<_> = (0..6).map(|i| send(vec![i; 9], 60)).collect();
    assert_eq!(active(&handle), [3, 3]);
    assert!(streams.iter_mut().all(finishes));
    until("the sequences to end", || active(&handle) == [0, 0]);
    // While all are idle, the first takes a new prompt, and each prefix leads back to its engine.
    let mut busy = send(vec![7; 9], 100);
    let mut elsewhere = send(of(8, 41), 4);
    assert_eq!(active(&handle), [1, 1]);
    assert!(finishes(&mut elsewhere) && finishes(&mut busy));
    until("the sequences to end", || active(&handle) == [0, 0]);
    let mut again = send(of(8, 50), 4);
    assert_eq!(active(&handle), [0, 1]);
    assert!(finishes(&mut again) && again.cached_tokens() >= 40, "{}", again.cached_tokens());
    // The same prompt spreads when the engine that has it is busy.
    let mut streams: Vec<_> = (0..4).map(|_| send(of(8, 50), 60)).collect();
    assert!(active(&handle).iter().all(|count| *count > 0), "{:?}", active(&handle));
    assert!(streams.iter_mut().all(finishes));
}

#[test]
fn choices_of_one_prompt_stay_together_and_prompts_of_a_request_spread() {
    let (handle, _) = spawn("r-groups", 2, |_| {});
    let mut request = handle.request(Client::default(), [9; 4]).unwrap();
    let group = Some(SequenceGroup::unique());
    let mut choice = |seed| {
        let new = NewSequence { sequence_group: group, params: params(seed), ..sequence(vec![3; 9], 30) };
        (request.enqueue(new.clone()).unwrap(), new)
    };
    let mut choices: Vec<_> = (0..4).map(&mut choice).collect();
    assert_eq!(active(&handle), [4, 0]);
    assert!(choices.iter_mut().all(|(stream, _)| finishes(stream)));
    let mut request = handle.request(Client::default(), [9; 4]).unwrap();
    let mut texts: Vec<_> = (0..4).map(|i| request.enqueue(sequence(vec![i; 9], 30)).unwrap()).collect();
    assert_eq!(active(&handle), [2, 2]);
    assert!(texts.iter_mut().all(finishes));
}

#[test]
fn replicas_share_one_queue() {
    let (handle, controls) = spawn("r-queue", 2, |_| {});
    controls.iter().for_each(|control| control.lock().unwrap().step_time = Duration::from_millis(20));
    // Four run on each replica, and 16 places wait.
    let mut streams = Vec::new();
    let refused = loop {
        match handle.enqueue(sequence(vec![streams.len() as u32; 5], 200)) {
            Ok(stream) => streams.push(stream),
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused, EnqueueError::QueueFull);
    assert!((16..=24).contains(&streams.len()), "{}", streams.len());
    assert_eq!(handle.full(Client::default()), Some(EnqueueError::QueueFull));
    drop(streams);
    until("the queue to empty", || handle.full(Client::default()).is_none() && handle.num_active() == 0);
    handle.stop();
    assert!(handle.wait_ended(Duration::from_secs(10)) && !handle.is_alive() && !handle.is_lost());
}

static REPORTED: Mutex<Vec<EngineFault>> = Mutex::new(Vec::new());

#[test]
#[cfg_attr(miri, ignore = "measures time")]
fn a_lost_replica_takes_its_own_sequences_and_the_last_loss_is_reported() {
    for (index, fault) in [EngineFault::DeviceLost, EngineFault::Stuck].into_iter().enumerate() {
        REPORTED.lock().unwrap().clear();
        let (handle, controls) = spawn(&format!("r-lost-{index}"), 2, |fault| REPORTED.lock().unwrap().push(fault));
        let lose = |replica: usize| {
            let mut control = controls[replica].lock().unwrap();
            match fault {
                EngineFault::DeviceLost => control.fault = Some((control.num_steps + 3, Some(EngineError::Device("bus".into())))),
                EngineFault::Stuck => control.step_time = Duration::from_secs(3),
            }
        };
        let new = |i: u64| NewSequence { params: params(i), ..sequence(vec![i as u32; 9], 150) };
        // The first four run, and the others wait. All room in the queue comes back, even from a thread that hangs.
        let mut streams: Vec<_> = (0..16).map(|i| (i, handle.enqueue(new(i)).unwrap())).collect();
        lose(0);
        let ends: Vec<_> = streams.iter_mut().map(|(i, stream)| (*i, last(stream), stream.is_engine_alive())).collect();
        let failed = ends.iter().filter(|(_, end, _)| matches!(end, Event::Failed(_))).count();
        assert_eq!(failed, 8, "{fault:?}: half of the sequences were on the lost replica: {ends:?}");
        assert!(ends.iter().all(|(_, end, alive)| *alive == matches!(end, Event::Finished { .. })));
        assert!(handle.is_alive() && !handle.is_lost() && REPORTED.lock().unwrap().is_empty());
        assert_eq!(handle.replicas().iter().map(|replica| replica.serves).collect::<Vec<_>>(), [false, true]);
        let metrics = ModelMetrics::for_model(&format!("r-lost-{index}"));
        until("the gauges to rest", || (metrics.num_requests_running.get(), metrics.num_requests_waiting.get()) == (0, 0));
        assert!(handle.shared_is_empty(), "{fault:?}");
        assert!(finishes(&mut handle.enqueue(new(3)).unwrap()));
        lose(1);
        assert!(matches!(last(&mut handle.enqueue(new(4)).unwrap()), Event::Failed(_)));
        until("the report", || *REPORTED.lock().unwrap() == [fault]);
        assert!(!handle.is_alive() && handle.is_lost());
        assert_eq!(handle.enqueue(new(5)).err(), Some(EnqueueError::Stopped));
    }
}

#[test]
fn a_replica_without_a_device_never_serves() {
    let (engine, _) = FakeEngine::new(capacity(), 4, 2);
    let replicas = vec![parts(None), parts(Some(engine))];
    let watchdog = Watchdog { step_timeout: Duration::from_secs(60), on_fault: |_| {} };
    let handle = Handle::spawn_replicas("r-absent", replicas, options(), ModelMetrics::for_model("r-absent"), Some(watchdog));
    assert!((0..3).all(|i| finishes(&mut handle.enqueue(sequence(vec![i; 9], 5)).unwrap())));
    assert_eq!(handle.replicas().iter().map(|replica| replica.serves).collect::<Vec<_>>(), [false, true]);
    handle.stop();
    assert!(handle.wait_ended(Duration::from_secs(10)));
}

#[test]
fn clients_on_many_threads_get_their_solo_runs_or_an_error_while_a_replica_is_lost() {
    let (handle, controls) = spawn("r-race", 3, |_| {});
    controls[1].lock().unwrap().fault = Some((40, Some(EngineError::Device("bus".into()))));
    let num_threads = if cfg!(miri) { 3 } else { 8u32 };
    let client = |thread: u32| {
        let handle = handle.clone();
        move || {
            let mut num_failed = 0;
            for i in 0..if cfg!(miri) { 3 } else { 40 } {
                let new = NewSequence { params: params(u64::from(i)), ..sequence(vec![(thread + i) % 5; 9], 3 + i % 7) };
                let Ok(mut stream) = handle.enqueue(new.clone()) else { continue };
                let mut tokens = Vec::new();
                let end = loop {
                    match stream.blocking_next() {
                        Some(Event::Token { id, .. }) => tokens.push(id),
                        end => break end,
                    }
                };
                match end {
                    Some(Event::Finished { .. }) => assert_eq!(tokens, solo_run(&new, &capacity()).0),
                    Some(Event::Failed(_)) => num_failed += 1,
                    other => panic!("{other:?}"),
                }
            }
            num_failed
        }
    };
    let threads: Vec<_> = (0..num_threads).map(|thread| std::thread::spawn(client(thread))).collect();
    let num_failed: u32 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    assert!(num_failed <= num_threads, "each client has one sequence at a time: {num_failed}");
    until("all to be counted", || active(&handle) == [0, 0, 0]);
    assert!(handle.is_alive() && handle.shared_is_empty());
}
