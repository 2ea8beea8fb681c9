//! Progress of a sequence: its times, and how far its prompt is. The engine thread writes it, and it can be read at any time, even after
//! the end.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[derive(Debug)]
pub struct Progress {
    arrived: Instant,
    prompt_tokens: u32,
    cached_tokens: AtomicU32,
    computed_tokens: AtomicU32,
    drafts: [AtomicU32; 4],
    admitted: Mark,
    prefilled: Mark,
    last: Mark,
}

impl Progress {
    pub(crate) fn new(prompt_tokens: usize) -> Self {
        Self {
            arrived: Instant::now(),
            prompt_tokens: prompt_tokens as u32,
            cached_tokens: AtomicU32::new(0),
            computed_tokens: AtomicU32::new(0),
            drafts: Default::default(),
            admitted: Mark::default(),
            prefilled: Mark::default(),
            last: Mark::default(),
        }
    }

    pub fn arrived(&self) -> Instant {
        self.arrived
    }

    pub fn prompt_tokens(&self) -> u32 {
        self.prompt_tokens
    }

    /// Prompt tokens that the prefix cache held. Known once the first event has arrived.
    pub fn cached_tokens(&self) -> u32 {
        self.cached_tokens.load(Ordering::Acquire)
    }

    /// Prompt tokens that were found in the cache or computed. This number never falls, not even after a preemption.
    pub fn computed_tokens(&self) -> u32 {
        self.computed_tokens.load(Ordering::Relaxed).max(self.cached_tokens())
    }

    /// The drafts that were verified so far.
    pub fn drafts(&self) -> DraftCounts {
        let [drafted, accepted, predicted, accepted_predicted] = self.drafts.each_ref().map(|count| count.load(Ordering::Acquire));
        DraftCounts { drafted, accepted, predicted, accepted_predicted }
    }

    /// When the sequence began to run.
    pub fn admitted(&self) -> Option<Instant> {
        self.admitted.get(self.arrived)
    }

    /// When the prompt was computed: the time of the first token, or of the end if no token came.
    pub fn prefilled(&self) -> Option<Instant> {
        self.prefilled.get(self.arrived)
    }

    /// The time of the latest token, or of the end.
    pub fn last(&self) -> Option<Instant> {
        self.last.get(self.arrived)
    }

    pub(crate) fn set_cached(&self, num_tokens: usize) {
        self.cached_tokens.store(num_tokens as u32, Ordering::Release);
    }

    pub(crate) fn set_computed(&self, num_tokens: usize) {
        self.computed_tokens.fetch_max((num_tokens as u32).min(self.prompt_tokens), Ordering::Relaxed);
    }

    /// Counts drafts that were verified, and those of them that were right. `predicted`: whether they came from the client's prediction.
    pub(crate) fn count_drafts(&self, (drafted, accepted): (usize, usize), predicted: bool) {
        let counted = if predicted { &self.drafts[..] } else { &self.drafts[..2] };
        for (count, number) in counted.iter().zip([drafted, accepted].into_iter().cycle()) {
            count.fetch_add(number as u32, Ordering::Release);
        }
    }

    pub(crate) fn admit(&self, now: Instant) {
        self.admitted.set(self.arrived, now);
    }

    pub(crate) fn end_prefill(&self, now: Instant) {
        self.prefilled.set(self.arrived, now);
    }

    /// Records the delivery of a token, or the end.
    pub(crate) fn deliver(&self, now: Instant) {
        self.last.set(self.arrived, now);
    }
}

/// Drafts of a sequence that were verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftCounts {
    pub drafted: u32,
    pub accepted: u32,
    /// Those of `drafted` that came from the client's prediction.
    pub predicted: u32,
    /// Those of `accepted` that came from the client's prediction.
    pub accepted_predicted: u32,
}

impl DraftCounts {
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            drafted: self.drafted.saturating_add(other.drafted),
            accepted: self.accepted.saturating_add(other.accepted),
            predicted: self.predicted.saturating_add(other.predicted),
            accepted_predicted: self.accepted_predicted.saturating_add(other.accepted_predicted),
        }
    }
}

/// A time that may not be known yet. Stored as 0 if unknown, else as 1 + the time since arrival [ns].
#[derive(Debug, Default)]
struct Mark(AtomicU64);

impl Mark {
    fn set(&self, arrived: Instant, now: Instant) {
        let since = now.saturating_duration_since(arrived).as_nanos();
        self.0.store(u64::try_from(since).unwrap_or(u64::MAX - 1) + 1, Ordering::Relaxed);
    }

    fn get(&self, arrived: Instant) -> Option<Instant> {
        let since = self.0.load(Ordering::Relaxed).checked_sub(1)?;
        Some(arrived + Duration::from_nanos(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_unknown_until_it_comes() {
        let progress = Progress::new(7);
        assert_eq!((progress.prompt_tokens(), progress.admitted(), progress.prefilled(), progress.last()), (7, None, None, None));
        progress.set_computed(5);
        progress.set_computed(3);
        assert_eq!(progress.computed_tokens(), 5);
        progress.set_computed(9);
        assert_eq!(progress.computed_tokens(), 7, "no more than the prompt has");
        progress.admit(progress.arrived());
        let token = progress.arrived() + Duration::from_millis(3);
        progress.end_prefill(token);
        progress.deliver(token);
        assert_eq!((progress.admitted(), progress.prefilled(), progress.last()), (Some(progress.arrived()), Some(token), Some(token)));
    }
}
