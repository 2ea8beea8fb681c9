//! [`RenderInput`]: a template's variables.

use std::sync::Arc;

use num_bigint::BigInt;
use serde_json::{Map, Value};

use crate::integers::as_integer;

/// Names of variables and functions that the context of every template defines.
pub(crate) const RESERVED: [&str; 9] =
    ["messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "raise_exception", "strftime_now", "namespace", "range"];
/// The prefix of names that are reserved for the sandbox.
const PREFIX: &str = "pen__";

/// Whether the context itself defines a name. No variable of a request may have such a name.
pub fn is_reserved(name: &str) -> bool {
    RESERVED.contains(&name) || name.starts_with(PREFIX)
}

/// The variables that a template is rendered with.
#[derive(Clone, Debug, Default)]
pub struct RenderInput {
    /// A JSON array of messages.
    pub messages: Value,
    pub tools: Option<Value>,
    pub add_generation_prompt: bool,
    /// Further variables, whose names must not be reserved.
    pub kwargs: Map<String, Value>,
}

/// JSON to be sent to the thread that renders. Values there share its strings.
pub(crate) enum Input {
    None,
    Bool(bool),
    Int(i64),
    /// An integer that does not fit in a signed 64-bit integer.
    Big(BigInt),
    Float(f64),
    Text(Arc<str>),
    List(Vec<Input>),
    Dict(Vec<(Arc<str>, Input)>),
}

impl Input {
    pub fn of(json: &Value) -> Self {
        match json {
            Value::Null => Self::None,
            Value::Bool(on) => Self::Bool(*on),
            Value::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(number), _) => Self::Int(number),
                (None, Some(number)) => Self::Big(number.into()),
                (None, None) => Self::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            Value::String(text) => Self::Text(text.as_str().into()),
            Value::Array(items) => Self::List(items.iter().map(Self::of).collect()),
            Value::Object(map) => match as_integer(json) {
                Some(number) => Self::Big(number),
                None => Self::Dict(map.iter().map(|(key, item)| (key.as_str().into(), Self::of(item))).collect()),
            },
        }
    }
}
