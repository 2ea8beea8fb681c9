//! Timestamps in RFC 3339.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// A timestamp that never comes.
pub const NEVER: &str = "9999-12-31T23:59:59Z";

/// Formats a timestamp.
pub fn written(time: OffsetDateTime) -> String {
    time.format(&Rfc3339).unwrap_or_else(|_| NEVER.into())
}

/// Formats a timestamp from Unix seconds.
pub fn of_seconds(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok().and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
    time.map_or_else(|| NEVER.into(), written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_written_in_rfc_3339() {
        for (seconds, due) in
            [(0, "1970-01-01T00:00:00Z"), (951_782_400, "2000-02-29T00:00:00Z"), (1_709_251_199, "2024-02-29T23:59:59Z"), (u64::MAX, NEVER)]
        {
            assert_eq!(of_seconds(seconds), due);
        }
    }
}
