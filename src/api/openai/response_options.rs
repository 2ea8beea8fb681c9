//! What a request may ask for beside the answer itself: what ended it, its token ids, counts in every event, events of like sizes.

use super::types::common::{StopReason, StreamOptions};
use super::types::usage::Usage;
use serving::{Options, StopCause};

/// An event's text is padded to a multiple of this. In bytes.
const PADDED_TO: usize = 32;

/// What a request asks for beside the answer.
#[derive(Clone, Debug, Default)]
pub struct ResponseOptions {
    /// The stop texts, in the request's order.
    stop: Vec<String>,
    return_ids: bool,
    /// Every event has the token counts so far.
    pub counts: bool,
    obfuscates: bool,
}

/// What is known when an event is made.
#[derive(Clone, Debug)]
pub struct EventNote {
    /// The tokens since the event before.
    pub ids: Vec<u32>,
    /// The counts so far.
    pub usage: Usage,
}

impl ResponseOptions {
    pub fn of(options: &Options, stream: Option<StreamOptions>) -> Self {
        let stream = stream.unwrap_or_default();
        let (counts, obfuscates) = (stream.continuous_usage_stats, stream.include_obfuscation);
        Self { stop: options.stop.clone(), return_ids: options.return_ids, counts, obfuscates }
    }

    pub fn stop_reason(&self, stop: Option<StopCause>) -> Option<StopReason> {
        match stop? {
            StopCause::Text(index) => self.stop.get(index).cloned().map(StopReason::Text),
            StopCause::Token(id) => Some(StopReason::Token(id)),
        }
    }

    /// The ids, if the request wants them.
    pub fn ids(&self, ids: Vec<u32>) -> Option<Vec<u32>> {
        self.return_ids.then_some(ids)
    }

    /// Random characters beside a text of `length` bytes, so that texts of like lengths make events of one size.
    pub fn obfuscation(&self, length: usize) -> Option<String> {
        let missing = PADDED_TO - length % PADDED_TO;
        self.obfuscates.then(|| uuid::Uuid::new_v4().simple().to_string().chars().take(missing).collect())
    }
}
