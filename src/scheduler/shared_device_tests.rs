//! Two models on one device, each with its engine thread.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::engine_fault::EngineFault;
use crate::fake::{BLOCK_BYTES, Control, FakeEngine, solo_run};
use crate::guesser::Engines;
use crate::replica::DeviceShare;
use crate::testing::{options, patience, sequence};
use crate::watchdog::Watchdog;
use crate::{Event, EventStream, Handle, NewSequence, SharedDevice};
use engine::KvCapacity;
use metrics::ModelMetrics;

fn capacity() -> KvCapacity {
    KvCapacity::blocks(if cfg!(miri) { 128 } else { 4096 }, 4)
}

/// Miri is hundreds of times slower.
const SHORTER: u32 = if cfg!(miri) { 20 } else { 1 };

/// A model whose rows each take `row_time` on the device.
fn model(name: &str, device: &Arc<SharedDevice>, gpu: &Arc<Mutex<()>>, row_time: Duration) -> (Handle, Arc<Mutex<Control>>) {
    let (engine, control) = FakeEngine::new(capacity(), 8, 2);
    {
        let mut control = control.lock().unwrap();
        (control.row_time, control.step_time, control.device) = (row_time, Duration::from_micros(500), gpu.clone());
    }
    let watchdog = Watchdog { step_timeout: Duration::from_secs(20), on_fault: |fault: EngineFault| panic!("{fault:?}") };
    let share = DeviceShare { device: device.clone(), share: 1.0, cache_idle: Duration::from_secs(300) };
    let handle = Handle::spawn_on(
        Engines { engine: Box::new(engine), draft: None },
        options(2048, 8),
        ModelMetrics::for_model(name),
        Some(watchdog),
        (Some(share), None),
    );
    (handle, control)
}

fn first_token(stream: &mut EventStream) -> Duration {
    let start = Instant::now();
    assert!(matches!(stream.blocking_next(), Some(Event::Token { .. })));
    start.elapsed()
}

fn drain(mut stream: EventStream) -> (Vec<u32>, Event) {
    let mut tokens = Vec::new();
    loop {
        match stream.blocking_next() {
            Some(Event::Token { id, .. }) => tokens.push(id),
            Some(last) => return (tokens, last),
            None => panic!("no last event"),
        }
    }
}

fn prompt(seed: u32, len: u32) -> Vec<u32> {
    (0..len).map(|i| (i * 7 + seed * 13 + i / 50) % 50).collect()
}

/// The prompts of a large model take 0.2 s per full step. A small model's first token waits for one short step of it, not for several.
#[test]
#[cfg_attr(miri, ignore = "measures time")]
fn a_small_model_does_not_wait_behind_the_prompts_of_a_large_one() {
    let (device, gpu) = (Arc::default(), Arc::default());
    let (large, control) = model("large", &device, &gpu, Duration::from_micros(100));
    let (small, _) = model("small", &device, &gpu, Duration::from_micros(2));
    let long: Vec<NewSequence> = (0..6).map(|i| sequence(prompt(i, 2400), 4)).collect();
    let streams: Vec<EventStream> = long.iter().map(|new| large.enqueue(new.clone()).unwrap()).collect();
    std::thread::sleep(Duration::from_millis(50));
    let mut waits = Vec::new();
    while large.num_active() > 3 {
        let new = sequence(prompt(99, 40), 12);
        let mut stream = small.enqueue(new.clone()).unwrap();
        waits.push(first_token(&mut stream));
        let (tokens, _) = drain(stream);
        assert_eq!(tokens, solo_run(&new, &capacity()).0[1..]);
    }
    waits.sort();
    println!(
        "first tokens of the small model: median {:?}, longest {:?} of {}",
        waits[waits.len() / 2],
        waits[waits.len() - 1],
        waits.len()
    );
    assert!(waits[waits.len() / 2] < Duration::from_millis(120), "{waits:?}");
    for (new, stream) in long.iter().zip(streams) {
        assert_eq!(drain(stream).0, solo_run(new, &capacity()).0, "cut into other chunks");
    }
    assert!(control.lock().unwrap().max_rows > 1000, "steps are full while nobody waits");
}

#[test]
fn a_model_alone_loses_nothing_to_time_slices() {
    let run = |others: usize| {
        let (device, gpu) = (Arc::default(), Arc::default());
        let idle: Vec<_> = (0..others).map(|i| model(&format!("idle {i}"), &device, &gpu, Duration::from_micros(1))).collect();
        let (alone, control) = model("alone", &device, &gpu, Duration::from_micros(20));
        drain(alone.enqueue(sequence(prompt(1, 4000 / SHORTER), 30)).unwrap());
        drop(idle);
        let control = control.lock().unwrap();
        (control.num_steps, control.max_rows)
    };
    assert_eq!(run(0), run(3), "the same steps");
}

/// A model that dies while it has the device does not block the others.
#[test]
fn a_model_that_dies_with_the_device_does_not_stop_the_others() {
    for by_panic in [true, false] {
        let (device, gpu) = (Arc::default(), Arc::default());
        let (dies, control) = model("dies", &device, &gpu, Duration::from_micros(50));
        let (goes_on, _) = model("goes on", &device, &gpu, Duration::from_micros(50));
        let stream = dies.enqueue(sequence(prompt(1, 2000 / SHORTER), 200)).unwrap();
        let others: Vec<EventStream> = (0..4).map(|i| goes_on.enqueue(sequence(prompt(i, 300 / SHORTER), 60 / SHORTER)).unwrap()).collect();
        std::thread::sleep(Duration::from_millis(30));
        if by_panic {
            let mut control = control.lock().unwrap();
            control.fault = Some((control.num_steps + 2, None));
        } else {
            dies.stop();
        }
        assert!(matches!(drain(stream).1, Event::Failed(_)));
        for (i, stream) in others.into_iter().enumerate() {
            assert_eq!(drain(stream).0, solo_run(&sequence(prompt(i as u32, 300 / SHORTER), 60 / SHORTER), &capacity()).0);
        }
        assert!(goes_on.is_alive() && !dies.is_alive());
    }
}

/// Dropping the handle ends its thread, although the device still knows the model.
#[test]
fn a_model_without_handles_leaves_its_device() {
    let (device, gpu): (Arc<SharedDevice>, _) = (Arc::default(), Arc::default());
    let (handle, control) = model("leaves", &device, &gpu, Duration::from_micros(1));
    drain(handle.enqueue(sequence(prompt(1, 20), 2)).unwrap());
    assert_eq!(handle.cache().most, capacity().num_blocks as u64 * BLOCK_BYTES);
    drop(handle);
    let start = Instant::now();
    // The engine and this test hold the control.
    while Arc::strong_count(&control) > 1 {
        assert!(start.elapsed() < patience(5), "the thread has not ended");
        std::thread::sleep(Duration::from_millis(1));
    }
    let room = device.reserve_memory(1 << 40, || Some(0));
    drop(room);
}
