//! Delivers events with one batch and one wake per reading thread and step, however many event streams the thread reads.
//!
//! Waking a task of another thread costs a system call, and a word that two threads write moves between their caches each time. So each
//! HTTP worker runs a task, [`deliver_events`], which owns the thread's mailbox. A stream that is read on that thread has a [`MailboxSlot`]
//! there. While the engine thread hands out the results of a step, a [`WakeBatch`] holds back the messages to all slots. At the end of the
//! step, each mailbox gets its messages as one batch, and its task is woken once. The task puts the messages into the inboxes of their
//! streams and wakes the streams' readers. Both are cheap, because they happen on the readers' own thread.
//!
//! A stream that was never read on a thread with a mailbox has no slot, and its events go straight to its inbox. If a stream is read on a
//! thread other than its slot's, the reader empties the mailbox itself and is woken together with the mailbox's task, since that task may
//! be busy.
//!
//! Lock order: slots, inbox, queue. No waker is called under a lock.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Poll, Waker};

use crate::event::Event;
use crate::inbox::Inbox;

thread_local! {
    /// Present while [`deliver_events`] runs on this thread.
    static MAILBOX: RefCell<Option<Arc<Mailbox>>> = const { RefCell::new(None) };
    /// Whether a wake batch is open on this thread.
    static IS_BATCHING: Cell<bool> = const { Cell::new(false) };
    /// Messages that the wake batch holds back. Between batches the lists are empty and keep their capacity.
    static BATCHED: RefCell<Vec<(Weak<Mailbox>, Vec<Message>)>> = const { RefCell::new(Vec::new()) };
}

/// A stream's slot in a mailbox. The number is reused once the stream's end was delivered. Messages of a wake batch may still arrive after
/// that, if another thread dropped the sender meanwhile. The generation tells them from messages of the next stream with this number.
#[derive(Clone, Copy, PartialEq)]
struct SlotId {
    number: u32,
    generation: u32,
}

/// A message to a stream: an event, or `None` at the stream's end.
type Message = (SlotId, Option<Event>);

/// The most messages for which an empty mailbox keeps capacity. A thread that was busy for long may find more.
const MAX_SPARE: usize = 4096;

#[derive(Default)]
struct Mailbox {
    /// Locked while the mailbox is emptied, so that each stream's events keep their order.
    slots: Mutex<MailboxSlots>,
    queue: Mutex<MailboxQueue>,
}

/// The slots of the streams that are read on the thread.
#[derive(Default)]
struct MailboxSlots {
    /// By slot number: the generation of its next messages, and its stream's inbox.
    entries: Vec<(u32, Option<Arc<Inbox>>)>,
    free: Vec<u32>,
    /// Empty buffer, kept for its capacity.
    spare: Vec<Message>,
}

#[derive(Default)]
struct MailboxQueue {
    messages: Vec<Message>,
    /// The waker of the task that empties the mailbox, while that task waits.
    reader: Option<Waker>,
    /// Readers on other threads that wait for messages.
    other_readers: Vec<(SlotId, Waker)>,
    is_closed: bool,
}

impl Mailbox {
    fn slots(&self) -> MutexGuard<'_, MailboxSlots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue(&self) -> MutexGuard<'_, MailboxQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds messages and wakes all readers that wait for them.
    fn put(&self, add: impl FnOnce(&mut Vec<Message>)) {
        let mut queue = self.queue();
        add(&mut queue.messages);
        let (reader, other_readers) = (queue.reader.take(), std::mem::take(&mut queue.other_readers));
        let is_closed = queue.is_closed;
        drop(queue);
        reader.into_iter().chain(other_readers.into_iter().map(|(_, other_reader)| other_reader)).for_each(Waker::wake);
        if is_closed {
            self.empty(None, &mut Vec::new());
        }
    }

    /// Moves the messages into their inboxes and wakes the tasks that wait there. Registers `reader` to be woken by the next messages.
    /// `woken` is a buffer.
    fn empty(&self, reader: Option<&Waker>, woken: &mut Vec<Waker>) {
        let mut slots = self.slots();
        let MailboxSlots { entries, free, spare } = &mut *slots;
        let mut queue = self.queue();
        std::mem::swap(&mut queue.messages, spare);
        if let Some(reader) = reader {
            queue.reader = Some(reader.clone());
        }
        drop(queue);
        for (SlotId { number, generation }, event) in spare.drain(..) {
            let (present, inbox) = &mut entries[number as usize];
            if *present != generation {
                continue;
            }
            let is_end = event.is_none();
            woken.extend(inbox.as_ref().and_then(|inbox| inbox.lock().take_in(event)));
            if is_end {
                *inbox = None;
                *present = present.wrapping_add(1);
                free.push(number);
            }
        }
        spare.shrink_to(MAX_SPARE);
        drop(slots);
        woken.drain(..).for_each(Waker::wake);
    }
}

/// A stream's registration with the mailbox of the thread that reads it.
pub struct MailboxSlot {
    mailbox: Arc<Mailbox>,
    address: SlotId,
}

impl MailboxSlot {
    /// Gives a stream that has not ended a slot on this thread, if the thread has a mailbox.
    pub fn find(slot: &OnceLock<Self>, inbox: &Arc<Inbox>) {
        let Some(mailbox) = MAILBOX.with_borrow(Clone::clone) else { return };
        let mut slots = mailbox.slots();
        let state = inbox.lock();
        if !state.has_ended() {
            let number = slots.free.pop().unwrap_or_else(|| {
                slots.entries.push((0, None));
                slots.entries.len() as u32 - 1
            });
            let (generation, entry) = &mut slots.entries[number as usize];
            *entry = Some(inbox.clone());
            slot.get_or_init(|| Self { mailbox: mailbox.clone(), address: SlotId { number, generation: *generation } });
        }
    }

    /// Whether the task that empties the mailbox belongs to this thread.
    pub fn is_here(&self) -> bool {
        MAILBOX.with_borrow(|here| here.as_ref().is_some_and(|here| Arc::ptr_eq(here, &self.mailbox)))
    }

    /// Sends an event; `None` is the end of the stream.
    pub fn send(&self, event: Option<Event>) {
        let message = (self.address, event);
        if !IS_BATCHING.get() {
            return self.mailbox.put(|messages| messages.push(message));
        }
        BATCHED.with_borrow_mut(|held| match held.iter_mut().find(|(mailbox, _)| mailbox.as_ptr() == Arc::as_ptr(&self.mailbox)) {
            Some((_, messages)) => messages.push(message),
            None => held.push((Arc::downgrade(&self.mailbox), vec![message])),
        });
    }

    /// Empties the mailbox. May be called on any thread.
    pub fn empty(&self) {
        self.mailbox.empty(None, &mut Vec::new());
    }

    /// Registers `other_reader` to be woken by the next messages. False if messages are already there.
    pub fn expect(&self, other_reader: &Waker) -> bool {
        let mut queue = self.mailbox.queue();
        let is_empty = queue.messages.is_empty();
        if is_empty {
            queue.other_readers.retain(|(address, _)| *address != self.address);
            queue.other_readers.push((self.address, other_reader.clone()));
        }
        is_empty
    }
}

/// Holds back the messages that this thread sends, until dropped.
pub struct WakeBatch(());

impl WakeBatch {
    pub fn open() -> Self {
        IS_BATCHING.set(true);
        Self(())
    }
}

impl Drop for WakeBatch {
    fn drop(&mut self) {
        IS_BATCHING.set(false);
        let mut held = BATCHED.take();
        held.retain_mut(|(mailbox, messages)| {
            if messages.is_empty() {
                return mailbox.strong_count() > 0;
            }
            // Streams keep their mailbox alive, so messages to a mailbox that is gone have no reader.
            let Some(mailbox) = mailbox.upgrade() else { return false };
            mailbox.put(|queue| if queue.is_empty() { std::mem::swap(queue, messages) } else { queue.append(messages) });
            true
        });
        BATCHED.set(held);
    }
}

/// Delivers events to the streams that are read on this thread, once per step for all of them. Never completes, unless the thread already
/// runs such a task.
pub async fn deliver_events() {
    let Some(open) = Open::new() else { return };
    let mut woken = Vec::new();
    poll_fn(|context| {
        open.mailbox.empty(Some(context.waker()), &mut woken);
        Poll::Pending
    })
    .await
}

/// A mailbox with a task that empties it.
struct Open {
    mailbox: Arc<Mailbox>,
}

impl Open {
    /// Opens the thread's mailbox. None if the thread has one already.
    fn new() -> Option<Self> {
        MAILBOX.with_borrow_mut(|here| {
            let is_first = here.is_none();
            is_first.then(|| Self { mailbox: here.insert(Arc::default()).clone() })
        })
    }
}

impl Drop for Open {
    /// Closes the mailbox. Each sender then empties it after adding messages.
    fn drop(&mut self) {
        // Fails if the thread is ending. Then nothing is polled on it any more.
        let _ = MAILBOX.try_with(|here| here.borrow_mut().take_if(|mailbox| Arc::ptr_eq(mailbox, &self.mailbox)));
        let mut queue = self.mailbox.queue();
        queue.is_closed = true;
        let _reader = queue.reader.take();
        drop(queue);
        self.mailbox.empty(None, &mut Vec::new());
    }
}

#[cfg(test)]
#[path = "mailbox_tests.rs"]
mod tests;
