//! One wake per thread and step, however many event streams the thread reads.
//!
//! To wake a task of another thread costs a system call. So each HTTP worker runs a task, [`deliver_events`], which owns the thread's
//! mailbox, and a stream that waits on that thread waits with a [`Bell`]. While the engine thread hands out the results of a step, a
//! [`Round`] holds back the bells that ring. At its end, they go to their mailboxes and each mailbox's task is woken. The task rings the
//! bells where a wake costs no system call: on its own thread.
//!
//! A bell that rings outside of a round wakes its stream's task at once, and a stream on a thread without a mailbox has no bell.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

thread_local! {
    /// Present while [`deliver_events`] runs on this thread.
    static MAILBOX: RefCell<Option<Arc<Mailbox>>> = const { RefCell::new(None) };
    /// Whether a round is open on this thread.
    static HOLDS_BACK: Cell<bool> = const { Cell::new(false) };
    /// What the round holds back. Empty between rounds, and kept for its memory.
    static HELD_BACK: RefCell<Vec<Arc<Bell>>> = const { RefCell::new(Vec::new()) };
}

#[derive(Default)]
struct Mailbox {
    contents: Mutex<Contents>,
}

#[derive(Default)]
struct Contents {
    bells: Vec<Arc<Bell>>,
    /// The task that empties the mailbox, while it waits.
    reader: Option<Waker>,
    is_closed: bool,
}

impl Mailbox {
    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands in bells of one round.
    fn put(&self, bells: impl Iterator<Item = Arc<Bell>>) {
        let mut contents = self.contents();
        contents.bells.extend(bells);
        let reader = contents.reader.take();
        let left = if contents.is_closed { std::mem::take(&mut contents.bells) } else { Vec::new() };
        drop(contents);
        reader.into_iter().for_each(Waker::wake);
        left.iter().for_each(|bell| bell.ring());
    }
}

/// What a stream waits with on a thread that has a mailbox.
struct Bell {
    task: Mutex<Option<Waker>>,
    mailbox: Arc<Mailbox>,
}

impl Bell {
    fn task(&self) -> MutexGuard<'_, Option<Waker>> {
        self.task.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self) {
        let task = self.task().take();
        task.into_iter().for_each(Waker::wake);
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        if HOLDS_BACK.get() {
            HELD_BACK.with_borrow_mut(|bells| bells.push(self));
        } else {
            self.ring();
        }
    }
}

/// Holds back the bells that ring on this thread until it is dropped.
pub struct Round(());

impl Round {
    pub fn open() -> Self {
        HOLDS_BACK.set(true);
        Self(())
    }
}

impl Drop for Round {
    fn drop(&mut self) {
        HOLDS_BACK.set(false);
        let mut bells = HELD_BACK.take();
        bells.sort_unstable_by_key(|bell| Arc::as_ptr(&bell.mailbox));
        let mut rest = bells.drain(..).peekable();
        while let Some(first) = rest.next() {
            let mailbox = first.mailbox.clone();
            let mut same = || rest.next_if(|bell| Arc::ptr_eq(&bell.mailbox, &mailbox));
            match same() {
                // It costs one wake either way, and this is the shorter one.
                None => first.ring(),
                Some(second) => mailbox.put([first, second].into_iter().chain(std::iter::from_fn(same))),
            }
        }
        drop(rest);
        HELD_BACK.set(bells);
    }
}

/// The bell of one stream.
#[derive(Default)]
pub struct Waiter {
    bell: Option<(Arc<Bell>, Waker)>,
}

impl Waiter {
    /// Polls with the bell of this thread, or with the task's own waker if the thread has no mailbox.
    pub fn poll<T>(&mut self, context: &mut Context<'_>, poll: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
        MAILBOX.with_borrow(|mailbox| {
            let Some(mailbox) = mailbox else { return self.bell = None };
            if self.bell.as_ref().is_none_or(|(bell, _)| !Arc::ptr_eq(&bell.mailbox, mailbox)) {
                let bell = Arc::new(Bell { task: Mutex::default(), mailbox: mailbox.clone() });
                self.bell = Some((bell.clone(), bell.into()));
            }
        });
        let Some((bell, waker)) = &self.bell else { return poll(context) };
        // Before the poll: once that has found nothing, the bell may ring at any time.
        *bell.task() = Some(context.waker().clone());
        poll(&mut Context::from_waker(waker))
    }
}

/// Wakes the tasks that read event streams on this thread, once per step for all of them. Never completes, unless the thread has such a
/// task already.
pub async fn deliver_events() {
    let Some(open) = Open::new() else { return };
    let mut bells = Vec::new();
    poll_fn(|context| {
        let mut contents = open.mailbox.contents();
        std::mem::swap(&mut bells, &mut contents.bells);
        contents.reader = Some(context.waker().clone());
        drop(contents);
        bells.drain(..).for_each(|bell: Arc<Bell>| bell.ring());
        Poll::Pending
    })
    .await
}

/// A mailbox that somebody empties.
struct Open {
    mailbox: Arc<Mailbox>,
}

impl Open {
    /// None: the thread has one already.
    fn new() -> Option<Self> {
        MAILBOX.with_borrow_mut(|here| {
            let is_first = here.is_none();
            is_first.then(|| Self { mailbox: here.insert(Arc::default()).clone() })
        })
    }
}

impl Drop for Open {
    /// Whoever waits with a bell of the mailbox is woken directly from now on.
    fn drop(&mut self) {
        // The thread may be ending, and then nothing is polled on it any more.
        let _ = MAILBOX.try_with(|here| here.borrow_mut().take_if(|mailbox| Arc::ptr_eq(mailbox, &self.mailbox)));
        let mut contents = self.mailbox.contents();
        let (bells, _reader) = (std::mem::take(&mut contents.bells), contents.reader.take());
        contents.is_closed = true;
        drop(contents);
        bells.iter().for_each(|bell| bell.ring());
    }
}

#[cfg(test)]
#[path = "mailbox_tests.rs"]
mod tests;
