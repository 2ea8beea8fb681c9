//! A token bucket for a rate per minute.

use std::time::{Duration, Instant};

/// The level of one unit: a rate of one per minute adds 1 to the level per nanosecond. Levels are integers, so that no rounding errors add
/// up.
const UNIT: i128 = 60_000_000_000;
/// The longest wait that is reported, because a rate may have been lowered by much.
const LONGEST_WAIT: Duration = Duration::from_hours(24);

/// The remaining part of a rate. The bucket starts full and holds at most a minute's worth. Its level may be negative, and then refills to
/// zero before any unit is available.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    level: i128,
    updated: Option<Instant>,
}

impl Bucket {
    pub const fn new() -> Self {
        Self { level: 0, updated: None }
    }

    /// Brings the level up to `now`. A changed rate applies to the whole time since the last call.
    fn refill(&mut self, per_minute: u64, now: Instant) {
        let most = i128::from(per_minute) * UNIT;
        self.level = match self.updated {
            None => most,
            Some(before) => {
                let nanoseconds = now.saturating_duration_since(before).as_nanos() as i128;
                self.level.saturating_add(nanoseconds.saturating_mul(per_minute.into())).min(most)
            }
        };
        self.updated = Some(self.updated.map_or(now, |before| before.max(now)));
    }

    /// Time until `amount` units are available. Zero if they are available now.
    pub fn wait(&mut self, amount: u64, per_minute: u64, now: Instant) -> Duration {
        self.refill(per_minute, now);
        let missing = (i128::from(amount) * UNIT - self.level).max(0);
        let per_minute = i128::from(per_minute.max(1));
        let nanoseconds = (missing + per_minute - 1) / per_minute;
        u64::try_from(nanoseconds).map_or(LONGEST_WAIT, Duration::from_nanos).min(LONGEST_WAIT)
    }

    /// Takes `amount` units, even if fewer are available.
    pub fn take(&mut self, amount: u64, per_minute: u64, now: Instant) {
        self.refill(per_minute, now);
        self.level = self.level.saturating_sub(i128::from(amount) * UNIT);
    }

    /// The number of whole units that are left.
    pub fn left(&mut self, per_minute: u64, now: Instant) -> u64 {
        self.refill(per_minute, now);
        (self.level.max(0) / UNIT) as u64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_minutes_worth_is_there_at_first_and_comes_back_within_a_minute() {
        let (mut bucket, start) = (Bucket::new(), Instant::now());
        let at = |seconds: f64| start + Duration::from_secs_f64(seconds);
        assert_eq!(bucket.left(60, start), 60);
        bucket.take(60, 60, start);
        assert_eq!((bucket.left(60, start), bucket.wait(1, 60, start)), (0, Duration::from_secs(1)));
        assert_eq!(bucket.wait(1, 60, at(0.75)), Duration::from_millis(250));
        assert_eq!((bucket.left(60, at(30.0)), bucket.left(60, at(600.0))), (30, 60), "it never holds more than a minute's worth");
        bucket.take(120, 60, at(600.0));
        assert_eq!(bucket.wait(1, 60, at(600.0)), Duration::from_secs(61), "what was used beyond the rate is paid back");
        assert_eq!(bucket.left(60, at(500.0)), 0, "time that goes back gives nothing");
    }

    proptest! {
        /// A client that takes one unit whenever it may gets at most a minute's worth and the refill since.
        #[test]
        fn nobody_gets_more_than_the_rate(per_minute in 1u64..2000, gaps in prop::collection::vec(0u64..5000, 1..300)) {
            let (mut bucket, start) = (Bucket::new(), Instant::now());
            let (mut now, mut taken) = (start, 0u64);
            for gap in gaps {
                now += Duration::from_millis(gap);
                let wait = bucket.wait(1, per_minute, now);
                if wait.is_zero() {
                    bucket.take(1, per_minute, now);
                    taken += 1;
                } else {
                    let mut later = bucket;
                    prop_assert!(later.wait(1, per_minute, now + wait).is_zero(), "the wait is long enough");
                }
                let most = u128::from(per_minute) * (60_000 + (now - start).as_millis());
                prop_assert!(u128::from(taken) * 60_000 <= most);
            }
        }
    }
}
