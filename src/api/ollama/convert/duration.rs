//! Durations in Go's format: `1h30m`, `1.5s`, `-1m`.

use std::time::Duration;

/// The units and their lengths [ns]. Two-letter units come first, before their own first letters.
const UNITS: [(&str, f64); 8] = [("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("μs", 1e3), ("ms", 1e6), ("s", 1e9), ("m", 6e10), ("h", 3.6e12)];
/// A hundred years [s].
pub const MOST_SECONDS: f64 = 3_155_760_000.0;

/// A duration, or an endless one, which clients write as a negative number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signed {
    Endless,
    For(Duration),
}

/// Converts a number of seconds. `None` if it is more than a hundred years.
pub fn of_seconds(seconds: f64) -> Option<Signed> {
    match seconds {
        _ if seconds < 0.0 => Some(Signed::Endless),
        _ if seconds <= MOST_SECONDS => Some(Signed::For(Duration::from_secs_f64(seconds))),
        _ => None,
    }
}

/// Parses a duration with units, or a number of seconds. `None` if `text` is neither, or is more than a hundred years.
pub fn parse(text: &str) -> Option<Signed> {
    let (is_negative, text) = match text.strip_prefix(['-', '+']) {
        Some(rest) => (text.starts_with('-'), rest),
        None => (false, text),
    };
    let seconds = match number(text) {
        (Some(seconds), "") => seconds,
        _ => with_units(text)? / 1e9,
    };
    of_seconds(if is_negative && seconds > 0.0 { -seconds } else { seconds })
}

fn with_units(mut text: &str) -> Option<f64> {
    let mut sum = (!text.is_empty()).then_some(0.0)?;
    while !text.is_empty() {
        let (count, rest) = number(text);
        let (unit, length) = UNITS.into_iter().find(|(unit, _)| rest.starts_with(unit))?;
        sum += count? * length;
        text = &rest[unit.len()..];
    }
    Some(sum)
}

/// Splits a text into its leading number and the rest.
fn number(text: &str) -> (Option<f64>, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    (digits.parse().ok(), rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_does() {
        let ms = |count| Some(Signed::For(Duration::from_millis(count)));
        for (text, due) in [
            ("5m", ms(300_000)),
            ("1h30m", ms(5_400_000)),
            ("1.5s", ms(1500)),
            ("250ms", ms(250)),
            ("1m500ms", ms(60_500)),
            ("1000µs", ms(1)),
            ("0", ms(0)),
            ("-0s", ms(0)),
            ("+2s", ms(2000)),
            ("300", ms(300_000)),
            ("-1", Some(Signed::Endless)),
            ("-1m", Some(Signed::Endless)),
            ("", None),
            ("m", None),
            ("5 m", None),
            ("5x", None),
            ("1.2.3s", None),
            ("--1s", None),
            ("1e3s", None),
            ("99999999999999h", None),
        ] {
            assert_eq!(parse(text), due, "{text}");
        }
        assert_eq!([of_seconds(-0.5), of_seconds(f64::NAN), of_seconds(1e300)], [Some(Signed::Endless), None, None]);
    }
}
