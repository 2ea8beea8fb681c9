//! Typed reading of a JSON object's fields. An error for a wrong field has the field's path as its `param`. A null field counts as absent.

use std::ops::RangeInclusive;

use serde_json::{Map, Number, Value};

use super::error::{ApiError, Kind, quoted};

/// 2^53, the bound up to which a float represents every integer exactly.
const MAX_EXACT: f64 = 9007199254740992.0;

/// A JSON object and its path in the body (empty for the root).
pub struct Fields<'a> {
    map: &'a Map<String, Value>,
    path: String,
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// An error such as "`path` must be a string, not a number".
pub fn wrong_type(path: &str, expected: &str, value: &Value) -> ApiError {
    ApiError::field(path, format!("`{path}` must be {expected}, not {}", kind_of(value)))
}

impl<'a> Fields<'a> {
    pub fn root(value: &'a Value) -> Result<Self, ApiError> {
        let map = value
            .as_object()
            .ok_or_else(|| ApiError::new(Kind::MalformedBody, format!("the body must be a JSON object, not {}", kind_of(value))))?;
        Ok(Self { map, path: String::new() })
    }

    pub fn at(value: &'a Value, path: &str) -> Result<Self, ApiError> {
        let map = value.as_object().ok_or_else(|| wrong_type(path, "an object", value))?;
        Ok(Self { map, path: path.into() })
    }

    /// Returns the fields of an object inside this one, at `path` in the body.
    pub fn within(&self, value: &'a Value, path: &str) -> Result<Self, ApiError> {
        Self::at(value, path)
    }

    /// The path of a field.
    pub fn path(&self, field: &str) -> String {
        if self.path.is_empty() { field.into() } else { format!("{}.{field}", self.path) }
    }

    /// The value of a field. `None` if it is absent or null.
    pub fn get(&self, field: &str) -> Option<&'a Value> {
        self.map.get(field).filter(|value| !value.is_null())
    }

    /// Whether the field is present, even as null.
    pub fn has(&self, field: &str) -> bool {
        self.map.contains_key(field)
    }

    pub fn invalid(&self, field: &str, problem: impl std::fmt::Display) -> ApiError {
        let path = self.path(field);
        ApiError::field(&path, format!("`{path}` {problem}"))
    }

    fn typed<T>(&self, field: &str, expected: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>, ApiError> {
        self.get(field).map(|value| read(value).ok_or_else(|| wrong_type(&self.path(field), expected, value))).transpose()
    }

    pub fn string(&self, field: &str) -> Result<Option<&'a str>, ApiError> {
        self.typed(field, "a string", Value::as_str)
    }

    pub fn bool(&self, field: &str) -> Result<Option<bool>, ApiError> {
        self.typed(field, "a boolean", Value::as_bool)
    }

    pub fn array(&self, field: &str) -> Result<Option<&'a [Value]>, ApiError> {
        self.typed(field, "an array", |value| value.as_array().map(Vec::as_slice))
    }

    pub fn object(&self, field: &str) -> Result<Option<&'a Map<String, Value>>, ApiError> {
        self.typed(field, "an object", Value::as_object)
    }

    pub fn number(&self, field: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, ApiError> {
        let Some(value) = self.typed(field, "a number", Value::as_f64)? else { return Ok(None) };
        if !range.contains(&value) {
            return Err(self.invalid(field, format_args!("must be from {} to {}, not {value}", range.start(), range.end())));
        }
        Ok(Some(value))
    }

    pub fn integer(&self, field: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let Some(number) = value.as_number() else { return Err(wrong_type(&self.path(field), "an integer", value)) };
        match whole(number).filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => Err(self.invalid(field, format_args!("must be an integer from {} to {}, not {number}", range.start(), range.end()))),
        }
    }

    /// A 32-bit integer of at least `least`.
    pub fn count(&self, field: &str, least: u32) -> Result<Option<u32>, ApiError> {
        Ok(self.integer(field, i64::from(least)..=i64::from(u32::MAX))?.map(|value| value as u32))
    }

    /// Reads an array of token ids. `serving` checks later that the vocabulary has them.
    pub fn ids(&self, field: &str) -> Result<Option<Vec<u32>>, ApiError> {
        let Some(values) = self.array(field)? else { return Ok(None) };
        token_ids(values).map(Some).map_err(|problem| self.invalid(field, problem))
    }

    /// Refuses a field whose value takes more than `most` bytes as JSON.
    pub fn check_size(&self, field: &str, most: usize) -> Result<(), ApiError> {
        let Some(value) = self.get(field) else { return Ok(()) };
        // A list of millions of strings would take long to write, so the sink stops at the bound.
        match serde_json::to_writer(Sink(most), value) {
            Ok(()) => Ok(()),
            Err(_) => Err(self.invalid(field, format_args!("takes more than {most} bytes as JSON: shorten it"))),
        }
    }

    pub fn required<T>(&self, field: &str, value: Option<T>) -> Result<T, ApiError> {
        value.ok_or_else(|| self.invalid(field, "is required"))
    }
}

/// A writer that counts down the remaining bytes and fails at zero.
struct Sink(usize);

impl std::io::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or(std::io::ErrorKind::FileTooLarge)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Returns the integer that a number equals. In JSON Schema, 5.0 is an integer.
fn whole(number: &Number) -> Option<i64> {
    let of_float = |value: f64| (value.fract() == 0.0 && value.abs() <= MAX_EXACT).then_some(value as i64);
    number.as_i64().or_else(|| number.as_f64().and_then(of_float))
}

/// Formats a value for an error: a text between backticks, anything else as JSON.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("the text `{}`", quoted(text)),
        Value::Array(_) | Value::Object(_) => kind_of(value).to_owned(),
        other => other.to_string(),
    }
}

/// Reads token ids, or describes the first invalid one.
pub fn token_ids(values: &[Value]) -> Result<Vec<u32>, String> {
    let id = |value: &Value| value.as_number().and_then(whole).and_then(|id| u32::try_from(id).ok());
    values.iter().map(|value| id(value).ok_or_else(|| format!("holds {}, which is not a token id", shown(value)))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn errors_name_the_path_of_the_field() {
        let value = json!({"a": {"b": "x", "n": 3.5, "big": 18446744073709551615u64, "none": null}});
        let root = Fields::root(&value).unwrap();
        let inner = Fields::at(root.get("a").unwrap(), "a").unwrap();
        let error = inner.number("b", 0.0..=2.0).unwrap_err();
        assert_eq!((error.param.as_deref(), error.message.as_str()), (Some("a.b"), "`a.b` must be a number, not a string"));
        assert_eq!(inner.integer("n", 0..=5).unwrap_err().param.as_deref(), Some("a.n"));
        assert_eq!(inner.integer("big", 0..=i64::MAX).unwrap_err().param.as_deref(), Some("a.big"));
        assert_eq!(inner.bool("none").unwrap(), None);
        assert!(inner.has("none") && !inner.has("nothing"));
        assert_eq!(root.required("model", root.string("model").unwrap()).unwrap_err().message, "`model` is required");
    }

    #[test]
    fn a_field_that_is_too_large_is_refused() {
        let value = json!({"a": [[0], "xy"]});
        let root = Fields::root(&value).unwrap();
        assert!(root.check_size("a", 10).is_ok() && root.check_size("none", 0).is_ok());
        assert_eq!(root.check_size("a", 9).unwrap_err().message, "`a` takes more than 9 bytes as JSON: shorten it");
    }

    #[test]
    fn values_out_of_range_are_refused() {
        let value = json!({"t": 2.5, "n": -1, "ids": [1, -1], "ok": [0, 4294967295u32]});
        let root = Fields::root(&value).unwrap();
        assert!(root.number("t", 0.0..=2.0).is_err());
        assert!(root.count("n", 0).is_err());
        assert!(root.ids("ids").unwrap_err().message.contains("-1"));
        assert_eq!(root.ids("ok").unwrap(), Some(vec![0, u32::MAX]));
        let value = json!({"whole": 5.0, "half": 5.5, "huge": 1e300, "ids": [3.0], "bad": [3.5]});
        let root = Fields::root(&value).unwrap();
        assert_eq!((root.count("whole", 0).unwrap(), root.ids("ids").unwrap()), (Some(5), Some(vec![3])));
        assert!(root.count("half", 0).is_err() && root.integer("huge", 0..=i64::MAX).is_err() && root.ids("bad").is_err());
        assert!(Fields::root(&json!([1])).is_err());
    }
}
