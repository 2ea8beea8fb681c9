//! A sequence's position in its grammar, and the mask of the tokens that may follow.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};

use crate::event::Event;
use crate::mask_threads::{MaskThreads, Reply, Work};
use logits::{Allowed, Grammar};

/// The longest time that a step waits for masks. A mask that takes longer delays only its own sequence.
pub const PATIENCE: Duration = Duration::from_millis(20);

/// The constraint on the next sampled token.
#[derive(Debug)]
pub enum NextMask<'a> {
    /// The mask is still being computed.
    Late,
    /// Every id is allowed.
    Unrestricted,
    /// One bit per id. 0 forbids the id.
    Restricted(&'a [u32]),
    /// Nothing is allowed, because the text is complete.
    Complete,
    /// The grammar failed. The event is the sequence's last.
    Broken(Event),
}

pub struct GrammarCursor {
    state: CursorState,
    is_slow: bool,
    /// Number of drafts that the current work follows beyond the next mask.
    num_prepared: usize,
}

enum CursorState {
    New(Arc<dyn Grammar>),
    Waiting(Receiver<Reply>),
    Ready(Reply),
}

impl std::fmt::Debug for GrammarCursor {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("GrammarCursor")
    }
}

impl GrammarCursor {
    pub fn new(grammar: Arc<dyn Grammar>) -> Self {
        Self { state: CursorState::New(grammar), is_slow: false, num_prepared: 0 }
    }

    /// Requests the first mask.
    pub fn start(&mut self, threads: &mut MaskThreads) {
        if let CursorState::New(grammar) = &self.state {
            self.state = CursorState::Waiting(threads.request(Work::Start(grammar.clone()), self.is_slow));
        }
    }

    /// Advances the grammar by the sampled `tokens` and requests the next mask, and those that follow if `drafts` are sampled next.
    pub fn accept(&mut self, tokens: &[u32], drafts: &[u32], threads: &mut MaskThreads) {
        let CursorState::Ready(reply) = std::mem::replace(&mut self.state, CursorState::Ready(Reply::lost())) else { return };
        let drafts = if self.is_slow { &[] } else { drafts };
        self.num_prepared = drafts.len();
        let (ahead, num_ahead) = reply.ahead.map_or((None, 0), |ahead| (ahead.constraint, ahead.allowed.len()));
        // The drafts were followed already.
        let (constraint, tokens) = match ahead.filter(|_| num_ahead + 1 == tokens.len()) {
            Some(ahead) => (Some(ahead), &tokens[num_ahead..]),
            None => (reply.constraint, tokens),
        };
        if let Some(constraint) = constraint {
            let work = Work::Accept { constraint, tokens: tokens.to_vec(), drafts: drafts.to_vec() };
            self.state = CursorState::Waiting(threads.request(work, self.is_slow));
        }
    }

    /// Number of drafts that were handed to the latest [`accept`](Self::accept).
    pub fn num_prepared(&self) -> usize {
        self.num_prepared
    }

    /// The masks after the first drafts, as far as they were followed. Call it after [`next_mask`](Self::next_mask).
    pub fn masks_ahead(&self) -> &[Allowed] {
        match &self.state {
            CursorState::Ready(Reply { ahead: Some(ahead), .. }) => &ahead.allowed,
            _ => &[],
        }
    }

    /// Whether masks take longer than a step waits.
    pub fn is_slow(&self) -> bool {
        self.is_slow
    }

    /// Waits for the next mask until `deadline` at most. Returns whether the mask has arrived.
    pub fn is_ready_by(&mut self, deadline: Instant) -> bool {
        if let CursorState::Waiting(reply) = &self.state {
            let reply = match reply.recv_deadline(deadline) {
                Ok(reply) => reply,
                Err(RecvTimeoutError::Timeout) => {
                    self.is_slow = true;
                    return false;
                }
                // A thread that took the job always replies, so no thread took it.
                Err(RecvTimeoutError::Disconnected) => Reply::lost(),
            };
            self.is_slow = reply.took > PATIENCE;
            self.state = CursorState::Ready(reply);
        }
        true
    }

    /// Returns the next mask if it arrives by `deadline`. Once a mask has arrived, the result stays the same until
    /// [`GrammarCursor::accept`].
    pub fn next_mask(&mut self, deadline: Instant) -> NextMask<'_> {
        if !self.is_ready_by(deadline) {
            return NextMask::Late;
        }
        let CursorState::Ready(Reply { allowed, .. }) = &self.state else { unreachable!("a grammar starts before its sequence runs") };
        match allowed {
            Ok(Allowed::All) => NextMask::Unrestricted,
            Ok(Allowed::Mask(words)) => NextMask::Restricted(words),
            Ok(Allowed::End) => NextMask::Complete,
            Err(last) => NextMask::Broken(last.clone()),
        }
    }
}

#[cfg(test)]
#[path = "masks_tests.rs"]
mod tests;
