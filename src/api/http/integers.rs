//! Integers that parsing to a JSON tree would round. They are refused by name, because the loss of digits would not show in an answer.

use serde::Serialize;
use serde::ser::{Error, SerializeMap, Serializer};
use serde_json::{Map, Value};

use super::error::quoted;
use chat::{end_of_string, long_integer, long_integers};

/// Returns the path and the problem of the first integer in a JSON text that would be rounded. A double can hold an integer of more than 64
/// bits if few of its digits are nonzero, such as 10^30.
pub fn rounded(json: &[u8]) -> Option<(String, String)> {
    long_integers(json).find_map(|place| {
        let number = String::from_utf8_lossy(&json[place.clone()]);
        let double: f64 = serde_json::from_str(&number).ok()?;
        let problem = || {
            let (least, most) = (i64::MIN, u64::MAX);
            format!("is {}, which would be rounded: whole numbers are exact from {least} to {most}", quoted(&number))
        };
        (double.to_string() != number).then(|| (path(json, place.start), problem()))
    })
}

/// A container that is open at a position in a JSON text.
enum Open {
    Array(usize),
    /// The key of the current member, with its quotes.
    Object(std::ops::Range<usize>),
}

/// Returns the path of the value at a position in a JSON text.
fn path(json: &[u8], place: usize) -> String {
    let mut open = Vec::new();
    let mut at = 0;
    // The range of the last string, which is a key if a colon follows.
    let mut string = 0..0;
    while at < place {
        match (json[at], open.last_mut()) {
            (b'"', _) => {
                let end = end_of_string(json, at);
                string = at..end;
                at = end;
                continue;
            }
            (b':', Some(Open::Object(key))) => *key = string.clone(),
            (b',', Some(Open::Array(index))) => *index += 1,
            (b'[', _) => open.push(Open::Array(0)),
            (b'{', _) => open.push(Open::Object(0..0)),
            (b']' | b'}', _) => drop(open.pop()),
            _ => {}
        }
        at += 1;
    }
    let mut path = String::new();
    for step in open {
        match step {
            Open::Array(index) => path.push_str(&format!("[{index}]")),
            Open::Object(key) => {
                let name: String = serde_json::from_slice(&json[key]).unwrap_or_default();
                path.extend([if path.is_empty() { "" } else { "." }, &quoted(&name)]);
            }
        }
    }
    path
}

/// Parses the arguments of a call, as a model wrote them, into an object. Integers keep their digits up to 128 bits.
pub fn arguments(text: &str) -> Option<Map<String, Value>> {
    match chat::parse_json(text).ok().or_else(|| serde_json::from_str(text).ok())? {
        Value::Object(map) => Some(map),
        _ => None,
    }
}

/// Serialises an object that [`arguments`] has read.
pub fn write_arguments<S: Serializer>(map: &Map<String, Value>, serializer: S) -> Result<S::Ok, S::Error> {
    let mut out = serializer.serialize_map(Some(map.len()))?;
    map.iter().try_for_each(|(name, value)| out.serialize_entry(name, &Exact(value)))?;
    out.end()
}

/// Serialises a value that [`arguments`] has read.
pub fn write_input<S: Serializer>(value: &Value, serializer: S) -> Result<S::Ok, S::Error> {
    Exact(value).serialize(serializer)
}

struct Exact<'a>(&'a Value);

impl Serialize for Exact<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match (long_integer(self.0), self.0) {
            (Some(digits), _) => match (digits.parse::<i128>(), digits.parse::<u128>()) {
                (Ok(number), _) => serializer.serialize_i128(number),
                (_, Ok(number)) => serializer.serialize_u128(number),
                _ => Err(S::Error::custom("a number has more than 128 bits")),
            },
            (_, Value::Array(items)) => serializer.collect_seq(items.iter().map(Exact)),
            (_, Value::Object(map)) => write_arguments(map, serializer),
            (_, other) => other.serialize(serializer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path_of(json: &str) -> Option<String> {
        rounded(json.as_bytes()).map(|(path, _)| path)
    }

    #[test]
    fn a_whole_number_that_would_be_rounded_is_named_by_its_path() {
        let long = "18446744073709551616";
        for (json, path) in [
            ("{\"a\": N}", "a"),
            ("{\"a\": {\"x, \\\"y\": [1, {\"b\": 2}, [\"[,{\", N]], \"c\": 3}}", "a.x, \\\"y[2][1]"),
            ("{\"tools\": [{}, {\"function\": {\"parameters\": {\"const\": N}}}]}", "tools[1].function.parameters.const"),
            ("[[], [1, 2, {\"k\": [N]}]]", "[1][2].k[0]"),
        ] {
            assert_eq!(path_of(&json.replace('N', long)).as_deref(), Some(path), "{json}");
        }
        let (_, problem) = rounded(b"{\"a\": -9223372036854775809}").unwrap();
        assert_eq!(
            problem,
            "is -9223372036854775809, which would be rounded: whole numbers are exact from -9223372036854775808 to 18446744073709551615"
        );
    }

    #[test]
    fn the_arguments_of_a_call_keep_their_digits() {
        for text in [
            r#"{"a":1000000000000000000000000000001,"b":[-18446744073709551616,{"c":340282366920938463463374607431768211455}],"d":1.5}"#,
            r#"{"\u0000integer":"x","a":{"\u0000integer":7},"b":null}"#,
            "{}",
        ] {
            let value = Value::Object(arguments(text).unwrap());
            let mut out = Vec::new();
            write_input(&value, &mut serde_json::Serializer::new(&mut out)).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), text);
        }
        assert!(arguments("[1]").is_none() && arguments("{\"a\": 1").is_none());
        assert!(arguments(&format!("{{\"a\": {}}}", "9".repeat(60))).is_some(), "a call that cannot be exact is still a call");
    }

    #[test]
    fn numbers_that_keep_their_digits_pass() {
        let passes = [
            "18446744073709551615",
            "-9223372036854775808",
            "1000000000000000000000000000000",
            "-100000000000000000000",
            "0.1",
            "1e300",
            "12345678901234567890.5",
        ];
        for number in passes {
            assert_eq!(path_of(&format!("{{\"a\": [{number}]}}")), None, "{number}");
        }
        for text in ["{\"a\": \"18446744073709551616\"}", "{\"18446744073709551616\": 1}"] {
            assert_eq!(path_of(text), None);
        }
        for number in ["1000000000000000000000000000001", "-100000000000000000001", "18446744073709551617"] {
            assert_eq!(path_of(&format!("{{\"a\": {number}}}")).as_deref(), Some("a"), "{number}");
        }
    }
}
