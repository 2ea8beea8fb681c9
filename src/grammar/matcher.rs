//! A compiled grammar, and a sequence's place in it.

use llguidance::toktrie::SimpleVob;
use llguidance::{Cancelled, Matcher};

use super::GrammarError;
use super::meter::{CREDIT, EARNED, Meter};
use crate::logits::{Allowed, Constraint, Grammar, mask_words};

/// A grammar at the beginning of a text. Sequences get copies.
pub struct Compiled {
    matcher: std::sync::Mutex<Matcher>,
    ends: SimpleVob,
    vocab_size: usize,
}

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("Compiled")
    }
}

impl Compiled {
    /// Follows `matcher`, whose text may end at `ends`, over ids below `vocab_size`.
    ///
    /// # Errors
    /// There is no text that it describes.
    pub fn new(matcher: Matcher, ends: SimpleVob, vocab_size: usize) -> Result<Self, GrammarError> {
        let compiled = Self { matcher: std::sync::Mutex::new(matcher), ends, vocab_size };
        compiled.start().allowed().map_err(GrammarError::Invalid)?;
        Ok(compiled)
    }
}

impl Grammar for Compiled {
    fn start(&self) -> Box<dyn Constraint> {
        // Deep: what a text makes its copy learn ends with it.
        let matcher = self.matcher.lock().unwrap_or_else(std::sync::PoisonError::into_inner).deep_clone().into_cancellable();
        let meter = Meter::new(matcher.cancellation_handle().unwrap_or_default());
        Box::new(Place { matcher, meter, ends: self.ends.clone(), vocab_size: self.vocab_size })
    }
}

struct Place {
    matcher: Matcher,
    meter: Meter,
    ends: SimpleVob,
    vocab_size: usize,
}

/// The library's text for an error in one line: a quoted pattern and its state stand between the lines that say something.
pub fn reason(error: &str) -> String {
    let mut lines = error.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('<'));
    let first = lines.next().unwrap_or_default().trim_end_matches(':');
    let last = lines.find_map(|line| line.strip_prefix("error: "));
    let text = match (first, last) {
        ("" | "NoExtensionBias", _) => "nothing satisfies it".into(),
        (first, None) => first.to_owned(),
        (first, Some(last)) => format!("{first}: {last}"),
    };
    text.chars().take(300).collect()
}

/// Why a text cannot go on.
fn cannot_follow(error: &str) -> String {
    if error == Cancelled.to_string() {
        let (credit, earned) = (CREDIT.as_secs(), EARNED.as_millis());
        return format!("the grammar takes too long to follow: more than {earned} ms a token, and {credit} s beyond that");
    }
    format!("the grammar cannot be followed: {}", reason(error))
}

impl Constraint for Place {
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
            return if mask.is_zero() { Err("the grammar has come to a dead end".into()) } else { Ok(Allowed::End) };
        }
        let mut words = mask.as_slice().to_vec();
        words.resize(mask_words(self.vocab_size), 0);
        // Bits past the vocabulary stand for nothing.
        if let (Some(last), used @ 1..) = (words.last_mut(), self.vocab_size % 32) {
            *last &= (1 << used) - 1;
        }
        Ok(Allowed::Mask(words))
    }
}
