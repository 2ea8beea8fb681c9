//! Strict JSON parsing: bounded depth, bounded memory, and no duplicate keys.

use std::cell::{Cell, RefCell};
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::error::{ApiError, Kind, quoted};
use super::integers::rounded;

/// The memory that an array or object takes besides its items: a table, a buffer, and the copies that a request makes of it [bytes].
const CONTAINER: usize = 512;
/// The memory that a value takes in its array or object, whose capacity doubles as it grows [bytes].
const VALUE: usize = 2 * size_of::<Value>();
/// The memory that a field takes besides its value and the text of its key: the key, a hash and the index's slot [bytes].
const FIELD: usize = 64;
/// The steps in which the weight of a tree is charged [bytes].
const STEP: usize = 1 << 18;

/// Weighs the values of a body during parsing, so that a tree which is too large is never built.
pub struct Meter<'a> {
    /// The largest weight of a tree [bytes].
    max: usize,
    weight: Cell<usize>,
    charged: Cell<usize>,
    charge: RefCell<&'a mut dyn FnMut(usize) -> Result<(), ApiError>>,
    fault: RefCell<Option<ApiError>>,
}

impl<'a> Meter<'a> {
    /// Creates a meter that calls `charge` with the rounded-up weight whenever it grows.
    pub fn new(max: usize, charge: &'a mut dyn FnMut(usize) -> Result<(), ApiError>) -> Self {
        Self { max, weight: Cell::new(0), charged: Cell::new(0), charge: RefCell::new(charge), fault: RefCell::new(None) }
    }

    /// The weight of everything parsed so far, which is at least its size in memory [bytes].
    pub fn weight(&self) -> usize {
        self.weight.get()
    }

    fn add<E: Error>(&self, bytes: usize) -> Result<(), E> {
        let weight = self.weight.get() + bytes;
        self.weight.set(weight);
        let result = if weight > self.max {
            let message = format!("the body's JSON has too many values: parsed, they take more than {} bytes", self.max);
            Err(ApiError::new(Kind::TooLarge, message))
        } else if weight > self.charged.get() {
            self.charged.set(weight.next_multiple_of(STEP));
            (self.charge.borrow_mut())(self.charged.get())
        } else {
            return Ok(());
        };
        result.map_err(|error| {
            *self.fault.borrow_mut() = Some(error);
            E::custom("")
        })
    }
}

/// Parses one UTF-8 value. Refuses 128 or more levels (serde_json's own bound), duplicate keys, and integers that would be rounded.
pub fn parse(body: &[u8], meter: &Meter) -> Result<Value, ApiError> {
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let value = Strict(meter).deserialize(&mut deserializer).and_then(|value| deserializer.end().map(|()| value));
    let value = value.map_err(|error| {
        let fault = meter.fault.borrow_mut().take();
        fault.unwrap_or_else(|| ApiError::new(Kind::MalformedBody, format!("the body is not valid JSON: {}", quoted(&error.to_string()))))
    })?;
    match rounded(body) {
        Some((path, problem)) => Err(ApiError::field(&path, format!("`{path}` {problem}"))),
        None => Ok(value),
    }
}

#[derive(Clone, Copy)]
struct Strict<'a, 'b>(&'a Meter<'b>);

impl<'de> DeserializeSeed<'de> for Strict<'_, '_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.0.add(VALUE)?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_, '_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("a number is not finite"))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        self.0.add(value.len())?;
        Ok(value.into())
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        self.0.add(value.len())?;
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        self.0.add(CONTAINER)?;
        let mut items = Vec::new();
        while let Some(item) = access.next_element_seed(self)? {
            items.push(item);
        }
        items.shrink_to_fit();
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        self.0.add(CONTAINER)?;
        let mut map = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            if map.contains_key(&key) {
                return Err(A::Error::custom(format_args!("the key `{}` appears twice", quoted(&key))));
            }
            self.0.add(FIELD + key.len())?;
            map.insert(key, access.next_value_seed(self)?);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: usize = 1 << 20;

    fn parsed(body: &[u8], max: usize) -> Result<Value, ApiError> {
        parse(body, &Meter::new(max, &mut |_| Ok(())))
    }

    #[test]
    fn bodies_that_are_not_strict_json_are_refused() {
        let deep = format!("{}1{}", "[".repeat(128), "]".repeat(128));
        let cases: [&[u8]; 9] = [
            b"",
            b"{",
            b"{} x",
            b"{\"a\": NaN}",
            b"{\"a\": 1e999}",
            b"{\"a\": \"\\ud800\"}",
            b"{\"a\": \"\xff\"}",
            br#"{"a": 1, "a": 2}"#,
            deep.as_bytes(),
        ];
        for body in cases {
            let error = parsed(body, ROOM).unwrap_err();
            assert_eq!(error.kind, Kind::MalformedBody, "{}", String::from_utf8_lossy(body));
        }
        assert!(parsed(br#"{"a": {"b": [1, 1]}, "c": {"b": 1}}"#, ROOM).is_ok());
        assert!(parsed(br#"[{"a": 1}, {"a": {"x": 1, "x": 1}}]"#, ROOM).unwrap_err().message.contains("`x` appears twice"));
    }

    #[test]
    fn the_weight_of_a_tree_is_bounded_whatever_its_values_are() {
        for item in ["0", "[]", "[0]", "{}", "{\"a\":{}}", "\"\"", "\"0123456789\"", "null", "[[[[]]]]"] {
            let body = format!("[{}{item}]", format!("{item},").repeat(20_000));
            let error = parsed(body.as_bytes(), ROOM).unwrap_err();
            assert_eq!((error.kind, error.message.contains("more than 1048576 bytes")), (Kind::TooLarge, true), "{item}");
        }
        let text = format!("\"{}\"", "x".repeat(ROOM - 1000));
        assert!(parsed(text.as_bytes(), ROOM).is_ok(), "a text weighs little more than itself");
    }

    #[test]
    fn the_weight_is_charged_as_it_grows_and_a_refusal_ends_the_parsing() {
        let mut charges = Vec::new();
        let mut charge = |bytes| {
            charges.push(bytes);
            if charges.len() < 3 { Ok(()) } else { Err(ApiError::new(Kind::Overloaded, "full")) }
        };
        let meter = Meter::new(usize::MAX, &mut charge);
        let error = parse(format!("[{}0]", "0,".repeat(1 << 20)).as_bytes(), &meter).unwrap_err();
        assert_eq!((error.kind, meter.weight() < 3 * STEP), (Kind::Overloaded, true));
        assert_eq!(charges, [STEP, 2 * STEP, 3 * STEP]);
    }
}
