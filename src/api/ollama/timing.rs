//! The durations of a request's parts [ns].

use std::rc::Rc;
use std::time::{Duration, Instant};

use super::types::common::End;
use http::journal::Journal;
use serving::EndReason;

/// The times of a request, and the journal that knows those of its generation.
#[derive(Clone)]
pub struct Timings {
    began: Instant,
    /// When the model was available.
    loaded: Instant,
    journal: Rc<Journal>,
}

impl Timings {
    /// Creates the timings, once the model is available.
    pub fn new(began: Instant, journal: Rc<Journal>) -> Self {
        Self { began, loaded: Instant::now(), journal }
    }

    pub fn total(&self) -> u64 {
        nanoseconds(self.began.elapsed())
    }

    pub fn load(&self) -> u64 {
        nanoseconds(self.loaded.saturating_duration_since(self.began))
    }

    /// Makes the end of an answer. Ending with a call counts as a stop.
    pub fn end(&self, reason: EndReason) -> End {
        let ledger = self.journal.ledger();
        let (account, counts) = (ledger.first().unwrap_or_default(), ledger.counts());
        let between = |from: Option<Instant>, to: Option<Instant>| {
            Some(nanoseconds(from.zip(to).map_or(Duration::ZERO, |(from, to)| to.saturating_duration_since(from))))
        };
        let reason = if reason == EndReason::Length { "length" } else { "stop" };
        End {
            done_reason: Some(reason.into()),
            total_duration: Some(self.total()),
            load_duration: Some(self.load()),
            prompt_eval_count: Some(counts.prompt),
            prompt_eval_duration: between(account.admitted(), account.prefilled()),
            eval_count: Some(counts.generated),
            eval_duration: between(account.prefilled(), account.last()),
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
