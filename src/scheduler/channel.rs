//! The event channel of a sequence: the engine thread sends, and the task that serves the client reads.

use std::fmt;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker, ready};
use std::thread::{self, Thread};

use tokio::task::coop;

use crate::event::Event;
use crate::inbox::Inbox;
use crate::mailbox::MailboxSlot;

/// Opens an unbounded channel, so that the sender never waits. A sequence sends at most `max_tokens` tokens, so a client that does not read
/// costs little memory.
pub fn channel() -> (EventSender, EventReceiver) {
    let line = Arc::<Channel>::default();
    (EventSender(line.clone()), EventReceiver(line))
}

/// The state that both ends share.
#[derive(Default)]
struct Channel {
    /// Once set, events go through this mailbox.
    slot: OnceLock<MailboxSlot>,
    /// Whether the receiver was dropped.
    is_closed: AtomicBool,
    inbox: Arc<Inbox>,
}

impl Channel {
    /// Sends an event; `None` is the end of the stream.
    fn send(&self, event: Option<Event>) {
        if let Some(slot) = self.slot.get() {
            return slot.send(event);
        }
        let mut state = self.inbox.lock();
        // A slot is assigned only under the inbox's lock. So it cannot appear after this check, and no slot misses the end.
        if let Some(slot) = self.slot.get() {
            drop(state);
            return slot.send(event);
        }
        let task = state.take_in(event);
        drop(state);
        task.into_iter().for_each(Waker::wake);
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }
}

pub struct EventSender(Arc<Channel>);

impl EventSender {
    /// Sends an event. The event is dropped if the receiver is gone.
    pub fn send(&self, event: Event) {
        if !self.is_closed() {
            self.0.send(Some(event));
        }
    }

    /// Whether the receiver was dropped.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

impl Drop for EventSender {
    fn drop(&mut self) {
        self.0.send(None);
    }
}

impl fmt::Debug for EventSender {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("EventSender").field("is_closed", &self.is_closed()).finish_non_exhaustive()
    }
}

pub struct EventReceiver(Arc<Channel>);

impl EventReceiver {
    /// The next event. None once the sender is gone and every event was read. Cancel-safe.
    pub async fn next(&mut self) -> Option<Event> {
        poll_fn(|context| self.poll(context)).await
    }

    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        // A task that always finds an event still yields to others now and then.
        let turn = ready!(coop::poll_proceed(context));
        let Channel { slot, inbox, .. } = &*self.0;
        if slot.get().is_none() {
            MailboxSlot::find(slot, inbox);
        }
        let is_here = slot.get().is_some_and(MailboxSlot::is_here);
        let polled = if is_here { inbox.lock().poll(context) } else { self.poll_elsewhere(context) };
        if polled.is_ready() {
            turn.made_progress();
        }
        polled
    }

    /// The slow path, for callers off the slot's thread.
    fn poll_elsewhere(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        let slot = self.0.slot.get();
        loop {
            slot.into_iter().for_each(MailboxSlot::empty);
            let polled = self.0.inbox.lock().poll(context);
            if polled.is_ready() || slot.is_none_or(|slot| slot.expect(context.waker())) {
                return polled;
            }
        }
    }

    /// Like [`EventReceiver::next`], outside async code.
    pub fn blocking_next(&mut self) -> Option<Event> {
        let waker = Waker::from(Arc::new(ThreadWaker(thread::current())));
        loop {
            match self.poll_elsewhere(&mut Context::from_waker(&waker)) {
                Poll::Ready(event) => return event,
                Poll::Pending => thread::park(),
            }
        }
    }
}

impl Drop for EventReceiver {
    fn drop(&mut self) {
        self.0.is_closed.store(true, Ordering::Release);
        // Dropped outside the lock, because a waker may own whole tasks.
        let _unread = self.0.inbox.lock().close();
    }
}

/// Wakes a thread that is parked until the next event.
struct ThreadWaker(Thread);

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[cfg(test)]
#[path = "channel_tests.rs"]
mod tests;
