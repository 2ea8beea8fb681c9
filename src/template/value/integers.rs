//! Numbers: integers of any size up to a limit, floats, and their text.

use std::cmp::Ordering;
use std::rc::Rc;

use num_bigint::BigInt;
use num_traits::{FromPrimitive, ToPrimitive};

use super::Value;
use crate::budget::note;
use crate::failure::{Outcome, limit, value_fault};
use crate::syntax::chars::is_space;

/// The largest integer [bits]. Each operation takes time up to quadratic in this length.
pub(crate) const MAX_BITS: u64 = 1 << 16;
/// The most decimal digits of an integer that Python reads or writes.
pub(crate) const MAX_DIGITS: usize = 4300;

/// A number as arithmetic sees it. Booleans are integers.
#[derive(Clone, Debug)]
pub(crate) enum Number {
    Int(i64),
    Big(Rc<BigInt>),
    Float(f64),
}

impl Value {
    /// An integer of any size.
    pub fn big(number: BigInt) -> Self {
        match number.to_i64() {
            Some(number) => Self::Int(number),
            None => {
                note(number.bits() / 8);
                Self::Big(Rc::new(number))
            }
        }
    }
}

/// The result of arithmetic. Fails if it is too large.
pub(crate) fn bounded(number: BigInt) -> Outcome<Value> {
    if number.bits() > MAX_BITS { Err(limit("an integer is too large")) } else { Ok(Value::big(number)) }
}

impl Number {
    pub fn of(value: &Value) -> Option<Self> {
        match value {
            Value::Bool(on) => Some(Self::Int(i64::from(*on))),
            Value::Int(number) => Some(Self::Int(*number)),
            Value::Big(number) => Some(Self::Big(Rc::clone(number))),
            Value::Float(number) => Some(Self::Float(*number)),
            _ => None,
        }
    }

    /// The integer that a value equals. The value may be a float.
    pub fn exact(value: &Value) -> Option<BigInt> {
        match Self::of(value)? {
            Self::Float(number) => (number.fract() == 0.0).then(|| BigInt::from_f64(number))?,
            number => number.big(),
        }
    }

    /// The number as a large integer. `None` for a float.
    pub fn big(&self) -> Option<BigInt> {
        match self {
            Self::Int(number) => Some((*number).into()),
            Self::Big(number) => Some((**number).clone()),
            Self::Float(_) => None,
        }
    }

    pub fn float(&self) -> f64 {
        match self {
            Self::Int(number) => *number as f64,
            Self::Big(number) => number.to_f64().unwrap_or(f64::INFINITY),
            Self::Float(number) => *number,
        }
    }

    pub fn is_float(&self) -> bool {
        matches!(self, Self::Float(_))
    }

    /// Bits to hash, which are equal for equal numbers.
    pub fn hash_bits(&self) -> u64 {
        match self {
            Self::Int(number) => number.cast_unsigned(),
            Self::Float(number) if number.fract() == 0.0 && number.abs() < 9.2e18 => (*number as i64).cast_unsigned(),
            other => other.float().to_bits(),
        }
    }

    pub fn equals(&self, other: &Self) -> bool {
        self.compare(other) == Some(Ordering::Equal)
    }

    /// Compares two numbers. `None` if one is NaN.
    pub fn compare(&self, other: &Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Int(a), Self::Int(b)) => Some(a.cmp(b)),
            (Self::Float(a), Self::Float(b)) => a.partial_cmp(b),
            (Self::Float(a), b) => b.compare_float(*a).map(Ordering::reverse),
            (a, Self::Float(b)) => a.compare_float(*b),
            (a, b) => Some(a.big()?.cmp(&b.big()?)),
        }
    }

    /// Compares an integer with a float exactly.
    fn compare_float(&self, other: f64) -> Option<Ordering> {
        if other.is_nan() {
            return None;
        }
        let own = self.big()?;
        match BigInt::from_f64(other.floor()) {
            Some(floor) => Some(own.cmp(&floor).then(if other.fract() == 0.0 { Ordering::Equal } else { Ordering::Less })),
            None => Some(if other > 0.0 { Ordering::Less } else { Ordering::Greater }),
        }
    }
}

/// Like `int(text, radix)`. Radix 0 means that the prefix decides.
pub(crate) fn parse_integer(text: &str, radix: u32) -> Outcome<Value> {
    let bad = || value_fault("the text is no integer");
    let trimmed = text.trim_matches(is_space);
    let (negative, digits) = match trimmed.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, trimmed.strip_prefix('+').unwrap_or(trimmed)),
    };
    let lower = digits.to_lowercase();
    let prefixed = [("0b", 2), ("0o", 8), ("0x", 16)].into_iter().find(|(start, of)| lower.starts_with(start) && [0, *of].contains(&radix));
    let (digits, radix) = match prefixed {
        Some((_, of)) => (lower[2..].strip_prefix('_').unwrap_or(&lower[2..]), of),
        None if radix == 0 => {
            let is_zero = lower.bytes().all(|byte| matches!(byte, b'0' | b'_'));
            (if lower.starts_with('0') && !is_zero { "" } else { &*lower }, 10)
        }
        None => (&*lower, radix),
    };
    let joined = digits.starts_with('_') || digits.ends_with('_') || digits.contains("__");
    let plain = digits.replace('_', "");
    if plain.is_empty() || joined || !plain.chars().all(|c| decimal(c).is_some_and(|digit| digit < radix)) {
        return Err(bad());
    }
    if plain.chars().count() > MAX_DIGITS {
        return Err(value_fault(format!("the integer has more than {MAX_DIGITS} digits")));
    }
    let ascii: String = plain.chars().filter_map(|c| char::from_digit(decimal(c)?, 36)).collect();
    let number = BigInt::parse_bytes(ascii.as_bytes(), radix).ok_or_else(bad)?;
    bounded(if negative { -number } else { number })
}

/// The value of a digit in any script, or of a letter.
fn decimal(c: char) -> Option<u32> {
    if c.is_ascii() {
        return c.to_digit(36);
    }
    // Decimal digits come in runs of ten.
    let is_digit = |c: char| unicode_general_category::get_general_category(c) == unicode_general_category::GeneralCategory::DecimalNumber;
    is_digit(c).then(|| {
        let before = (1..10).take_while(|back| char::from_u32(c as u32 - back).is_some_and(is_digit)).count() as u32;
        before % 10
    })
}

/// Like `float(text)`.
pub(crate) fn parse_float(text: &str) -> Outcome<f64> {
    let bad = || value_fault("the text is no number");
    let trimmed = text.trim_matches(is_space);
    let bytes = trimmed.as_bytes();
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let joined = bytes.iter().enumerate().all(|(at, byte)| *byte != b'_' || (at > 0 && is_digit(at - 1) && is_digit(at + 1)));
    let plain: String = trimmed
        .chars()
        .filter(|c| *c != '_')
        .map(|c| decimal(c).filter(|_| !c.is_ascii()).map_or(c, |digit| (b'0' + digit as u8).into()))
        .collect();
    if !joined { Err(bad()) } else { plain.parse().map_err(|_| bad()) }
}
