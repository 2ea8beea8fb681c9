//! A key in use: its limits and its usage.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::bucket::Bucket;
use crate::digest::Digest;
use crate::entry::KeyEntry;

/// The limits of a key. 0: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    pub requests_per_minute: u64,
    /// Tokens of prompts and answers.
    pub tokens_per_minute: u64,
    pub max_concurrent: u64,
}

/// The limit that refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    Requests,
    Tokens,
    Concurrency,
}

/// Why a request must wait, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub limit: Limit,
    /// The limit's value.
    pub allowed: u64,
    pub retry_after: Duration,
}

/// The remaining part of a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    pub limit: u64,
    pub remaining: u64,
    /// Time until the whole rate is available again.
    pub reset: Duration,
}

/// The usage of a key. Kept when the key's limits change.
#[derive(Debug)]
struct Usage {
    requests: Bucket,
    tokens: Bucket,
    num_in_flight: u64,
}

#[derive(Debug)]
pub struct Key {
    pub name: String,
    pub tenant: Arc<str>,
    /// The weight of the key's requests when an engine is shared.
    pub priority: u32,
    /// Whether the key may manage the server's models.
    pub admin: bool,
    /// `None`: every model.
    models: Option<Vec<String>>,
    limits: Limits,
    pub(crate) digest: Digest,
    usage: Arc<Mutex<Usage>>,
}

impl Key {
    /// `defaults`: the limits for those that the entry does not set.
    pub(crate) fn new(entry: KeyEntry, defaults: Limits) -> Self {
        let limits = Limits {
            requests_per_minute: entry.requests_per_minute.unwrap_or(defaults.requests_per_minute),
            tokens_per_minute: entry.tokens_per_minute.unwrap_or(defaults.tokens_per_minute),
            max_concurrent: entry.max_concurrent.unwrap_or(defaults.max_concurrent),
        };
        let usage = Usage { requests: Bucket::new(), tokens: Bucket::new(), num_in_flight: 0 };
        let (tenant, priority, digest, admin) = (entry.tenant().into(), entry.priority(), entry.sha256, entry.admin);
        Self { name: entry.name, tenant, priority, admin, models: entry.models, limits, digest, usage: Arc::new(Mutex::new(usage)) }
    }

    /// Takes over the usage of `before`, the same key before its entry was read again.
    pub(crate) fn continues(self, before: &Self) -> Self {
        Self { usage: before.usage.clone(), ..self }
    }

    /// The models that the key may use. `None`: every model.
    pub fn models(&self) -> Option<&[String]> {
        self.models.as_deref()
    }

    /// Begins a request and counts it against the limits. The request counts as running until the returned value is dropped.
    ///
    /// # Errors
    /// A limit is reached. The request is not counted.
    pub fn begin(&self, now: Instant) -> Result<InFlight, Refusal> {
        let mut usage = self.usage();
        let allowed = self.limits.max_concurrent;
        if allowed > 0 && usage.num_in_flight >= allowed {
            // The end of a running request cannot be predicted.
            return Err(Refusal { limit: Limit::Concurrency, allowed, retry_after: Duration::from_secs(1) });
        }
        self.take_rates(&mut usage, now)?;
        usage.num_in_flight += 1;
        Ok(InFlight { usage: self.usage.clone() })
    }

    /// Counts a request against the rates only, because it runs nothing and so does not count as concurrent.
    ///
    /// # Errors
    /// A rate is reached. The request is not counted.
    pub fn look(&self, now: Instant) -> Result<(), Refusal> {
        self.take_rates(&mut self.usage(), now)
    }

    fn take_rates(&self, usage: &mut Usage, now: Instant) -> Result<(), Refusal> {
        let Limits { requests_per_minute, tokens_per_minute, .. } = self.limits;
        let refusal = |limit, allowed, retry_after| Refusal { limit, allowed, retry_after };
        if tokens_per_minute > 0 {
            // The number of tokens of a request is known only at its end, so one remaining token is enough to begin.
            let wait = usage.tokens.wait(1, tokens_per_minute, now);
            if !wait.is_zero() {
                return Err(refusal(Limit::Tokens, tokens_per_minute, wait));
            }
        }
        if requests_per_minute > 0 {
            let wait = usage.requests.wait(1, requests_per_minute, now);
            if !wait.is_zero() {
                return Err(refusal(Limit::Requests, requests_per_minute, wait));
            }
            usage.requests.take(1, requests_per_minute, now);
        }
        Ok(())
    }

    /// Counts tokens against the rate, even if fewer are left. Then the next requests must wait.
    pub fn spend(&self, num_tokens: u64, now: Instant) {
        if self.limits.tokens_per_minute > 0 {
            self.usage().tokens.take(num_tokens, self.limits.tokens_per_minute, now);
        }
    }

    /// The remaining rates of requests and of tokens. `None` if there is no such limit.
    pub fn rates(&self, now: Instant) -> (Option<Rate>, Option<Rate>) {
        let mut usage = self.usage();
        let rate = |bucket: &mut Bucket, limit: u64| {
            (limit > 0).then(|| Rate { limit, remaining: bucket.left(limit, now), reset: bucket.wait(limit, limit, now) })
        };
        let requests = rate(&mut usage.requests, self.limits.requests_per_minute);
        (requests, rate(&mut usage.tokens, self.limits.tokens_per_minute))
    }

    fn usage(&self) -> MutexGuard<'_, Usage> {
        lock(&self.usage)
    }
}

fn lock(usage: &Mutex<Usage>) -> MutexGuard<'_, Usage> {
    usage.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts a running request, until dropped.
#[derive(Debug)]
pub struct InFlight {
    usage: Arc<Mutex<Usage>>,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        lock(&self.usage).num_in_flight -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(limits: Limits) -> Key {
        Key::new(KeyEntry::new("a", Digest::of(b"a")), limits)
    }

    #[test]
    fn requests_beyond_the_rate_are_refused_and_do_not_count() {
        let (key, start) = (key(Limits { requests_per_minute: 2, ..Limits::default() }), Instant::now());
        let begin = |seconds| key.begin(start + Duration::from_secs(seconds)).map(drop);
        assert_eq!((begin(0), begin(0)), (Ok(()), Ok(())));
        let refused = |seconds| Err(Refusal { limit: Limit::Requests, allowed: 2, retry_after: Duration::from_secs(seconds) });
        assert_eq!((begin(0), begin(10), begin(29)), (refused(30), refused(20), refused(1)));
        assert_eq!((begin(30), begin(30)), (Ok(()), refused(30)));
        let (requests, tokens) = key.rates(start + Duration::from_secs(45));
        assert_eq!(requests, Some(Rate { limit: 2, remaining: 0, reset: Duration::from_secs(45) }));
        assert_eq!(tokens, None);
    }

    #[test]
    fn tokens_beyond_the_rate_make_later_requests_wait() {
        let (key, start) = (key(Limits { tokens_per_minute: 600, ..Limits::default() }), Instant::now());
        let begin = |seconds| key.begin(start + Duration::from_secs(seconds)).map(drop);
        assert_eq!(begin(0), Ok(()));
        key.spend(599, start);
        assert_eq!(begin(0), Ok(()), "one token is left");
        key.spend(301, start);
        let wait = Duration::from_millis(30_100);
        assert_eq!(begin(0), Err(Refusal { limit: Limit::Tokens, allowed: 600, retry_after: wait }));
        assert_eq!(begin(31), Ok(()));
    }

    #[test]
    fn as_many_requests_run_at_once_as_are_allowed() {
        let (key, now) = (key(Limits { max_concurrent: 2, ..Limits::default() }), Instant::now());
        let (one, two) = (key.begin(now).unwrap(), key.begin(now).unwrap());
        assert_eq!(key.begin(now).unwrap_err().limit, Limit::Concurrency);
        drop(one);
        let three = key.begin(now).unwrap();
        assert!(key.begin(now).is_err());
        drop((two, three));
        assert!(key.begin(now).is_ok());
    }

    #[test]
    fn a_look_takes_no_place_but_counts_against_the_rate() {
        let limits = Limits { max_concurrent: 1, requests_per_minute: 2, ..Limits::default() };
        let (key, now) = (key(limits), Instant::now());
        let _running = key.begin(now).unwrap();
        assert_eq!(key.look(now), Ok(()));
        assert_eq!(key.look(now).unwrap_err().limit, Limit::Requests);
    }
}
