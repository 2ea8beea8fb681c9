//! [`Compiled`]: a compiled grammar, and [`Cursor`]: a sequence's position in one.

use llguidance::toktrie::SimpleVob;
use llguidance::{Cancelled, Matcher};

use crate::error::GrammarError;
use crate::factory::reason;
use crate::memory_limiter::MemoryLimiter;
use crate::meter::{CREDIT, EARNED, Meter};
use logits::{Allowed, Constraint, Grammar, mask_words};

/// A compiled grammar at the beginning of a text. Each sequence gets a copy of the matcher.
pub struct Compiled {
    matcher: std::sync::Mutex<Matcher>,
    ends: SimpleVob,
    vocab_size: usize,
    /// The size of the matcher [bytes].
    bytes: usize,
}

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("Compiled")
    }
}

impl Compiled {
    /// A grammar for ids below `vocab_size`. `ends`: the ids that may end a text. `bytes`: the size of the matcher.
    ///
    /// # Errors
    /// No text satisfies the grammar, or the texts that follow large grammars leave no room for another one.
    pub fn new(matcher: Matcher, ends: SimpleVob, vocab_size: usize, bytes: usize) -> Result<Self, GrammarError> {
        let compiled = Self { matcher: std::sync::Mutex::new(matcher), ends, vocab_size, bytes };
        compiled.cursor().ok_or(GrammarError::Busy)?.allowed().map_err(GrammarError::Invalid)?;
        Ok(compiled)
    }

    /// Checks that there is room for another text.
    pub fn check(&self) -> Result<(), GrammarError> {
        MemoryLimiter::take(self.bytes).map(drop).ok_or(GrammarError::Busy)
    }

    fn cursor(&self) -> Option<Cursor> {
        let live = MemoryLimiter::take(self.bytes)?;
        // A deep copy, so that the states which following a text adds are freed with it.
        let matcher = self.matcher.lock().unwrap_or_else(std::sync::PoisonError::into_inner).deep_clone().into_cancellable();
        let meter = Meter::new(matcher.cancellation_handle().unwrap_or_default());
        Some(Cursor { matcher, meter, ends: self.ends.clone(), vocab_size: self.vocab_size, bytes: self.bytes, _live: live })
    }
}

impl Grammar for Compiled {
    fn start(&self) -> Box<dyn Constraint> {
        match self.cursor() {
            Some(cursor) => Box::new(cursor),
            None => Box::new(OutOfMemory),
        }
    }
}

/// The error if there is no room for another text's copy of the grammar.
struct OutOfMemory;

impl OutOfMemory {
    fn error() -> String {
        "too many texts follow large grammars at once: ask for fewer choices, or make the grammar smaller".into()
    }
}

impl Constraint for OutOfMemory {
    fn accept(&mut self, _: u32) -> Result<(), String> {
        Err(Self::error())
    }

    fn allowed(&mut self) -> Result<Allowed, String> {
        Err(Self::error())
    }

    fn fork(&self) -> Option<Box<dyn Constraint>> {
        None
    }
}

/// A sequence's position in a compiled grammar.
struct Cursor {
    matcher: Matcher,
    meter: Meter,
    ends: SimpleVob,
    vocab_size: usize,
    /// The size of the matcher [bytes].
    bytes: usize,
    _live: MemoryLimiter,
}

/// The message of an error that occurs while a text is followed.
fn cannot_follow(error: &str) -> String {
    if error == Cancelled.to_string() {
        let (credit, earned) = (CREDIT.as_secs(), EARNED.as_millis());
        return format!("the grammar takes too long to follow: more than {earned} ms per token and {credit} s in addition");
    }
    format!("the grammar cannot be followed: {}", reason(error))
}

impl Constraint for Cursor {
    fn accept(&mut self, id: u32) -> Result<(), String> {
        self.meter.time(|| self.matcher.consume_token(id)).map_err(|error| cannot_follow(&error.to_string()))
    }

    fn allowed(&mut self) -> Result<Allowed, String> {
        if self.matcher.is_stopped() {
            let stop = self.matcher.stop_reason();
            return if stop.is_ok() { Ok(Allowed::End) } else { Err(cannot_follow(&stop.to_string())) };
        }
        let mask = self.meter.time(|| self.matcher.compute_mask()).map_err(|error| cannot_follow(&error.to_string()))?;
        let mut rest = mask.clone();
        rest.sub(&self.ends);
        if rest.is_zero() {
            return if mask.is_zero() { Err("the grammar has reached a dead end: no token may follow".into()) } else { Ok(Allowed::End) };
        }
        let mut words = mask.as_slice().to_vec();
        words.resize(mask_words(self.vocab_size), 0);
        // Clear the bits beyond the vocabulary.
        if let (Some(last), used @ 1..) = (words.last_mut(), self.vocab_size % 32) {
            *last &= (1 << used) - 1;
        }
        Ok(Allowed::Mask(words))
    }

    fn fork(&self) -> Option<Box<dyn Constraint>> {
        let live = MemoryLimiter::take(self.bytes)?;
        let matcher = self.matcher.deep_clone().into_cancellable();
        let meter = self.meter.fork(matcher.cancellation_handle().unwrap_or_default());
        let (ends, vocab_size, bytes) = (self.ends.clone(), self.vocab_size, self.bytes);
        Some(Box::new(Self { matcher, meter, ends, vocab_size, bytes, _live: live }))
    }
}
