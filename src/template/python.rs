//! Python methods of values that templates call.

use minijinja::{Error, State, Value};

pub(super) fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}

/// As Python has it: None is not iterable, an undefined value is.
pub(super) fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}
