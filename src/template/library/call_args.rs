//! [`CallArgs`]: the arguments of a call, which are bound to the names of parameters.

use std::sync::Arc;

use num_traits::ToPrimitive;

use crate::failure::{Fault, Kind, Outcome, other, type_fault};
use crate::value::{Number, Value};

#[derive(Default)]
pub(crate) struct CallArgs {
    pub positional: Vec<Value>,
    pub named: Vec<(Arc<str>, Value)>,
}

impl CallArgs {
    pub fn of(positional: Vec<Value>) -> Self {
        Self { positional, named: Vec::new() }
    }

    /// The value of each parameter. The first `required` ones must be given. A parameter with an empty name cannot be given by keyword.
    pub fn bind<const N: usize>(self, what: &str, names: [&str; N], required: usize) -> Outcome<[Option<Value>; N]> {
        let given = self.positional.len();
        if given > N {
            return Err(type_fault(format!("`{what}` got {given} arguments, expected at most {N}")));
        }
        let mut bound = std::array::from_fn(|_| None);
        for (place, value) in bound.iter_mut().zip(self.positional) {
            *place = Some(value);
        }
        for (name, value) in self.named {
            match names.iter().position(|known| !known.is_empty() && **known == *name) {
                None => return Err(type_fault(format!("`{what}` has no argument `{name}`"))),
                Some(at) if bound[at].is_some() => return Err(type_fault(format!("`{what}` got two values for `{name}`"))),
                Some(at) => bound[at] = Some(value),
            }
        }
        match bound.iter().take(required).position(Option::is_none) {
            Some(at) if names[at].is_empty() => Err(type_fault(format!("`{what}` got {at} arguments, expected at least {required}"))),
            Some(at) => Err(type_fault(format!("`{what}` needs a value for `{}`", names[at]))),
            None => Ok(bound),
        }
    }

    /// Fails if there are any arguments.
    pub fn none(self, what: &str) -> Outcome<()> {
        self.bind::<0>(what, [], 0).map(|_| ())
    }
}

/// An argument as a string.
pub(crate) fn text<'a>(what: &str, value: &'a Value) -> Outcome<&'a str> {
    value.as_text().ok_or_else(|| type_fault(format!("`{what}` needs a string, not {}", value.type_name())))
}

/// An argument as an integer. Fails if it does not fit in an `i64`.
pub(crate) fn int(what: &str, value: &Value) -> Outcome<i64> {
    match (value, Number::of(value)) {
        (Value::Undefined(why), _) => Err(type_fault(format!("`{what}` needs an integer: {}", why.fault().text()))),
        (_, Some(Number::Int(number))) => Ok(number),
        (_, Some(Number::Big(number))) if number.to_i64().is_none() => Err(other(format!("`{what}`: an integer is too large"))),
        _ => Err(type_fault(format!("`{what}` needs an integer, not {}", value.type_name()))),
    }
}

/// Like [`int`], with a default for a missing argument.
pub(crate) fn int_or(what: &str, value: Option<&Value>, default: i64) -> Outcome<i64> {
    value.map_or(Ok(default), |value| int(what, value))
}

/// Whether an argument is true. A missing argument is false.
pub(crate) fn flag(value: Option<&Value>) -> bool {
    value.is_some_and(Value::truth)
}

/// An argument, unless it is missing or `none`.
pub(crate) fn some(value: Option<Value>) -> Option<Value> {
    value.filter(|value| !matches!(value, Value::None))
}

/// Fails if `value` is undefined.
pub(crate) fn defined(value: &Value) -> Outcome<()> {
    match value {
        Value::Undefined(why) => Err(why.fault()),
        _ => Ok(()),
    }
}

/// The error for an index or a key that does not exist.
pub(crate) fn lookup_fault(text: impl Into<std::borrow::Cow<'static, str>>) -> Fault {
    Fault::new(Kind::Lookup, text)
}
