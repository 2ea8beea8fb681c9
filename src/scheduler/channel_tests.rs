//! Event streams of a running engine thread, read as HTTP workers do, and the cost of delivering events.

use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use tokio::task::LocalSet;

use super::*;
use crate::fake::{FakeEngine, solo_run};
use crate::mailbox::{WakeBatch, deliver_events};
use crate::testing::{options, params, patience, sequence, until};
use crate::{EventStream, Handle, NewSequence};
use engine::KvCapacity;
use metrics::ModelMetrics;

fn capacity() -> KvCapacity {
    KvCapacity::blocks(if cfg!(miri) { 128 } else { 4096 }, 4)
}

/// Runs `work` as an HTTP worker would, with a mailbox.
fn as_worker(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        tokio::task::spawn_local(deliver_events());
        tokio::time::timeout(patience(60), work).await.expect("a wake was lost");
    });
}

/// Reads at most `most` tokens. Now and then, gives up waiting, so that another future waits for the same event.
async fn read(stream: &mut EventStream, most: usize) -> Vec<u32> {
    // Under Miri, tasks that spin would leave the engine no time.
    let patience = if cfg!(miri) { 1 } else { usize::MAX };
    let (mut tokens, mut times_given_up) = (Vec::new(), 0);
    while tokens.len() < most {
        let event = tokio::select! {
            biased;
            event = stream.next() => event,
            () = tokio::task::yield_now(), if tokens.len() % 3 == 0 && times_given_up < patience => {
                times_given_up += 1;
                continue;
            }
        };
        times_given_up = 0;
        match event {
            Some(Event::Token { id, .. }) => tokens.push(id),
            Some(Event::Finished { .. }) => break,
            other => panic!("{other:?}"),
        }
    }
    tokens
}

#[test]
fn many_workers_get_every_token_while_streams_are_dropped_and_moved() {
    // Miri runs one stream of each kind per worker.
    const EACH: u32 = if cfg!(miri) { 3 } else { 40 };
    let (engine, _) = FakeEngine::new(capacity(), 128, 2);
    let handle = Handle::spawn(Box::new(engine), options(256, 128), ModelMetrics::for_model("mailboxes"));
    let max_tokens = |i: u32| if cfg!(miri) { 14 } else { 30 + i % 50 };
    let new = |i: u32| NewSequence { params: params(u64::from(i)), ..sequence(vec![i % 7; 5], max_tokens(i)) };
    thread::scope(|scope| {
        for worker in 0..3 {
            let handle = handle.clone();
            scope.spawn(move || {
                as_worker(async {
                    let tasks: Vec<_> = (worker * EACH..(worker + 1) * EACH)
                        .map(|i| {
                            let (mut stream, whole) = (handle.enqueue(new(i)).unwrap(), solo_run(&new(i), &capacity()).0);
                            tokio::task::spawn_local(async move {
                                let before = read(&mut stream, [usize::MAX, 10, 10][i as usize % 3]).await;
                                let after = match i % 3 {
                                    1 => return assert_eq!(before, whole[..10], "stream {i}, which is dropped"),
                                    2 => thread::spawn(move || {
                                        let mut tokens = Vec::new();
                                        while let Some(Event::Token { id, .. }) = stream.blocking_next() {
                                            tokens.push(id);
                                        }
                                        tokens
                                    }),
                                    _ => return assert_eq!(before, whole, "stream {i}"),
                                };
                                let after = tokio::task::spawn_blocking(|| after.join().unwrap()).await.unwrap();
                                assert_eq!([before, after].concat(), whole, "stream {i}, which is moved");
                            })
                        })
                        .collect();
                    for task in tasks {
                        task.await.unwrap();
                    }
                });
            });
        }
    });
    until("all to end", || handle.num_active() == 0);
}

#[test]
fn workers_learn_of_the_end_of_the_engine_thread() {
    let (engine, control) = FakeEngine::new(capacity(), 32, 2);
    control.lock().unwrap().fault = Some((20, None));
    let handle = Handle::spawn(Box::new(engine), options(64, 32), ModelMetrics::for_model("mailboxes-end"));
    as_worker(async {
        let streams: Vec<_> = (0..if cfg!(miri) { 3 } else { 8 }).map(|_| handle.enqueue(sequence(vec![1; 4], 400)).unwrap()).collect();
        for mut stream in streams {
            let last = loop {
                match stream.next().await {
                    Some(Event::Token { .. }) => {}
                    last => break last,
                }
            };
            assert!(matches!(&last, Some(Event::Failed(message)) if message.contains("panicked")), "{last:?}");
        }
    });
}

/// Keeps this thread on one processor, so that a measurement does not depend on where threads happen to run.
fn stay_on(processor: &str) {
    let id = std::fs::read_link("/proc/thread-self").unwrap();
    let id = id.file_name().unwrap();
    assert!(std::process::Command::new("taskset").args(["-pc", processor]).arg(id).output().unwrap().status.success());
}

fn spin_until(condition: impl Fn() -> bool) {
    while !condition() {
        std::hint::spin_loop();
    }
}

/// `cargo test --release -p penstock-scheduler round_overhead -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn round_overhead() {
    const EACH: usize = 128;
    stay_on("0");
    for has_mailbox in [false, true] {
        let (ready, wait) = std::sync::mpsc::channel();
        // `read`: when the last event of the last batch was read [ns].
        let (start, num_read, read) = (Instant::now(), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        for _ in 0..2 {
            let (ready, num_read, read) = (ready.clone(), num_read.clone(), read.clone());
            thread::spawn(move || {
                stay_on("1");
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                LocalSet::new().block_on(&runtime, async {
                    if has_mailbox {
                        tokio::task::spawn_local(deliver_events());
                        tokio::task::yield_now().await;
                    }
                    let (senders, events): (Vec<_>, Vec<_>) = (0..EACH).map(|_| channel()).unzip();
                    for mut events in events {
                        let (num_read, read) = (num_read.clone(), read.clone());
                        tokio::task::spawn_local(async move {
                            while events.next().await.is_some() {
                                if (num_read.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(2 * EACH) {
                                    read.store(start.elapsed().as_nanos() as usize, Ordering::Relaxed);
                                }
                            }
                        });
                    }
                    ready.send(senders).unwrap();
                    std::future::pending::<()>().await;
                });
            });
        }
        let senders: Vec<Vec<EventSender>> = wait.iter().take(2).collect();
        let mut times: [Vec<Duration>; 3] = Default::default();
        for _ in 0..1000 {
            let rested = start.elapsed() + Duration::from_micros(300);
            spin_until(|| start.elapsed() > rested);
            let begun = start.elapsed();
            let batch = WakeBatch::open();
            (0..EACH).for_each(|i| senders.iter().for_each(|senders| senders[i].send(Event::Token { id: 1, logprobs: None })));
            times[0].push(start.elapsed() - begun);
            drop(batch);
            times[1].push(start.elapsed() - begun);
            spin_until(|| read.load(Ordering::Relaxed) as u128 > begun.as_nanos());
            times[2].push(Duration::from_nanos(read.load(Ordering::Relaxed) as u64) - begun);
        }
        let [sent, batch, read] = times.map(|mut times| {
            times.sort_unstable();
            times[500]
        });
        println!(
            "256 streams on 2 threads, mailboxes: {has_mailbox}: medians: sent {sent:.1?}, batch over {batch:.1?}, all read {read:.1?}"
        );
    }
}
