//! The inbox of one stream: events that have arrived and are not read yet.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::event::Event;

/// The inbox of one stream. It has its own cache lines, so that filling it does not evict what the engine thread reads of other streams.
#[derive(Default)]
#[repr(align(128))]
pub struct Inbox(Mutex<InboxState>);

impl Inbox {
    pub fn lock(&self) -> MutexGuard<'_, InboxState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Default)]
pub struct InboxState {
    events: VecDeque<Event>,
    /// The waker of the task that waits for an event.
    task: Option<Waker>,
    /// Whether the sender was dropped.
    has_ended: bool,
    /// Whether the receiver was dropped.
    is_closed: bool,
}

impl InboxState {
    /// Adds an event; `None` is the end of the stream. Returns the waiting task's waker, to be called once the lock is free.
    pub fn take_in(&mut self, event: Option<Event>) -> Option<Waker> {
        match event {
            Some(event) if !self.is_closed => self.events.push_back(event),
            Some(_) => {}
            None => self.has_ended = true,
        }
        self.task.take()
    }

    /// The next event, or `None` after the last.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        match self.events.pop_front() {
            None if !self.has_ended => {}
            event => return Poll::Ready(event),
        }
        match &mut self.task {
            Some(task) => task.clone_from(context.waker()),
            None => self.task = Some(context.waker().clone()),
        }
        Poll::Pending
    }

    /// Refuses events from now on. Returns the contents, to be dropped once the lock is free.
    pub fn close(&mut self) -> (VecDeque<Event>, Option<Waker>) {
        self.is_closed = true;
        (std::mem::take(&mut self.events), self.task.take())
    }

    pub fn has_ended(&self) -> bool {
        self.has_ended
    }
}
