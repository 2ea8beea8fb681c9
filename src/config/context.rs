//! The setting `context`.

use std::fmt;
use std::str::FromStr;

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The longest context served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Context {
    /// As long as the model was made for, if the machine's memory holds it.
    #[default]
    Auto,
    /// At most this many tokens.
    Tokens(usize),
}

impl Context {
    const EXPECTED: &str = "a number of tokens or \"auto\"";
    /// More than any model was made for.
    const MOST: u64 = 1 << 24;

    fn new(tokens: u64) -> Result<Self, String> {
        match tokens {
            1..=Self::MOST => Ok(Self::Tokens(tokens as usize)),
            _ => Err(format!("{tokens} is not between 1 and {}", Self::MOST)),
        }
    }
}

impl FromStr for Context {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            number => Self::new(number.parse().map_err(|_| format!("expected {}", Self::EXPECTED))?),
        }
    }
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Tokens(tokens) => tokens.fmt(f),
        }
    }
}

impl Serialize for Context {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::Tokens(tokens) => serializer.serialize_u64(*tokens as u64),
        }
    }
}

impl<'de> Deserialize<'de> for Context {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

/// Reads a number, or a text as environment variables have it.
#[derive(Clone, Copy)]
struct Reader;

impl Visitor<'_> for Reader {
    type Value = Context;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Context::EXPECTED)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Context, E> {
        Context::new(value).map_err(E::custom)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Context, E> {
        self.visit_u64(u64::try_from(value).map_err(|_| E::invalid_value(Unexpected::Signed(value), &self))?)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Context, E> {
        text.parse().map_err(E::custom)
    }
}
