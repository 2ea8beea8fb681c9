//! Deadlines: how long a request may take, and how long it may wait for an engine.

use std::time::{Duration, Instant};

use actix_web::http::header::HeaderMap;

use super::error::{ApiError, Kind, quoted};
use super::request_record::QueueState;
use config::Limits;

/// The client's header with the time limit [s].
const HEADER: &str = "x-request-timeout";
/// The longest time that a client may set: a day [s].
const MOST: f64 = 86400.0;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Deadline {
    /// The limit from the arrival of the head to the last byte of the response, and whether the client has set it.
    whole: Option<(Duration, bool)>,
    /// The limit on waiting in an engine's queue.
    wait: Option<Duration>,
}

impl Deadline {
    /// Reads the limits of a request. The client may ask for less time than the server gives. A 0 in `limits` means no limit.
    ///
    /// # Errors
    /// Fails if the header is not a number of seconds.
    pub fn of(headers: &HeaderMap, limits: &Limits) -> Result<Self, ApiError> {
        let some = |seconds: u64| Some(Duration::from_secs(seconds)).filter(|time| !time.is_zero());
        let (own, asked) = (some(limits.request_timeout_seconds), asked(headers)?);
        let whole = match (own, asked) {
            (own, Some(asked)) if own.is_none_or(|own| asked < own) => Some((asked, true)),
            (own, _) => own.map(|own| (own, false)),
        };
        Ok(Self { whole, wait: some(limits.max_queue_seconds) })
    }

    /// Returns the nearest limit of a request that arrived at `started`: its time, and the error that ends the request then. If the error
    /// is `None`, the limits must be computed again at that time.
    pub fn next(&self, started: Instant, turn: QueueState) -> Option<(Instant, Option<ApiError>)> {
        let whole = self.whole.map(|(time, is_asked)| {
            let of = if is_asked { HEADER } else { "limits.request_timeout_seconds" };
            let message = format!("the request took longer than {} s, which {of} allows", time.as_secs_f64());
            (started + time, Some(ApiError::new(Kind::Deadline, message)))
        });
        let wait = self.wait.and_then(|time| match turn {
            QueueState::NotYet => Some((Instant::now() + time, None)),
            QueueState::WaitsSince(since) => {
                let message = format!("the request waited {} s for its turn (limits.max_queue_seconds): try again later", time.as_secs());
                Some((since + time, Some(ApiError::new(Kind::QueueTimeout, message))))
            }
            QueueState::Came => None,
        });
        whole.into_iter().chain(wait).min_by_key(|(at, _)| *at)
    }
}

fn asked(headers: &HeaderMap) -> Result<Option<Duration>, ApiError> {
    let mut values = headers.get_all(HEADER);
    let Some(value) = values.next() else { return Ok(None) };
    let seconds = value.to_str().ok().and_then(|text| text.trim().parse::<f64>().ok()).filter(|seconds| *seconds > 0.0 && *seconds <= MOST);
    match seconds.filter(|_| values.next().is_none()) {
        Some(seconds) => Ok(Some(Duration::from_secs_f64(seconds).max(Duration::from_millis(1)))),
        None => {
            let got = quoted(&String::from_utf8_lossy(value.as_bytes()));
            let message = format!("the header {HEADER} must be one number of seconds, more than 0 and at most {MOST}, not {got}");
            Err(ApiError::field(HEADER, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use actix_web::http::header::{HeaderName, HeaderValue};

    use super::*;
    use config::{Config, ConfigSources, Overrides};

    fn limits() -> Limits {
        let env = vec![("HOME".to_owned(), "/home/u".to_owned())];
        Config::load_from(&ConfigSources { env, ..Default::default() }, &Overrides::default()).unwrap().limits
    }

    fn headers(values: &[&'static str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        values.iter().for_each(|value| headers.append(HeaderName::from_static(HEADER), HeaderValue::from_static(value)));
        headers
    }

    #[test]
    fn a_client_may_ask_for_less_time_than_the_server_gives() {
        let mut limits = limits();
        let whole = |limits: &Limits, value| Deadline::of(&headers(value), limits).unwrap().whole;
        assert_eq!(whole(&limits, &[]), None);
        assert_eq!(whole(&limits, &[" 2.5 "]), Some((Duration::from_millis(2500), true)));
        limits.request_timeout_seconds = 2;
        let own = Some((Duration::from_secs(2), false));
        assert_eq!([whole(&limits, &[]), whole(&limits, &["3"])], [own, own]);
        assert_eq!(whole(&limits, &["1"]), Some((Duration::from_secs(1), true)));
        for bad in [&["0"][..], &["-1"], &["nan"], &["inf"], &["1e9"], &["5s"], &[""], &["1", "2"]] {
            let error = Deadline::of(&headers(bad), &limits).unwrap_err();
            assert_eq!((error.kind, error.param.as_deref()), (Kind::InvalidValue, Some("x-request-timeout")), "{bad:?}");
        }
    }

    #[test]
    fn the_nearest_limit_is_the_next() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let deadline = Deadline { whole: Some((Duration::from_secs(10), true)), wait: Some(Duration::from_secs(4)) };
        let next = |turn| deadline.next(start, turn).map(|(at, error)| (at, error.map(|error| error.kind))).unwrap();
        assert_eq!(next(QueueState::WaitsSince(at(1))), (at(5), Some(Kind::QueueTimeout)));
        assert_eq!(next(QueueState::WaitsSince(at(7))), (at(10), Some(Kind::Deadline)));
        assert_eq!(next(QueueState::Came), (at(10), Some(Kind::Deadline)));
        assert_eq!(next(QueueState::NotYet).1, None, "it does not wait in a queue yet");
        assert!(Deadline::default().next(start, QueueState::NotYet).is_none());
    }
}
