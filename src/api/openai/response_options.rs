//! Optional parts of a response: the stop reason, token ids, counts in every event, and padding that hides the length of texts.

use super::types::common::{StopReason, StreamOptions};
use serving::{Options, StopCause};

/// The length to a multiple of which an event's text is padded [bytes].
const PADDED_TO: usize = 32;

/// The optional parts of a response that a request asks for.
#[derive(Clone, Debug, Default)]
pub struct ResponseOptions {
    /// The stop texts, in the request's order.
    stop: Vec<String>,
    return_ids: bool,
    /// Whether every event includes the token counts so far.
    pub counts: bool,
    obfuscates: bool,
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

    /// Returns the ids, if the request asks for them.
    pub fn ids(&self, ids: Vec<u32>) -> Option<Vec<u32>> {
        self.return_ids.then_some(ids)
    }

    /// Returns random padding for a text of `length` bytes, so that texts of similar lengths make events of the same size.
    pub fn obfuscation(&self, length: usize) -> Option<String> {
        let missing = PADDED_TO - length % PADDED_TO;
        self.obfuscates.then(|| uuid::Uuid::new_v4().simple().to_string().chars().take(missing).collect())
    }
}
