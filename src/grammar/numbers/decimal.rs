//! [`Decimal`]: a number of any size with all its digits.

use std::cmp::Ordering;

use serde_json::{Number, Value};

/// The least whole number from which doubles skip whole numbers.
const DOUBLES_END: u64 = 1 << 53;

/// A number as JSON writes it without an exponent. -0 equals 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decimal {
    pub negative: bool,
    /// The digits before the point, without leading zeros. `0` if there are none.
    pub whole: String,
    /// The digits after the point, without trailing zeros.
    pub fraction: String,
}

/// Whether rounding to a double may change the number or its neighbours.
pub fn is_large(number: &Number) -> bool {
    match (number.as_u64(), number.as_i64()) {
        (Some(number), _) => number >= DOUBLES_END,
        (_, Some(number)) => number.unsigned_abs() >= DOUBLES_END,
        _ => number.as_f64().is_some_and(|number| number.abs() >= DOUBLES_END as f64),
    }
}

impl Decimal {
    /// Converts a number. A double becomes the shortest decimal that reads back as the same double, which is what the client wrote if it
    /// wrote up to 15 digits.
    pub fn of(number: &Number) -> Self {
        let text = match (number.as_u64(), number.as_i64()) {
            (Some(number), _) => number.to_string(),
            (_, Some(number)) => number.to_string(),
            _ => number.as_f64().unwrap_or_default().to_string(),
        };
        let (negative, text) = text.strip_prefix('-').map_or((false, text.as_str()), |text| (true, text));
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        Self::new(negative, whole, fraction)
    }

    pub fn new(negative: bool, whole: &str, fraction: &str) -> Self {
        let (whole, fraction) = (whole.trim_start_matches('0'), fraction.trim_end_matches('0'));
        let is_zero = whole.is_empty() && fraction.is_empty();
        let whole = if whole.is_empty() { "0" } else { whole };
        Self { negative: negative && !is_zero, whole: whole.into(), fraction: fraction.into() }
    }

    pub fn zero() -> Self {
        Self::new(false, "", "")
    }

    pub fn is_whole(&self) -> bool {
        self.fraction.is_empty()
    }

    pub fn is_zero(&self) -> bool {
        self.whole == "0" && self.is_whole()
    }

    pub fn negated(&self) -> Self {
        Self::new(!self.negative, &self.whole, &self.fraction)
    }

    fn cmp_magnitude(&self, other: &Self) -> Ordering {
        let wholes = cmp_digits(&self.whole, &other.whole);
        wholes.then_with(|| self.fraction.cmp(&other.fraction))
    }
}

/// Compares whole numbers without leading zeros.
pub fn cmp_digits(a: &str, b: &str) -> Ordering {
    a.len().cmp(&b.len()).then_with(|| a.cmp(b))
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self.negative, other.negative) {
            (false, true) => Ordering::Greater,
            (true, false) => Ordering::Less,
            (false, false) => self.cmp_magnitude(other),
            (true, true) => other.cmp_magnitude(self),
        }
    }
}

impl std::fmt::Display for Decimal {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let Self { negative, whole, fraction } = self;
        let (sign, point) = (if *negative { "-" } else { "" }, if fraction.is_empty() { "" } else { "." });
        write!(f, "{sign}{whole}{point}{fraction}")
    }
}

/// The next whole number. Takes and returns digits without leading zeros.
pub fn successor(digits: &str) -> String {
    let kept = digits.trim_end_matches('9');
    let zeros = "0".repeat(digits.len() - kept.len());
    let (rest, last) = kept.split_at(kept.len().saturating_sub(1));
    format!("{rest}{}{zeros}", last.parse::<u8>().unwrap_or_default() + 1)
}

/// The previous whole number. `None` for 0.
pub fn predecessor(digits: &str) -> Option<String> {
    let kept = digits.trim_end_matches('0');
    let (rest, last) = kept.split_at(kept.len().checked_sub(1)?);
    let nines = "9".repeat(digits.len() - kept.len());
    Some(Decimal::new(false, &format!("{rest}{}{nines}", last.parse::<u8>().ok()? - 1), "").whole)
}

#[derive(Clone, Debug, PartialEq)]
pub struct Bound {
    pub at: Decimal,
    /// Whether the range excludes the bound itself.
    pub open: bool,
}

impl Bound {
    pub fn negated(&self) -> Self {
        Self { at: self.at.negated(), open: self.open }
    }

    /// The least whole number that a lower bound of 0 or more allows.
    pub fn whole_above(&self) -> String {
        if self.open || !self.at.is_whole() { successor(&self.at.whole) } else { self.at.whole.clone() }
    }

    /// The largest whole number that an upper bound of 0 or more allows. `None` if no number of 0 or more is left.
    pub fn whole_below(&self) -> Option<String> {
        if self.open && self.at.is_whole() { predecessor(&self.at.whole) } else { Some(self.at.whole.clone()) }
    }
}

/// Whether a value is a large number or holds one.
pub fn holds_large(value: &Value) -> bool {
    match value {
        Value::Number(number) => is_large(number),
        Value::Array(items) => items.iter().any(holds_large),
        Value::Object(map) => map.values().any(holds_large),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(text: &str) -> Decimal {
        Decimal::of(&serde_json::from_str(text).unwrap())
    }

    proptest! {
        #[test]
        fn integers_keep_their_digits_and_their_order(a in any::<i64>(), b in any::<u64>(), shift in 0..64u32) {
            let (a, b) = (a >> shift, b >> shift);
            prop_assert_eq!(of(&a.to_string()).to_string(), a.to_string());
            prop_assert_eq!(of(&b.to_string()).to_string(), b.to_string());
            prop_assert_eq!(of(&a.to_string()).cmp(&of(&b.to_string())), i128::from(a).cmp(&i128::from(b)));
            prop_assert_eq!(successor(&b.to_string()), (u128::from(b) + 1).to_string());
            prop_assert_eq!(predecessor(&b.to_string()), b.checked_sub(1).map(|before| before.to_string()));
        }

        #[test]
        fn doubles_keep_their_value_and_their_order(a in -1e30..1e30f64, b in -2.0..2.0f64) {
            let read = |number: f64| Decimal::of(&Number::from_f64(number).unwrap());
            prop_assert_eq!(read(a).to_string().parse::<f64>().unwrap(), a);
            prop_assert_eq!(read(a).cmp(&read(b)), a.partial_cmp(&b).unwrap());
        }
    }

    #[test]
    fn numbers_have_one_form() {
        for (text, due) in [("1e30", "1000000000000000000000000000000"), ("-0.0", "0"), ("1.50", "1.5"), ("-2e-3", "-0.002"), ("0", "0")] {
            assert_eq!(of(text).to_string(), due, "{text}");
        }
    }
}
