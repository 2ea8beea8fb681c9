//! The facts about a request that its log line and its spans report when it ends.

use std::time::{Duration, Instant, SystemTime};

use super::error::{ApiError, Kind};
use super::ignored::Ignored;
use serving::{Account, Counts, EndReason, Ledger};

/// The status that is logged if the client left before a response, as proxies do.
const LEFT: u16 = 499;

pub struct RequestRecord {
    pub started: Instant,
    pub started_at: SystemTime,
    pub method: String,
    pub path: String,
    pub peer: String,
    pub id: String,
    /// The client's `traceparent` header.
    pub traceparent: Option<String>,
    /// The id of the request's trace, if its spans are sent.
    pub trace: Option<String>,
    /// The route's pattern. `None` if no route has the path, or if the client left before the response.
    pub route: Option<String>,
    pub tenant: Option<String>,
    pub model: Option<String>,
    /// The adapters of the request, each with its scale unless that is 1.
    pub adapters: Option<String>,
    /// The status of the response. `None` if there was no response.
    pub status: Option<u16>,
    pub refusal: Option<Refusal>,
    /// The fields that were left out.
    pub ignored: Ignored,
    /// The tokens and times of the request's generations or texts.
    pub ledger: Ledger,
    pub ending: BodyEnd,
    /// Whether the request is a health probe.
    pub is_probe: bool,
}

/// Why a request got no response, or an incomplete one.
pub struct Refusal {
    pub kind: Kind,
    /// The request's field that is at fault.
    pub field: Option<String>,
}

/// A request's progress through the queue of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueState {
    /// The request is not queued yet.
    NotYet,
    WaitsSince(Instant),
    /// A sequence of the request runs or has run.
    Came,
}

/// How the response's body ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyEnd {
    /// The client left before the last byte, or before the first.
    #[default]
    Left,
    Whole,
    /// The server cut the body.
    Cut,
    /// The server cut the body because the client did not read.
    Stalled,
}

/// The outcome of a request, as one word in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Ok,
    /// The client left.
    Left,
    /// The request was at fault, or the server has no room for it.
    Refused,
    /// The response began and then ended early, but not because the client left.
    Aborted,
    /// The server was at fault.
    Failed,
}

impl Outcome {
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Left => "left",
            Self::Refused => "refused",
            Self::Aborted => "aborted",
            Self::Failed => "failed",
        }
    }
}

impl Refusal {
    pub fn of(error: &ApiError) -> Self {
        Self { kind: error.kind, field: error.param.clone() }
    }
}

impl RequestRecord {
    pub fn status(&self) -> u16 {
        self.status.unwrap_or(LEFT)
    }

    pub fn outcome(&self) -> Outcome {
        let began = self.status.is_some_and(|status| status < 400);
        match &self.refusal {
            Some(refusal) if refusal.kind.is_fault() => Outcome::Failed,
            Some(_) if began => Outcome::Aborted,
            Some(_) => Outcome::Refused,
            None => match self.ending {
                BodyEnd::Left => Outcome::Left,
                BodyEnd::Cut | BodyEnd::Stalled => Outcome::Aborted,
                BodyEnd::Whole if began => Outcome::Ok,
                BodyEnd::Whole if self.status() >= 500 => Outcome::Failed,
                BodyEnd::Whole => Outcome::Refused,
            },
        }
    }

    /// Why the outcome is not `Ok`, as a word from a closed set.
    pub fn reason(&self) -> Option<&'static str> {
        let cut = || match self.ending {
            BodyEnd::Stalled => Some("client_does_not_read"),
            BodyEnd::Cut => Some("stream_cut"),
            BodyEnd::Left => Some("client_left"),
            BodyEnd::Whole => None,
        };
        self.refusal.as_ref().map(|refusal| refusal.kind.code()).or_else(cut)
    }

    /// The request's tokens. `None` if nothing was submitted for it.
    pub fn counts(&self) -> Option<Counts> {
        self.ledger.first().map(|_| self.ledger.counts())
    }

    /// The time from the request's first place in an engine's queue to its first running sequence, or until now.
    pub fn queued(&self, now: Instant) -> Option<Duration> {
        let arrived = self.ledger.earliest(Account::arrived)?;
        Some(self.ledger.earliest(Account::admitted).unwrap_or(now).saturating_duration_since(arrived))
    }

    pub fn turn(&self) -> QueueState {
        match (self.ledger.earliest(Account::admitted), self.ledger.earliest(Account::arrived)) {
            (Some(_), _) => QueueState::Came,
            (None, Some(since)) => QueueState::WaitsSince(since),
            (None, None) => QueueState::NotYet,
        }
    }

    /// The time from the request's arrival to its first generated token.
    pub fn time_to_first_token(&self) -> Option<Duration> {
        let first = self.ledger.earliest(|account| account.prefilled().filter(|_| account.generated_tokens() > 0))?;
        Some(first.saturating_duration_since(self.started))
    }

    /// How the choices ended, joined by commas.
    pub fn finish(&self) -> Option<String> {
        let names = self.ledger.ends().into_iter().map(|reason| match reason {
            EndReason::Stop => "stop",
            EndReason::Length => "length",
            EndReason::Calls => "tool_calls",
        });
        Some(names.collect::<Vec<_>>().join(",")).filter(|names| !names.is_empty())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub fn record() -> RequestRecord {
        RequestRecord {
            started: Instant::now(),
            started_at: SystemTime::now(),
            method: "POST".into(),
            path: "/v1/completions".into(),
            peer: String::new(),
            id: "a".into(),
            traceparent: None,
            trace: None,
            route: None,
            tenant: None,
            model: None,
            adapters: None,
            status: Some(200),
            refusal: None,
            ignored: Ignored::default(),
            ledger: Ledger::default(),
            ending: BodyEnd::Whole,
            is_probe: false,
        }
    }

    #[test]
    fn an_outcome_follows_from_the_error_the_end_and_the_status() {
        let of = |status, kind: Option<Kind>, ending| {
            let refusal = kind.map(|kind| Refusal { kind, field: None });
            let record = RequestRecord { status, refusal, ending, ..record() };
            (record.outcome(), record.status(), record.reason())
        };
        assert_eq!(of(Some(200), None, BodyEnd::Whole), (Outcome::Ok, 200, None));
        assert_eq!(of(Some(200), None, BodyEnd::Left), (Outcome::Left, 200, Some("client_left")));
        assert_eq!(of(None, None, BodyEnd::Left), (Outcome::Left, 499, Some("client_left")));
        assert_eq!(of(Some(200), None, BodyEnd::Stalled), (Outcome::Aborted, 200, Some("client_does_not_read")));
        assert_eq!(of(Some(400), Some(Kind::InvalidValue), BodyEnd::Whole), (Outcome::Refused, 400, Some("invalid_value")));
        assert_eq!(of(Some(503), Some(Kind::Draining), BodyEnd::Whole), (Outcome::Refused, 503, Some("shutting_down")));
        assert_eq!(of(Some(200), Some(Kind::Draining), BodyEnd::Whole), (Outcome::Aborted, 200, Some("shutting_down")));
        assert_eq!(of(Some(200), Some(Kind::GenerationFailed), BodyEnd::Left), (Outcome::Failed, 200, Some("generation_failed")));
        assert_eq!(of(Some(500), Some(Kind::Internal), BodyEnd::Whole), (Outcome::Failed, 500, Some("internal_error")));
        assert_eq!(of(Some(404), None, BodyEnd::Whole), (Outcome::Refused, 404, None));
    }
}
