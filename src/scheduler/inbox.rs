//! The events of one stream that have reached whoever reads them.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::event::Event;

/// On cache lines of its own: whoever fills it does not disturb what the engine thread reads of other streams.
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
    /// Whoever waits for an event.
    task: Option<Waker>,
    /// Whether the sender has gone.
    has_ended: bool,
    /// Whether the receiver has gone.
    is_closed: bool,
}

impl InboxState {
    /// Adds an event, or the end if there is none. Returns whoever waited for it, to be woken once the lock is free.
    pub fn take_in(&mut self, event: Option<Event>) -> Option<Waker> {
        match event {
            Some(event) if !self.is_closed => self.events.push_back(event),
            Some(_) => {}
            None => self.has_ended = true,
        }
        self.task.take()
    }

    /// The next event, or none after the last.
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

    /// Takes in nothing from now on. Returns what was here, to be dropped once the lock is free.
    pub fn close(&mut self) -> (VecDeque<Event>, Option<Waker>) {
        self.is_closed = true;
        (std::mem::take(&mut self.events), self.task.take())
    }

    pub fn has_ended(&self) -> bool {
        self.has_ended
    }
}
