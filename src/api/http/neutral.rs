//! Neutral values: values with which an unsupported field asks for nothing, so that a request with the field is accepted.

use serde_json::Value;

/// The neutral values of a field. Null, `[]` and `{}` are always neutral.
#[derive(Clone, Copy, Debug)]
pub enum Neutral {
    /// No value is neutral.
    Nothing,
    /// Every value is neutral, because the field has a meaning only together with another one.
    Anything,
    False,
    True,
    Empty,
    Numbers(&'static [f64]),
    Texts(&'static [&'static str]),
    /// The list `["text"]`.
    TextOnly,
    /// An object whose values are all null.
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
