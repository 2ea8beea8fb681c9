//! Python's methods and tests of values that templates use.

use minijinja::{Error, State, Value};

use crate::budget::{charged, checked_size, scan};
use crate::builtins::check_product;

/// Calls a Python method (`strip`, `items`) that minijinja does not have, and charges its result.
pub(super) fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if !matches!(name, "get" | "keys" | "values" | "items") {
        let all: Vec<Value> = std::iter::once(value).chain(args).cloned().collect();
        all.iter().try_for_each(|value| checked_size(value).map(|_| ()))?;
        check_product(name, &all)?;
        return charged(minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)?);
    }
    scan(value)?;
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}

/// Whether a value is iterable as in Jinja: none is not, but an undefined value is.
pub(super) fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}
