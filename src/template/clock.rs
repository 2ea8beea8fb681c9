//! Implements `strftime_now`: Python's `datetime.now().strftime` at the time in UTC, with a clock that tests can fix.

use time::{Date, Month, OffsetDateTime};

use crate::failure::{Outcome, value_fault};

/// The clock that `strftime_now` reads.
#[derive(Clone, Copy, Debug, Default)]
pub enum Clock {
    /// The system's time, in UTC.
    #[default]
    System,
    Fixed(OffsetDateTime),
}

impl Clock {
    /// Midnight (UTC) of a date in the form `YYYY-MM-DD`.
    pub fn from_date(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, '-');
        let year = parts.next()?.parse().ok()?;
        let month = Month::try_from(parts.next()?.parse::<u8>().ok()?).ok()?;
        let day = parts.next()?.parse().ok()?;
        Date::from_calendar_date(year, month, day).ok().map(|date| Self::Fixed(date.midnight().assume_utc()))
    }

    /// Formats the time with C's codes in the "C" locale. An unknown code is an error, because its result in Python depends on the
    /// platform.
    pub(super) fn strftime(self, format: &str) -> Outcome<String> {
        let now = match self {
            Self::System => OffsetDateTime::now_utc(),
            Self::Fixed(time) => time,
        };
        let mut out = String::with_capacity(format.len() + 16);
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let mut code = chars.next();
            let mut flags = Vec::new();
            while let Some(flag) = code.filter(|code| matches!(code, '-' | '_' | '0' | '^' | '#')) {
                flags.push(flag);
                code = chars.next();
            }
            let field = code.and_then(|code| self::field(code, now)).ok_or_else(|| {
                let shown = code.map(String::from).unwrap_or_default();
                value_fault(format!("strftime_now: unknown code `%{shown}`"))
            })?;
            out.push_str(&flags.into_iter().fold(field, |field, flag| flagged(&field, flag, code)));
        }
        Ok(out)
    }
}

/// Applies one of the flags of the GNU C library to a field.
fn flagged(field: &str, flag: char, code: Option<char>) -> String {
    let is_number = field.trim_start().bytes().all(|byte| byte.is_ascii_digit()) && !field.trim().is_empty();
    let digits = field.trim_start_matches(['0', ' ']);
    let digits = if digits.is_empty() { "0" } else { digits };
    match flag {
        '-' if is_number => digits.to_owned(),
        '_' if is_number => format!("{digits:>width$}", width = field.len()),
        '0' if is_number => format!("{digits:0>width$}", width = field.len()),
        '#' if code == Some('p') => field.to_lowercase(),
        '^' | '#' => field.to_uppercase(),
        _ => field.to_owned(),
    }
}

fn field(code: char, t: OffsetDateTime) -> Option<String> {
    let (date, weekday, month) = (t.date(), t.weekday().to_string(), t.month().to_string());
    let hour12 = (t.hour() + 11) % 12 + 1;
    let meridiem = if t.hour() < 12 { "AM" } else { "PM" };
    Some(match code {
        'Y' => format!("{:04}", t.year()),
        'y' => format!("{:02}", t.year().rem_euclid(100)),
        'C' => format!("{:02}", t.year().div_euclid(100)),
        'm' => format!("{:02}", u8::from(t.month())),
        'd' => format!("{:02}", t.day()),
        'e' => format!("{:2}", t.day()),
        'j' => format!("{:03}", t.ordinal()),
        'H' => format!("{:02}", t.hour()),
        'I' => format!("{hour12:02}"),
        'M' => format!("{:02}", t.minute()),
        'S' => format!("{:02}", t.second()),
        'f' => format!("{:06}", t.microsecond()),
        'p' => meridiem.to_string(),
        'P' => meridiem.to_lowercase(),
        'k' => format!("{:2}", t.hour()),
        'l' => format!("{hour12:2}"),
        'a' => weekday[..3].to_string(),
        'A' => weekday,
        'b' | 'h' => month[..3].to_string(),
        'B' => month,
        'u' => t.weekday().number_from_monday().to_string(),
        'w' => t.weekday().number_days_from_sunday().to_string(),
        'U' => format!("{:02}", date.sunday_based_week()),
        'W' => format!("{:02}", date.monday_based_week()),
        'V' => format!("{:02}", date.iso_week()),
        'G' => format!("{:04}", date.to_iso_week_date().0),
        'g' => format!("{:02}", date.to_iso_week_date().0.rem_euclid(100)),
        // Transformers' time has no zone.
        'Z' | 'z' => String::new(),
        's' => t.unix_timestamp().to_string(),
        'F' => format!("{:04}-{:02}-{:02}", t.year(), u8::from(t.month()), t.day()),
        'D' | 'x' => format!("{:02}/{:02}/{:02}", u8::from(t.month()), t.day(), t.year().rem_euclid(100)),
        'R' => format!("{:02}:{:02}", t.hour(), t.minute()),
        'T' | 'X' => format!("{:02}:{:02}:{:02}", t.hour(), t.minute(), t.second()),
        'r' => format!("{hour12:02}:{:02}:{:02} {meridiem}", t.minute(), t.second()),
        'c' => {
            let (day, hour, minute, second) = (t.day(), t.hour(), t.minute(), t.second());
            format!("{} {} {day:2} {hour:02}:{minute:02}:{second:02} {:04}", &weekday[..3], &month[..3], t.year())
        }
        'n' => "\n".to_string(),
        't' => "\t".to_string(),
        '%' => "%".to_string(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strftime_formats_like_python() {
        let clock = Clock::Fixed(time::macros::datetime!(2024-07-26 15:04:05 UTC));
        let cases = [
            ("%d %b %Y", "26 Jul 2024"),
            ("%Y-%m-%d", "2024-07-26"),
            ("%B %d, %Y", "July 26, 2024"),
            ("%A %a %j %U %W %V %u %w", "Friday Fri 208 29 30 30 5 5"),
            ("%I:%M %p %-I %% %y %e", "03:04 PM 3 % 24 26"),
            ("%c", "Fri Jul 26 15:04:05 2024"),
            ("%-m %_m %0e %^a %#p %#b %k %l %P %g %_H %Z%z.", "7  7 26 FRI pm JUL 15  3 pm 24 15 ."),
        ];
        for (format, want) in cases {
            assert_eq!(clock.strftime(format).unwrap(), want, "{format}");
        }
        assert!(clock.strftime("%Q").unwrap_err().text().contains("%Q"));
        assert!(clock.strftime("%").is_err());
    }

    #[test]
    fn only_valid_dates_are_parsed() {
        assert!(matches!(Clock::from_date("2024-07-26"), Some(Clock::Fixed(t)) if t.day() == 26));
        for bad in ["2024-02-30", "2024", "x", "2024-07-26-1", ""] {
            assert!(Clock::from_date(bad).is_none(), "{bad}");
        }
    }
}
