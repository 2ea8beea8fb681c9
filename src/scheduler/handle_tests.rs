//! The handle and its thread: ends, faults, bounds, and the cost of a step on the host.

use std::time::{Duration, Instant};

use super::*;
use crate::engine_fault::EngineFault;
use crate::engine_thread::STOPPED;
use crate::event::Event;
use crate::fake::{FakeEngine, solo_run};
use crate::step::Scheduler;
use crate::testing::{params, sequence, shared, state, until};
use engine::{Batch, EngineError, KvCapacity, Masks, Sampled, StepId, StepOutput};
use model::ModelSpec;

fn capacity() -> KvCapacity {
    KvCapacity::blocks(64, 4)
}

fn options(max_running: usize, max_waiting: usize) -> SchedulerOptions {
    SchedulerOptions { max_batch_tokens: 32, max_running, max_waiting, max_waiting_tokens: 0, prefix_cache: true, drafts: true }
}

fn read_all(stream: &mut EventStream) -> (Vec<u32>, Event) {
    let mut tokens = vec![];
    loop {
        match stream.blocking_next() {
            Some(Event::Token { id, .. }) => tokens.push(id),
            Some(last) => {
                assert!(stream.blocking_next().is_none(), "an event after the last");
                return (tokens, last);
            }
            None => panic!("no last event"),
        }
    }
}

#[test]
fn clients_on_many_threads_get_their_solo_runs() {
    for max_in_flight in [1, 2] {
        let (engine, _) = FakeEngine::new(capacity(), 4, max_in_flight);
        let handle = Handle::spawn(Box::new(engine), options(4, 100), ModelMetrics::for_model("threads"));
        let clients: Vec<_> = (0..if cfg!(miri) { 6 } else { 24u32 })
            .map(|i| {
                let handle = handle.clone();
                std::thread::spawn(move || {
                    let new = NewSequence { params: params(u64::from(i)), ..sequence(vec![i % 3; 9], 5 + i) };
                    let (tokens, last) = read_all(&mut handle.enqueue(new.clone()).unwrap());
                    assert_eq!(tokens, solo_run(&new, &capacity()).0);
                    assert!(matches!(last, Event::Finished { .. }));
                })
            })
            .collect();
        clients.into_iter().for_each(|client| client.join().unwrap());
        assert_eq!(handle.num_active(), 0);
        assert!(handle.is_alive());
    }
}

#[tokio::test]
async fn events_can_be_awaited() {
    let (engine, _) = FakeEngine::new(capacity(), 4, 2);
    let handle = Handle::spawn(Box::new(engine), options(4, 100), ModelMetrics::for_model("async"));
    let mut stream = handle.enqueue(sequence(vec![1; 9], 5)).unwrap();
    for id in solo_run(&sequence(vec![1; 9], 5), &capacity()).0 {
        assert!(matches!(stream.next().await, Some(Event::Token { id: got, .. }) if got == id));
    }
    assert!(matches!(stream.next().await, Some(Event::Finished { .. })));
    assert!(stream.next().await.is_none());
}

#[test]
fn the_reused_prefix_is_known_with_the_first_token() {
    let (engine, _) = FakeEngine::new(capacity(), 4, 2);
    let handle = Handle::spawn(Box::new(engine), options(4, 100), ModelMetrics::for_model("cached"));
    let cached = |expected: u32| {
        let mut stream = handle.enqueue(sequence((0..16).collect(), 5)).unwrap();
        assert!(matches!(stream.blocking_next(), Some(Event::Token { .. })));
        assert_eq!(stream.cached_tokens(), expected);
        assert!(matches!(read_all(&mut stream).1, Event::Finished { cached_tokens, .. } if cached_tokens == expected));
    };
    cached(0);
    // 16 tokens fill four blocks, but the last token's logits must be computed.
    cached(12);
}

#[test]
fn the_queue_is_bounded_and_a_dropped_stream_makes_room() {
    let (engine, control) = FakeEngine::new(capacity(), 1, 1);
    control.lock().unwrap().step_time = Duration::from_millis(2);
    let handle = Handle::spawn(Box::new(engine), options(1, 3), ModelMetrics::for_model("bound"));
    let running = handle.enqueue(sequence(vec![1; 4], 200)).unwrap();
    until("the first to run", || control.lock().unwrap().num_steps > 1);
    let waiting: Vec<_> = (0..3).map(|_| handle.enqueue(sequence(vec![2; 4], 2)).unwrap()).collect();
    assert_eq!(handle.enqueue(sequence(vec![2; 4], 2)).err(), Some(EnqueueError::QueueFull));
    assert_eq!(handle.num_active(), 4);
    drop(waiting);
    until("the queue to empty", || handle.num_active() == 1);
    let mut next = handle.enqueue(sequence(vec![2; 4], 2)).unwrap();
    drop(running);
    assert!(matches!(read_all(&mut next).1, Event::Finished { .. }));
    until("all to end", || handle.num_active() == 0);
}

#[test]
fn stop_or_dropping_the_last_handle_ends_the_thread_and_tells_the_clients() {
    for by_stop in [true, false] {
        let (engine, control) = FakeEngine::new(capacity(), 1, 2);
        control.lock().unwrap().step_time = Duration::from_millis(2);
        let handle = Handle::spawn(Box::new(engine), options(1, 10), ModelMetrics::for_model("stop"));
        let mut streams: Vec<_> = (0..3).map(|_| handle.enqueue(sequence(vec![1; 4], 200)).unwrap()).collect();
        assert!(matches!(streams[0].blocking_next(), Some(Event::Token { .. })));
        if by_stop {
            handle.stop();
            assert!(!handle.is_alive());
            assert_eq!(handle.enqueue(sequence(vec![1], 1)).err(), Some(EnqueueError::Stopped));
            handle.stop();
        }
        drop(handle);
        for stream in &mut streams {
            assert!(matches!(read_all(stream).1, Event::Failed(message) if message == STOPPED));
        }
        // The thread owns the engine, and the engine the other reference to `control`.
        until("the thread to end", || Arc::strong_count(&control) == 1);
    }
}

#[test]
#[cfg_attr(miri, ignore = "measures time")]
fn a_panic_a_lost_device_or_lost_weights_fail_every_sequence_within_a_second() {
    for max_in_flight in [1, 2] {
        for fault_in_collect in [false, true] {
            for error in [None, Some(EngineError::Device("bus".into())), Some(EngineError::Weights("cut".into()))] {
                let (engine, control) = FakeEngine::new(capacity(), 2, max_in_flight);
                let word = error.as_ref().map_or("panicked".to_owned(), EngineError::to_string);
                {
                    let mut control = control.lock().unwrap();
                    control.step_time = Duration::from_millis(1);
                    control.fault_in_collect = fault_in_collect;
                    control.fault = Some((20, error));
                }
                let handle = Handle::spawn(Box::new(engine), options(2, 10), ModelMetrics::for_model("fault"));
                let mut streams: Vec<_> = (0..5).map(|_| handle.enqueue(sequence(vec![1; 4], 200)).unwrap()).collect();
                let start = Instant::now();
                for stream in &mut streams {
                    let Event::Failed(message) = read_all(stream).1 else { panic!("it finished") };
                    assert!(message.contains(&word), "{message}");
                }
                assert!(start.elapsed() < Duration::from_secs(1));
                assert!(!handle.is_alive());
                assert_eq!(handle.enqueue(sequence(vec![1], 1)).err(), Some(EnqueueError::Stopped));
                assert_eq!(handle.num_active(), 0);
            }
        }
    }
}

/// Faults reported in these tests.
static FAULTS: std::sync::Mutex<Vec<EngineFault>> = std::sync::Mutex::new(Vec::new());

#[test]
#[cfg_attr(miri, ignore = "measures time")]
fn the_watchdog_reports_a_stuck_step_and_a_lost_device() {
    let watchdog = Watchdog { step_timeout: Duration::from_millis(300), on_fault: |fault| FAULTS.lock().unwrap().push(fault) };
    let spawn = |step_time, fault: Option<EngineError>| {
        let (engine, control) = FakeEngine::new(capacity(), 2, 2);
        control.lock().unwrap().step_time = step_time;
        control.lock().unwrap().fault = fault.map(|fault| (20, Some(fault)));
        Handle::spawn_watched(Box::new(engine), options(2, 10), ModelMetrics::for_model("watchdog"), Some(watchdog))
    };
    // The watchdog ignores slow steps and errors that another load may cure.
    let healthy = spawn(Duration::from_millis(5), Some(EngineError::OutOfMemory("a pool".into())));
    assert!(matches!(read_all(&mut healthy.enqueue(sequence(vec![1; 4], 100)).unwrap()).1, Event::Failed(_)));
    assert!(matches!(read_all(&mut healthy.enqueue(sequence(vec![1; 4], 100)).unwrap()).1, Event::Finished { .. }));
    assert!(healthy.is_alive() && !healthy.is_lost() && FAULTS.lock().unwrap().is_empty());
    // Changed weights concern only one model.
    let cut = spawn(Duration::from_millis(1), Some(EngineError::Weights("cut".into())));
    assert!(matches!(read_all(&mut cut.enqueue(sequence(vec![1; 4], 100)).unwrap()).1, Event::Failed(message) if message.contains("cut")));
    until("the engine to end", || !cut.is_alive());
    assert!(!cut.is_lost() && FAULTS.lock().unwrap().is_empty());
    // A step that takes longer than the limit is no fault as long as pieces of it end.
    let slow = {
        let (engine, control) = FakeEngine::new(capacity(), 2, 2);
        (control.lock().unwrap().step_time, control.lock().unwrap().num_pieces) = (Duration::from_millis(900), 9);
        Handle::spawn_watched(Box::new(engine), options(2, 10), ModelMetrics::for_model("slow"), Some(watchdog))
    };
    assert!(matches!(read_all(&mut slow.enqueue(sequence(vec![1; 4], 2)).unwrap()).1, Event::Finished { .. }));
    assert!(slow.is_alive() && FAULTS.lock().unwrap().is_empty());
    let faults = [(Duration::from_secs(4), None), (Duration::from_millis(1), Some(EngineError::Device("bus".into())))];
    for ((step_time, error), (word, fault)) in
        faults.into_iter().zip([("it made no progress", EngineFault::Stuck), ("bus", EngineFault::DeviceLost)])
    {
        let handle = spawn(step_time, error);
        let mut streams: Vec<_> = (0..5).map(|_| handle.enqueue(sequence(vec![1; 4], 200)).unwrap()).collect();
        let start = Instant::now();
        for stream in &mut streams {
            let Event::Failed(message) = read_all(stream).1 else { panic!("it finished") };
            assert!(message.contains(word), "{message}");
        }
        assert!(start.elapsed() < Duration::from_millis(1300), "{fault:?} took {:?}", start.elapsed());
        until("the watchdog's report", || FAULTS.lock().unwrap().last() == Some(&fault));
        assert!(!handle.is_alive() && handle.is_lost());
        assert_eq!(handle.enqueue(sequence(vec![1], 1)).err(), Some(EnqueueError::Stopped));
    }
    assert_eq!(*FAULTS.lock().unwrap(), [EngineFault::Stuck, EngineFault::DeviceLost], "each fault is reported once");
}

#[test]
#[cfg_attr(miri, ignore = "measures time")]
fn the_watchdog_reports_a_thread_that_hangs_outside_of_steps() {
    static HUNG: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let on_fault = |_| {
        HUNG.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    };
    let (engine, control) = FakeEngine::new(capacity(), 2, 2);
    control.lock().unwrap().memory_time = Duration::from_secs(4);
    let watchdog = Some(Watchdog { step_timeout: Duration::from_millis(300), on_fault });
    let handle = Handle::spawn_watched(Box::new(engine), options(2, 10), ModelMetrics::for_model("hangs"), watchdog);
    let start = Instant::now();
    let Event::Failed(message) = read_all(&mut handle.enqueue(sequence(vec![1; 4], 5)).unwrap()).1 else { panic!("it finished") };
    assert!(message.contains("it made no progress within 0.3 s"), "{message}");
    assert!(start.elapsed() < Duration::from_millis(1300) && handle.is_lost());
    until("the watchdog's report", || HUNG.load(std::sync::atomic::Ordering::Relaxed) == 1);
}

#[test]
fn the_list_of_clients_does_not_grow_without_bound() {
    let (shared, state) = (shared(10), state());
    let mut alive = Vec::new();
    for i in 0..if cfg!(miri) { 200 } else { 1000 } {
        let (sender, receiver) = channel();
        let sender = Arc::new(sender);
        let permit = QueuePermits::take(&shared, crate::Client::default(), [1]).unwrap().next().unwrap();
        state.add_client((Arc::downgrade(&sender), Arc::downgrade(permit.ticket())));
        if i % 100 == 0 {
            alive.push((sender, receiver));
        }
    }
    assert!(state.num_clients() <= 16 + alive.len(), "{}", state.num_clients());
    state.tell_all(&Event::Failed("the end".into()));
    assert!(alive.iter_mut().all(|(_, receiver)| matches!(receiver.blocking_next(), Some(Event::Failed(_)))));
}

/// Test double: an engine whose steps take no time.
struct FreeEngine {
    inner: FakeEngine,
    capacity: KvCapacity,
    num_sampled: [usize; 2],
    step: u64,
}

impl Engine for FreeEngine {
    fn spec(&self) -> &ModelSpec {
        self.inner.spec()
    }

    fn kv_capacity(&self) -> KvCapacity {
        self.capacity.clone()
    }

    fn max_slots(&self) -> usize {
        32
    }

    fn max_in_flight(&self) -> usize {
        self.inner.max_in_flight()
    }

    fn submit(&mut self, batch: &Batch) -> Result<StepId, EngineError> {
        self.step += 1;
        self.num_sampled[self.step as usize % 2] = batch.num_sampled();
        Ok(StepId(self.step))
    }

    fn sample(&mut self, _: StepId, _: &Masks) -> Result<(), EngineError> {
        unreachable!("no sequence follows a grammar")
    }

    fn collect(&mut self, step: StepId, out: &mut StepOutput) -> Result<(), EngineError> {
        out.sampled.clear();
        out.sampled.resize(self.num_sampled[step.0 as usize % 2], Sampled::Token(7));
        Ok(())
    }
}

/// `cargo test --release step_overhead -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn step_overhead() {
    for max_in_flight in [1, 2] {
        for prompt in [16, 2000] {
            let capacity = KvCapacity::blocks(16_000, 16);
            let engine = FreeEngine {
                inner: FakeEngine::new(KvCapacity::blocks(64, 4), 32, max_in_flight).0,
                capacity,
                num_sampled: [0; 2],
                step: 0,
            };
            let options = SchedulerOptions {
                max_batch_tokens: 512,
                max_running: 32,
                max_waiting: 64,
                max_waiting_tokens: 0,
                prefix_cache: true,
                drafts: true,
            };
            let mut scheduler =
                Scheduler::new(Engines { engine: Box::new(engine), draft: None }, options, ModelMetrics::for_model("overhead"));
            let shared = shared(64);
            let streams: Vec<_> = (0..32)
                .map(|i| {
                    let (sender, receiver) = channel();
                    let new = sequence(vec![i; prompt], 4000);
                    scheduler.push(Sequence::new(
                        new,
                        Arc::new(sender),
                        QueuePermits::take(&shared, crate::Client::default(), [1]).unwrap().next().unwrap(),
                    ));
                    receiver
                })
                .collect();
            (0..200).for_each(|_| scheduler.step().unwrap());
            let start = Instant::now();
            for _ in 0..2000 {
                scheduler.reap_cancelled();
                scheduler.step().unwrap();
            }
            let micros = start.elapsed().as_secs_f64() * 1e6 / 2000.0;
            assert_eq!(scheduler.sequences().running.len(), 32);
            println!("32 sequences, prompts of {prompt}, {max_in_flight} in flight: {micros:.1} us per step");
            drop(streams);
        }
    }
}
