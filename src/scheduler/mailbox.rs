//! One message and one wake per thread and step, however many event streams the thread reads.
//!
//! To wake a task of another thread costs a system call, and a word that two threads write travels between their caches each time. So each
//! HTTP worker runs a task, [`deliver_events`], which owns the thread's mailbox. A stream that is read on that thread has its [`Home`]
//! there, a place in the mailbox. While the engine thread hands out the results of a step, a [`Round`] holds back the letters to all
//! homes. At its end, each mailbox gets its letters as one batch, and its task is woken. The task puts the letters into the inboxes of
//! their streams and wakes whoever reads those, where both cost little: on its own thread.
//!
//! A stream that was never read on a thread with a mailbox has no home, and its events go straight to its inbox. Whoever reads a stream on
//! another thread than that of its home empties the mailbox as well, and is woken with the mailbox's task, since that may be busy.
//!
//! Locks are taken in the order residents, inbox, contents. No waker is called under a lock.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Poll, Waker};

use crate::event::Event;
use crate::inbox::Inbox;

thread_local! {
    /// Present while [`deliver_events`] runs on this thread.
    static MAILBOX: RefCell<Option<Arc<Mailbox>>> = const { RefCell::new(None) };
    /// Whether a round is open on this thread.
    static HOLDS_BACK: Cell<bool> = const { Cell::new(false) };
    /// What the round holds back. Its lists are empty between rounds, and kept for their memory.
    static HELD_BACK: RefCell<Vec<(Weak<Mailbox>, Vec<Letter>)>> = const { RefCell::new(Vec::new()) };
}

/// A stream's place in a mailbox. Its number is free once its end was delivered. Letters may come later still: those of a round, if another
/// thread dropped the sender meanwhile. The generation tells them from those of the number's next stream.
#[derive(Clone, Copy, PartialEq)]
struct Address {
    number: u32,
    generation: u32,
}

/// What a stream gets: an event, or none at its end.
type Letter = (Address, Option<Event>);

/// Letters that an empty mailbox has memory for, at most. A thread that was busy for long finds more.
const MOST_KEPT: usize = 4096;

#[derive(Default)]
struct Mailbox {
    /// Locked while the mailbox is emptied, so that each stream's events keep their order.
    residents: Mutex<Residents>,
    contents: Mutex<Contents>,
}

/// The streams that have their homes in the mailbox.
#[derive(Default)]
struct Residents {
    /// By number: the generation of its next letters, and who lives there.
    places: Vec<(u32, Option<Arc<Inbox>>)>,
    free: Vec<u32>,
    /// Empty, and kept for its memory.
    spare: Vec<Letter>,
}

#[derive(Default)]
struct Contents {
    letters: Vec<Letter>,
    /// The task that empties the mailbox, while it waits.
    reader: Option<Waker>,
    /// Who waits for letters elsewhere.
    guests: Vec<(Address, Waker)>,
    is_closed: bool,
}

impl Mailbox {
    fn residents(&self) -> MutexGuard<'_, Residents> {
        self.residents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds letters and wakes whoever waits for them.
    fn put(&self, add: impl FnOnce(&mut Vec<Letter>)) {
        let mut contents = self.contents();
        add(&mut contents.letters);
        let (reader, guests) = (contents.reader.take(), std::mem::take(&mut contents.guests));
        let is_closed = contents.is_closed;
        drop(contents);
        reader.into_iter().chain(guests.into_iter().map(|(_, guest)| guest)).for_each(Waker::wake);
        if is_closed {
            self.empty(None, &mut Vec::new());
        }
    }

    /// Puts the letters into their inboxes and wakes whoever waits there. The next letters wake `reader`. `woken` is a buffer.
    fn empty(&self, reader: Option<&Waker>, woken: &mut Vec<Waker>) {
        let mut residents = self.residents();
        let Residents { places, free, spare } = &mut *residents;
        let mut contents = self.contents();
        std::mem::swap(&mut contents.letters, spare);
        if let Some(reader) = reader {
            contents.reader = Some(reader.clone());
        }
        drop(contents);
        for (Address { number, generation }, event) in spare.drain(..) {
            let (present, inbox) = &mut places[number as usize];
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
        spare.shrink_to(MOST_KEPT);
        drop(residents);
        woken.drain(..).for_each(Waker::wake);
    }
}

/// Where a stream is read: its place in the mailbox of a thread.
pub struct Home {
    mailbox: Arc<Mailbox>,
    address: Address,
}

impl Home {
    /// Gives a stream that has not ended its home on this thread, if the thread has a mailbox.
    pub fn find(home: &OnceLock<Self>, inbox: &Arc<Inbox>) {
        let Some(mailbox) = MAILBOX.with_borrow(Clone::clone) else { return };
        let mut residents = mailbox.residents();
        let state = inbox.lock();
        if !state.has_ended() {
            let number = residents.free.pop().unwrap_or_else(|| {
                residents.places.push((0, None));
                residents.places.len() as u32 - 1
            });
            let (generation, place) = &mut residents.places[number as usize];
            *place = Some(inbox.clone());
            home.get_or_init(|| Self { mailbox: mailbox.clone(), address: Address { number, generation: *generation } });
        }
    }

    /// Whether the task that empties the mailbox belongs to this thread.
    pub fn is_here(&self) -> bool {
        MAILBOX.with_borrow(|here| here.as_ref().is_some_and(|here| Arc::ptr_eq(here, &self.mailbox)))
    }

    /// Sends an event, or the end if there is none.
    pub fn send(&self, event: Option<Event>) {
        let letter = (self.address, event);
        if !HOLDS_BACK.get() {
            return self.mailbox.put(|letters| letters.push(letter));
        }
        HELD_BACK.with_borrow_mut(|held| match held.iter_mut().find(|(mailbox, _)| mailbox.as_ptr() == Arc::as_ptr(&self.mailbox)) {
            Some((_, letters)) => letters.push(letter),
            None => held.push((Arc::downgrade(&self.mailbox), vec![letter])),
        });
    }

    /// Empties the mailbox on whatever thread.
    pub fn empty(&self) {
        self.mailbox.empty(None, &mut Vec::new());
    }

    /// Lets the next letters wake `guest`. False: there are some already.
    pub fn expect(&self, guest: &Waker) -> bool {
        let mut contents = self.mailbox.contents();
        let is_empty = contents.letters.is_empty();
        if is_empty {
            contents.guests.retain(|(address, _)| *address != self.address);
            contents.guests.push((self.address, guest.clone()));
        }
        is_empty
    }
}

/// Holds back the letters that this thread sends until it is dropped.
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
        let mut held = HELD_BACK.take();
        held.retain_mut(|(mailbox, letters)| {
            if letters.is_empty() {
                return mailbox.strong_count() > 0;
            }
            // Streams keep their mailbox, so letters to one that is gone have no reader.
            let Some(mailbox) = mailbox.upgrade() else { return false };
            mailbox.put(|contents| if contents.is_empty() { std::mem::swap(contents, letters) } else { contents.append(letters) });
            true
        });
        HELD_BACK.set(held);
    }
}

/// Hands events to the streams that are read on this thread, once per step for all of them. Never completes, unless the thread has such a
/// task already.
pub async fn deliver_events() {
    let Some(open) = Open::new() else { return };
    let mut woken = Vec::new();
    poll_fn(|context| {
        open.mailbox.empty(Some(context.waker()), &mut woken);
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
    /// Whoever puts letters into the mailbox empties it from now on.
    fn drop(&mut self) {
        // The thread may be ending, and then nothing is polled on it any more.
        let _ = MAILBOX.try_with(|here| here.borrow_mut().take_if(|mailbox| Arc::ptr_eq(mailbox, &self.mailbox)));
        let mut contents = self.mailbox.contents();
        contents.is_closed = true;
        let _reader = contents.reader.take();
        drop(contents);
        self.mailbox.empty(None, &mut Vec::new());
    }
}

#[cfg(test)]
#[path = "mailbox_tests.rs"]
mod tests;
