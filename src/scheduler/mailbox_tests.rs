//! Counts wakes and checks that none is lost, inside and outside wake batches, while streams are dropped, moved to other threads or polled
//! by others. Each stream's events keep their order on every path.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake};
use std::thread;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::channel::{EventReceiver, EventSender, channel};
use crate::testing::until;

/// Test double: a task that only counts its wakes.
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

/// A stream of numbered events with the task that reads it.
struct Reader {
    sender: Option<EventSender>,
    events: EventReceiver,
    task: Arc<Task>,
}

impl Reader {
    fn new() -> Self {
        let (sender, events) = channel();
        Self { sender: Some(sender), events, task: Arc::default() }
    }

    fn poll(&mut self) -> Poll<Option<u32>> {
        self.events.poll(&mut Context::from_waker(&self.task.clone().into())).map(number)
    }

    fn poll_elsewhere(&mut self) -> Poll<Option<u32>> {
        thread::scope(|scope| scope.spawn(|| self.poll()).join().unwrap())
    }

    fn send(&self, id: u32) {
        self.sender.as_ref().unwrap().send(token(id));
    }
}

fn token(id: u32) -> Event {
    Event::Token { id, logprobs: None }
}

fn number(event: Option<Event>) -> Option<u32> {
    event.map(|event| if let Event::Token { id, .. } = event { id } else { panic!("{event:?}") })
}

/// Readers that have polled and found nothing.
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

/// Number of streams with a slot in this thread's mailbox.
fn num_residents() -> usize {
    MAILBOX.with_borrow(|here| here.as_ref().map_or(0, |here| here.slots().entries.iter().filter(|(_, inbox)| inbox.is_some()).count()))
}

/// Sends to all readers in one wake batch, as an engine thread does.
fn send_batch(readers: &[Reader], id: u32) {
    thread::scope(|scope| {
        scope.spawn(|| {
            let _batch = WakeBatch::open();
            readers.iter().for_each(|reader| reader.send(id));
        });
    });
}

#[test]
fn a_batch_costs_one_wake_per_thread_whatever_the_number_of_streams() {
    let (task, mut delivery) = (Arc::new(Task::default()), pin!(deliver_events()));
    assert!(task.poll(delivery.as_mut()).is_pending());
    let mut readers = waiting::<100>();
    assert_eq!(num_residents(), 100);
    for count in 1..4 {
        send_batch(&readers, count as u32);
        assert_eq!((task.num_wakes(), num_wakes(&readers)), (count, vec![count - 1; 100]), "the batch wakes no reader");
        assert!(task.poll(delivery.as_mut()).is_pending());
        assert_eq!((task.num_wakes(), num_wakes(&readers)), (count, vec![count; 100]));
        readers.iter_mut().for_each(|reader| assert_eq!(reader.poll(), Poll::Ready(Some(count as u32))));
        readers.iter_mut().for_each(|reader| assert!(reader.poll().is_pending()));
    }
}

/// A thread that reads streams, as an engine thread sees it.
struct Worker {
    senders: Vec<EventSender>,
    tasks: Vec<Arc<Task>>,
    delivery: Arc<Task>,
}

#[test]
fn each_thread_of_a_batch_is_woken_once() {
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
                until("the batch", || task.num_wakes() > 0);
                assert!(task.poll(delivery.as_mut()).is_pending());
                readers.iter_mut().for_each(|reader| assert_eq!(reader.poll(), Poll::Ready(Some(7))));
            })
        })
        .collect();
    let workers: Vec<Worker> = wait.iter().take(3).collect();
    let batch = WakeBatch::open();
    for i in 0..5 {
        workers.iter().for_each(|worker| worker.senders[i].send(token(7)));
    }
    assert!(workers.iter().all(|worker| worker.delivery.num_wakes() == 0));
    drop(batch);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    for Worker { tasks, delivery, .. } in &workers {
        assert_eq!((delivery.num_wakes(), tasks.iter().map(|task| task.num_wakes()).sum::<usize>()), (1, 5));
    }
}

#[test]
fn only_messages_of_a_batch_are_held_back_and_only_to_its_end() {
    let [before] = waiting();
    let (task, mut delivery) = (Arc::new(Task::default()), pin!(deliver_events()));
    assert!(task.poll(delivery.as_mut()).is_pending());
    let [outside, in_panic] = waiting();
    {
        let _batch = WakeBatch::open();
        before.send(1);
        assert_eq!(num_wakes(&[before]), [1], "its thread had no mailbox when it was polled");
    }
    outside.send(1);
    assert_eq!((task.num_wakes(), num_residents()), (1, 2));
    assert!(task.poll(delivery.as_mut()).is_pending());
    assert_eq!((outside.task.num_wakes(), task.num_wakes()), (1, 1));
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _batch = WakeBatch::open();
        in_panic.send(1);
        panic!("a commit");
    }));
    assert!(panicked.is_err() && task.num_wakes() == 2, "a batch that panics is delivered");
    let mut second = pin!(deliver_events());
    assert!(task.poll(second.as_mut()).is_ready(), "a thread has one mailbox");
}

#[test]
fn events_keep_their_order_when_a_stream_finds_its_mailbox_late_and_is_read_late() {
    let (task, mut delivery) = (Arc::new(Task::default()), pin!(deliver_events()));
    assert!(task.poll(delivery.as_mut()).is_pending());
    let (mut reader, mut ended) = (Reader::new(), Reader::new());
    [0, 1].into_iter().for_each(|id| reader.send(id));
    ended.send(0);
    ended.sender = None;
    let count = if cfg!(miri) { 100 } else { 10_000 };
    assert_eq!((reader.poll(), num_residents()), (Poll::Ready(Some(0)), 1));
    assert_eq!((ended.poll(), ended.poll(), num_residents()), (Poll::Ready(Some(0)), Poll::Ready(None), 1), "it ended before it was read");
    for id in 2..count {
        send_batch(std::slice::from_ref(&reader), id);
        if id % 3 == 0 {
            assert!(task.poll(delivery.as_mut()).is_pending());
        }
    }
    reader.sender = None;
    assert!(task.poll(delivery.as_mut()).is_pending());
    (1..count).for_each(|id| assert_eq!(reader.poll(), Poll::Ready(Some(id))));
    assert_eq!((reader.poll(), num_residents()), (Poll::Ready(None), 0));
}

#[test]
fn a_stream_that_is_dropped_loses_its_events_and_leaves_nothing_behind() {
    let (task, mut delivery) = (Arc::new(Task::default()), pin!(deliver_events()));
    assert!(task.poll(delivery.as_mut()).is_pending());
    let [dropped, mut stays] = waiting();
    let (sender, number_task) = (dropped.sender.unwrap(), dropped.task);
    let batch = WakeBatch::open();
    sender.send(token(1));
    stays.send(2);
    drop(dropped.events);
    assert!(sender.is_closed());
    sender.send(token(3));
    drop(sender);
    drop(batch);
    let [mut later] = waiting();
    assert!(task.poll(delivery.as_mut()).is_pending());
    assert_eq!((number_task.num_wakes(), num_residents()), (0, 2));
    let [mut in_its_place] = waiting();
    assert!(in_its_place.poll().is_pending() && later.poll().is_pending() && num_residents() == 3);
    assert_eq!(stays.poll(), Poll::Ready(Some(2)));
    drop([stays, later, in_its_place]);
    assert!(task.poll(delivery.as_mut()).is_pending());
    assert_eq!(num_residents(), 0);
}

#[test]
fn messages_that_come_after_the_end_never_reach_the_next_stream_of_the_slot() {
    let (task, mut delivery) = (Arc::new(Task::default()), pin!(deliver_events()));
    assert!(task.poll(delivery.as_mut()).is_pending());
    let [mut first] = waiting();
    let sender = Arc::new(first.sender.take().unwrap());
    let step = Barrier::new(2);
    thread::scope(|scope| {
        let engines = sender.clone();
        let step = &step;
        let engine = scope.spawn(move || {
            let _batch = WakeBatch::open();
            engines.send(token(1));
            drop(engines);
            step.wait();
            step.wait();
        });
        step.wait();
        drop(sender);
        assert!(task.poll(delivery.as_mut()).is_pending());
        assert_eq!((first.poll(), num_residents()), (Poll::Ready(None), 0));
        let [mut next] = waiting();
        step.wait();
        engine.join().unwrap();
        assert!(task.poll(delivery.as_mut()).is_pending());
        assert!(next.poll().is_pending() && num_residents() == 1);
        next.send(2);
        assert!(task.poll(delivery.as_mut()).is_pending());
        assert_eq!(next.poll(), Poll::Ready(Some(2)));
    });
}

#[test]
fn a_stream_that_ends_while_it_is_first_read_is_whole_and_leaves_nothing_behind() {
    let (task, mut delivery) = (Arc::new(Task::default()), pin!(deliver_events()));
    assert!(task.poll(delivery.as_mut()).is_pending());
    let (start, senders) = std::sync::mpsc::sync_channel::<EventSender>(0);
    let engine = thread::spawn(move || {
        for (i, sender) in senders.into_iter().enumerate() {
            (0..i as u32 % 3).for_each(|id| sender.send(token(id)));
        }
    });
    for i in 0..if cfg!(miri) { 60 } else { 5000 } {
        let mut reader = Reader::new();
        start.send(reader.sender.take().unwrap()).unwrap();
        let mut seen = Vec::new();
        loop {
            match reader.poll() {
                Poll::Ready(Some(id)) => seen.push(id),
                Poll::Ready(None) => break,
                Poll::Pending => assert!(task.poll(delivery.as_mut()).is_pending()),
            }
        }
        assert!(seen.into_iter().eq(0..i % 3));
    }
    drop(start);
    engine.join().unwrap();
    assert!(task.poll(delivery.as_mut()).is_pending());
    assert_eq!(num_residents(), 0);
}

#[test]
fn a_mailbox_that_no_task_empties_holds_nothing_back() {
    let (task, mut delivery) = (Arc::new(Task::default()), Box::pin(deliver_events()));
    assert!(task.poll(delivery.as_mut()).is_pending());
    let (mut inside, mut later) = (waiting::<2>(), waiting::<2>());
    send_batch(&inside, 1);
    assert_eq!(num_wakes(&inside), [0, 0]);
    drop(delivery);
    assert_eq!(num_wakes(&inside), [1, 1]);
    send_batch(&later, 1);
    assert_eq!(num_wakes(&later), [1, 1]);
    inside.iter_mut().chain(&mut later).for_each(|reader| assert!(reader.poll().is_ready() && reader.poll().is_pending()));
    send_batch(&inside, 2);
    inside.iter_mut().for_each(|reader| assert!(reader.task.num_wakes() > 1 && reader.poll() == Poll::Ready(Some(2))));
}

#[test]
fn a_stream_wakes_the_task_that_polled_it_last_on_any_thread() {
    let (task, mut delivery) = (Arc::new(Task::default()), pin!(deliver_events()));
    assert!(task.poll(delivery.as_mut()).is_pending());
    let [mut moved, mut handed_on, mut back] = waiting();
    let first = std::mem::take(&mut handed_on.task);
    assert!(handed_on.poll().is_pending() && moved.poll_elsewhere().is_pending());
    assert!(back.poll_elsewhere().is_pending() && back.poll().is_pending());
    handed_on.send(1);
    assert_eq!(num_wakes(&[back]), [1], "a stream that waits elsewhere is woken with the mailbox, whichever stream the messages are for");
    assert!(moved.poll_elsewhere().is_pending(), "its thread is busy, so it looks itself");
    moved.send(1);
    assert_eq!((moved.task.num_wakes(), task.num_wakes()), (2, 1));
    assert_eq!(moved.poll_elsewhere(), Poll::Ready(Some(1)));
    assert_eq!((num_wakes(&[handed_on]), first.num_wakes()), (vec![1], 0));
}

#[test]
fn a_thread_that_waits_gets_its_events_though_the_thread_of_the_mailbox_is_busy() {
    let (task, mut delivery) = (Arc::new(Task::default()), pin!(deliver_events()));
    assert!(task.poll(delivery.as_mut()).is_pending());
    let [Reader { sender, events: mut moved, .. }, Reader { sender: other, events: mut here, .. }] = waiting();
    let engine = thread::spawn(move || {
        for id in 0..100 {
            thread::sleep(Duration::from_micros(100));
            let _batch = WakeBatch::open();
            [&sender, &other].into_iter().flatten().for_each(|sender| sender.send(token(id)));
        }
    });
    let elsewhere = thread::spawn(move || std::iter::from_fn(|| number(moved.blocking_next())).collect::<Vec<_>>());
    assert!(std::iter::from_fn(|| number(here.blocking_next())).eq(0..100));
    assert!(elsewhere.join().unwrap().into_iter().eq(0..100));
    engine.join().unwrap();
}

#[derive(Clone, Debug)]
enum Act {
    Send(usize),
    WakeBatch(Vec<usize>),
    End(usize),
    Poll(usize),
    PollElsewhere(usize),
    Drop(usize),
    Deliver,
    Close,
}

fn act() -> impl Strategy<Value = Act> {
    let stream = 0..4_usize;
    prop_oneof![
        4 => prop::collection::vec(stream.clone(), 0..6).prop_map(Act::WakeBatch),
        2 => stream.clone().prop_map(Act::Send),
        6 => stream.clone().prop_map(Act::Poll),
        2 => stream.clone().prop_map(Act::PollElsewhere),
        1 => stream.clone().prop_map(Act::End),
        1 => stream.prop_map(Act::Drop),
        4 => Just(Act::Deliver),
        1 => Just(Act::Close),
    ]
}

/// A stream, and the events that its reader must get.
struct Model {
    reader: Option<Reader>,
    sender: Option<EventSender>,
    num_sent: u32,
    num_read: u32,
    /// The wake count of its task when it last found nothing.
    waits: Option<usize>,
}

impl Model {
    fn new() -> Self {
        let mut reader = Reader::new();
        Self { sender: reader.sender.take(), reader: Some(reader), num_sent: 0, num_read: 0, waits: None }
    }

    fn send(&mut self) {
        if let Some(sender) = &self.sender {
            sender.send(token(self.num_sent));
            self.num_sent += 1;
        }
    }

    fn has_news(&self) -> bool {
        self.num_read < self.num_sent || self.sender.is_none()
    }

    fn poll(&mut self, is_elsewhere: bool) {
        let Some(reader) = &mut self.reader else { return };
        let polled = if is_elsewhere { reader.poll_elsewhere() } else { reader.poll() };
        self.waits = polled.is_pending().then(|| reader.task.num_wakes());
        match polled {
            Poll::Ready(Some(id)) => {
                assert!(id == self.num_read && id < self.num_sent);
                self.num_read += 1;
            }
            Poll::Ready(None) => assert!(self.sender.is_none() && self.num_read == self.num_sent),
            Poll::Pending => assert!(!is_elsewhere || !self.has_news(), "whoever reads elsewhere finds everything"),
        }
    }

    /// Whether its task waits for an event and was not woken since.
    fn is_asleep(&self) -> bool {
        self.has_news() && self.reader.as_ref().is_some_and(|reader| self.waits == Some(reader.task.num_wakes()))
    }
}

proptest! {
    #[test]
    fn streams_get_their_events_in_order_and_nobody_sleeps_whatever_happens(acts in prop::collection::vec(act(), 0..60)) {
        let task = Arc::new(Task::default());
        let mut delivery = Some(Box::pin(deliver_events()));
        let mut delivered = usize::MAX;
        let mut streams: [Model; 4] = std::array::from_fn(|_| Model::new());
        let ending = (0..4).map(Act::End).chain((0..4).map(Act::Drop)).chain([Act::Deliver]);
        for act in acts.into_iter().chain(ending) {
            match act {
                Act::Send(i) => streams[i].send(),
                Act::WakeBatch(all) => {
                    let _batch = WakeBatch::open();
                    all.into_iter().for_each(|i| streams[i].send());
                }
                Act::End(i) => drop(streams[i].sender.take()),
                Act::Poll(i) => streams[i].poll(false),
                Act::PollElsewhere(i) => streams[i].poll(true),
                Act::Drop(i) => drop(streams[i].reader.take()),
                Act::Deliver => {
                    delivered = task.num_wakes();
                    assert!(delivery.as_mut().is_none_or(|delivery| task.poll(delivery.as_mut()).is_pending()));
                }
                Act::Close => drop(delivery.take()),
            }
            let is_delivered = delivery.is_none() || task.num_wakes() == delivered;
            assert!(!is_delivered || !streams.iter().any(Model::is_asleep), "a wake was lost");
        }
        assert_eq!(num_residents(), 0);
    }
}

/// Test double: a task that sends events when it is woken, as an engine thread may do at that moment.
struct Sends(Vec<EventSender>);

impl Wake for Sends {
    fn wake(self: Arc<Self>) {
        let _batch = WakeBatch::open();
        self.0.iter().for_each(|sender| sender.send(token(1)));
    }
}

#[test]
fn no_wake_is_lost_if_a_batch_comes_while_a_mailbox_is_emptied() {
    let (task, mut delivery) = (Arc::new(Task::default()), pin!(deliver_events()));
    assert!(task.poll(delivery.as_mut()).is_pending());
    let (mut readers, mut later) = (waiting::<2>(), waiting::<2>());
    let sends = Arc::new(Sends(later.each_mut().map(|reader| reader.sender.take().unwrap()).into()));
    assert!(readers[0].events.poll(&mut Context::from_waker(&sends.into())).is_pending());
    send_batch(&readers, 1);
    assert!(task.poll(delivery.as_mut()).is_pending());
    assert_eq!((task.num_wakes(), num_wakes(&later)), (2, vec![0, 0]));
    assert!(task.poll(delivery.as_mut()).is_pending());
    assert_eq!(num_wakes(&later), [1, 1]);

    let [mut here, mut elsewhere] = waiting();
    let sends = Arc::new(Sends(vec![elsewhere.sender.take().unwrap()]));
    assert!(here.events.poll(&mut Context::from_waker(&sends.into())).is_pending());
    here.send(1);
    assert_eq!(elsewhere.poll_elsewhere(), Poll::Ready(Some(1)), "emptying the mailbox filled it");
}
