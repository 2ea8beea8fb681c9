//! The values with which a field that is not supported asks for nothing, so that a request with it is accepted.

use serde_json::Value;

/// Null, `[]` and `{}` always ask for nothing.
#[derive(Clone, Copy, Debug)]
pub enum Neutral {
    /// No value.
    Nothing,
    /// Any value: the field means something only beside another one.
    Anything,
    False,
    True,
    Empty,
    Numbers(&'static [f64]),
    Texts(&'static [&'static str]),
    /// `["text"]`
    TextOnly,
    /// An object of nulls.
    Nulls,
}

use Neutral::*;

impl Neutral {
    pub fn is(self, value: &Value) -> bool {
        match self {
            Nothing => value.is_null(),
            Anything => true,
            False => value == &Value::Bool(false),
            True => value == &Value::Bool(true),
            Empty => value.as_array().is_some_and(Vec::is_empty),
            Numbers(numbers) => value.as_f64().is_some_and(|number| numbers.contains(&number)),
            Texts(texts) => value.as_str().is_some_and(|text| texts.contains(&text)),
            TextOnly => value == &serde_json::json!(["text"]),
            Nulls => value.as_object().is_some_and(|map| map.values().all(Value::is_null)),
        }
    }
}
