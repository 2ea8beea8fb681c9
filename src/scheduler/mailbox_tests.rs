//! Wakes are counted, and none is lost: in rounds and outside, while streams are dropped, moved to other threads or polled by others.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::LocalSet;

use super::*;
use crate::fake::{FakeEngine, solo_run};
use crate::testing::{options, params, sequence};
use crate::{Event, EventStream, Handle, NewSequence};
use engine::KvCapacity;
use metrics::ModelMetrics;

/// Test double: a task that only counts how often it is woken.
#[derive(Default)]
struct Task(AtomicUsize);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Task {
    fn num_wakes(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    fn poll<T>(self: &Arc<Self>, future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
        future.poll(&mut Context::from_waker(&self.clone().into()))
    }
}

/// A stream of numbers with the task that reads it.
struct Reader {
    sender: Option<UnboundedSender<u32>>,
    receiver: UnboundedReceiver<u32>,
    waiter: Waiter,
    task: Arc<Task>,
}

impl Reader {
    fn new() -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        Self { sender: Some(sender), receiver, waiter: Waiter::default(), task: Arc::default() }
    }

    fn poll(&mut self) -> Poll<Option<u32>> {
        let Self { receiver, waiter, task, .. } = self;
        waiter.poll(&mut Context::from_waker(&task.clone().into()), |context| receiver.poll_recv(context))
    }

    async fn next(&mut self) -> Option<u32> {
        let Self { receiver, waiter, .. } = self;
        poll_fn(|context| waiter.poll(context, |context| receiver.poll_recv(context))).await
    }

    fn send(&self, number: u32) {
        self.sender.as_ref().unwrap().send(number).unwrap();
    }
}

/// Readers that have found nothing.
fn waiting<const N: usize>() -> [Reader; N] {
    std::array::from_fn(|_| {
        let mut reader = Reader::new();
        assert!(reader.poll().is_pending());
        reader
    })
}

fn num_wakes(readers: &[Reader]) -> Vec<usize> {
    readers.iter().map(|reader| reader.task.num_wakes()).collect()
}

#[test]
fn a_round_costs_one_wake_per_thread_whatever_the_number_of_streams() {
    let (task, mut delivery) = (Arc::new(Task::default()), pin!(deliver_events()));
    assert!(task.poll(delivery.as_mut()).is_pending());
    let mut readers = waiting::<100>();
    for round in 1..4 {
        thread::scope(|scope| {
            scope.spawn(|| {
                let _round = Round::open();
                readers.iter().for_each(|reader| reader.send(round as u32));
            });
        });
        assert_eq!((task.num_wakes(), num_wakes(&readers)), (round, vec![round - 1; 100]), "the round wakes no reader");
        assert!(task.poll(delivery.as_mut()).is_pending());
        assert_eq!((task.num_wakes(), num_wakes(&readers)), (round, vec![round; 100]));
        readers.iter_mut().for_each(|reader| assert_eq!(reader.poll(), Poll::Ready(Some(round as u32))));
        readers.iter_mut().for_each(|reader| assert!(reader.poll().is_pending()));
    }
}

fn until(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(10));
        thread::sleep(Duration::from_millis(1));
    }
}

/// What an engine thread knows of a thread that reads streams.
struct Worker {
    senders: Vec<UnboundedSender<u32>>,
    tasks: Vec<Arc<Task>>,
    delivery: Arc<Task>,
}

#[test]
fn each_thread_of_a_round_is_woken_once() {
    let (ready, wait) = std::sync::mpsc::channel();
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let ready = ready.clone();
            thread::spawn(move || {
                let (task, mut delivery) = (Arc::new(Task::default()), pin!(deliver_events()));
                assert!(task.poll(delivery.as_mut()).is_pending());
                let mut readers = waiting::<5>();
                let senders = readers.iter_mut().map(|reader| reader.sender.take().unwrap()).collect();
                let tasks = readers.iter().map(|reader| reader.task.clone()).collect();
                ready.send(Worker { senders, tasks, delivery: task.clone() }).unwrap();
                until(|| task.num_wakes() > 0);
                assert!(task.poll(delivery.as_mut()).is_pending());
                readers.iter_mut().for_each(|reader| assert_eq!(reader.poll(), Poll::Ready(Some(7))));
            })
        })
        .collect();
    let workers: Vec<Worker> = wait.iter().take(3).collect();
    let round = Round::open();
    for i in 0..5 {
        workers.iter().for_each(|worker| worker.senders[i].send(7).unwrap());
    }
    assert!(workers.iter().all(|worker| worker.delivery.num_wakes() == 0));
    drop(round);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    for Worker { tasks, delivery, .. } in &workers {
        assert_eq!((delivery.num_wakes(), tasks.iter().map(|task| task.num_wakes()).sum::<usize>()), (1, 5));
    }
}

#[test]
fn whatever_needs_no_mailbox_wakes_at_once() {
    let [before] = waiting();
    let (task, mut delivery) = (Arc::new(Task::default()), pin!(deliver_events()));
    assert!(task.poll(delivery.as_mut()).is_pending());
    let [outside, mut ended, alone, in_panic, with_it] = waiting();
    outside.send(1);
    ended.sender = None;
    {
        let _round = Round::open();
        before.send(1);
        assert_eq!(num_wakes(&[before]), [1], "its thread had no mailbox when it was polled");
        alone.send(1);
    }
    assert_eq!((task.num_wakes(), num_wakes(&[outside, ended, alone])), (0, vec![1; 3]));
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _round = Round::open();
        [&in_panic, &with_it].into_iter().for_each(|reader| reader.send(1));
        panic!("a commit");
    }));
    assert!(panicked.is_err() && task.num_wakes() == 1, "a round that panics is delivered");
    let mut second = pin!(deliver_events());
    assert!(task.poll(second.as_mut()).is_ready(), "a thread has one mailbox");
}

#[test]
fn a_mailbox_that_nobody_empties_any_more_holds_nothing_back() {
    let (task, mut delivery) = (Arc::new(Task::default()), Box::pin(deliver_events()));
    assert!(task.poll(delivery.as_mut()).is_pending());
    let (mut inside, later) = (waiting::<2>(), waiting::<2>());
    let send = |readers: &[Reader]| {
        let _round = Round::open();
        readers.iter().for_each(|reader| reader.send(1));
    };
    send(&inside);
    assert_eq!(num_wakes(&inside), [0, 0]);
    drop(delivery);
    assert_eq!(num_wakes(&inside), [1, 1]);
    send(&later);
    assert_eq!(num_wakes(&later), [1, 1]);
    inside.iter_mut().for_each(|reader| assert!(reader.poll().is_ready() && reader.poll().is_pending()));
    assert!(inside.iter().all(|reader| reader.waiter.bell.is_none()), "the thread has no mailbox");
}

#[test]
fn a_stream_wakes_the_task_that_polled_it_last_on_whatever_thread() {
    let (task, mut delivery) = (Arc::new(Task::default()), pin!(deliver_events()));
    assert!(task.poll(delivery.as_mut()).is_pending());
    let [mut moved, mut handed_on] = waiting();
    let first = std::mem::take(&mut handed_on.task);
    assert!(handed_on.poll().is_pending());
    thread::scope(|scope| scope.spawn(|| assert!(moved.poll().is_pending())).join().unwrap());
    moved.send(1);
    handed_on.send(1);
    assert_eq!((num_wakes(&[moved, handed_on]), first.num_wakes()), (vec![1, 1], 0));
}

fn capacity() -> KvCapacity {
    KvCapacity::blocks(4096, 4)
}

/// Runs `work` as an HTTP worker would, with a mailbox.
fn as_worker(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        tokio::task::spawn_local(deliver_events());
        tokio::time::timeout(Duration::from_secs(60), work).await.expect("a wake was lost");
    });
}

/// Reads at most `most` tokens. Now and then, gives up waiting, so that another future waits for the same event.
async fn read(stream: &mut EventStream, most: usize) -> Vec<u32> {
    let mut tokens = Vec::new();
    while tokens.len() < most {
        let event = tokio::select! {
            biased;
            event = stream.next() => event,
            () = tokio::task::yield_now(), if tokens.len() % 3 == 0 => continue,
        };
        match event {
            Some(Event::Token { id, .. }) => tokens.push(id),
            Some(Event::Finished { .. }) => break,
            other => panic!("{other:?}"),
        }
    }
    tokens
}

/// Test double: a task that sends events when it is woken, as an engine thread may do at that moment.
struct Sends(Vec<UnboundedSender<u32>>);

impl Wake for Sends {
    fn wake(self: Arc<Self>) {
        let _round = Round::open();
        self.0.iter().for_each(|sender| sender.send(1).unwrap());
    }
}

#[test]
fn no_wake_is_lost_if_events_come_while_a_stream_or_a_mailbox_is_looked_at() {
    let (task, mut delivery) = (Arc::new(Task::default()), pin!(deliver_events()));
    assert!(task.poll(delivery.as_mut()).is_pending());
    let mut waiter = Waiter::default();
    let found_nothing = |context: &mut Context<'_>| {
        context.waker().wake_by_ref();
        Poll::<()>::Pending
    };
    let own = Arc::new(Task::default());
    assert!(waiter.poll(&mut Context::from_waker(&own.clone().into()), found_nothing).is_pending());
    assert_eq!(own.num_wakes(), 1, "an event came before the poll had returned");

    let ([mut first, second], mut later) = (waiting(), waiting::<2>());
    let sends = Arc::new(Sends(later.each_mut().map(|reader| reader.sender.take().unwrap()).into()));
    assert!(first.waiter.poll(&mut Context::from_waker(&sends.into()), |context| first.receiver.poll_recv(context)).is_pending());
    let round = Round::open();
    [&first, &second].into_iter().for_each(|reader| reader.send(1));
    drop(round);
    assert!(task.poll(delivery.as_mut()).is_pending());
    assert_eq!((task.num_wakes(), num_wakes(&later)), (2, vec![0, 0]), "a round came while the mailbox was being emptied");
    assert!(task.poll(delivery.as_mut()).is_pending());
    assert_eq!(num_wakes(&later), [1, 1]);
}

#[test]
fn many_workers_get_every_token_while_streams_are_dropped_and_moved() {
    const EACH: u32 = 40;
    let (engine, _) = FakeEngine::new(capacity(), 128, 2);
    let handle = Handle::spawn(Box::new(engine), options(256, 128), ModelMetrics::for_model("mailboxes"));
    let new = |i: u32| NewSequence { params: params(u64::from(i)), ..sequence(vec![i % 7; 5], 30 + i % 50) };
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
    until(|| handle.num_active() == 0);
}

#[test]
fn workers_learn_of_the_end_of_the_engine_thread() {
    let (engine, control) = FakeEngine::new(capacity(), 32, 2);
    control.lock().unwrap().fault = Some((20, None));
    let handle = Handle::spawn(Box::new(engine), options(64, 32), ModelMetrics::for_model("mailboxes-end"));
    as_worker(async {
        let streams: Vec<_> = (0..8).map(|_| handle.enqueue(sequence(vec![1; 4], 400)).unwrap()).collect();
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

/// `cargo test --release -p penstock-scheduler round_overhead -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn round_overhead() {
    for has_mailbox in [false, true] {
        let (ready, wait) = std::sync::mpsc::channel();
        for _ in 0..2 {
            let ready = ready.clone();
            thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                LocalSet::new().block_on(&runtime, async {
                    if has_mailbox {
                        tokio::task::spawn_local(deliver_events());
                        tokio::task::yield_now().await;
                    }
                    let read = |mut reader: Reader| async move { while reader.next().await.is_some() {} };
                    let mut readers: [Reader; 128] = std::array::from_fn(|_| Reader::new());
                    let senders: Vec<_> = readers.iter_mut().map(|reader| reader.sender.take().unwrap()).collect();
                    let tasks: Vec<_> = readers.into_iter().map(|reader| tokio::task::spawn_local(read(reader))).collect();
                    ready.send(senders).unwrap();
                    for task in tasks {
                        task.await.unwrap();
                    }
                });
            });
        }
        let senders: Vec<Vec<UnboundedSender<u32>>> = wait.iter().take(2).collect();
        let mut times: Vec<Duration> = (0..1000)
            .map(|_| {
                thread::sleep(Duration::from_millis(2));
                let start = Instant::now();
                let round = Round::open();
                (0..128).for_each(|i| senders.iter().for_each(|senders| senders[i].send(1).unwrap()));
                drop(round);
                start.elapsed()
            })
            .collect();
        times.sort_unstable();
        println!("256 streams on 2 threads, mailboxes: {has_mailbox}: median {:?}, 90th percentile {:?}", times[500], times[900]);
    }
}
