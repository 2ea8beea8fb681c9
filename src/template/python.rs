//! Python methods of values that templates call.

use minijinja::{Error, State, Value};

use super::guarded::product;
use super::limits::{bounded, made};

pub(super) fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if !matches!(name, "get" | "keys" | "values" | "items") {
        let all: Vec<Value> = std::iter::once(value).chain(args).cloned().collect();
        all.iter().try_for_each(|value| bounded(value).map(|_| ()))?;
        product(name, &all)?;
        return made(minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)?);
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}

/// As Python has it: None is not iterable, an undefined value is.
pub(super) fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}
