//! Jinja's tests: `value is name`.

use super::call_args::CallArgs;
use super::cases::{is_lower, is_upper};
use super::filters::has_filter;
use super::operators::{binary, compare};
use super::text_filters::soft;
use crate::failure::{Outcome, other};
use crate::syntax::ast::{Comparison, Operator};
use crate::value::{Value, equal, hashable, same};

const TESTS: [&str; 39] = [
    "odd",
    "even",
    "divisibleby",
    "defined",
    "undefined",
    "filter",
    "test",
    "none",
    "boolean",
    "false",
    "true",
    "integer",
    "float",
    "lower",
    "upper",
    "string",
    "mapping",
    "number",
    "sequence",
    "iterable",
    "callable",
    "sameas",
    "escaped",
    "in",
    "==",
    "eq",
    "equalto",
    "!=",
    "ne",
    ">",
    "gt",
    "greaterthan",
    "ge",
    ">=",
    "<",
    "lt",
    "lessthan",
    "<=",
    "le",
];

pub(crate) fn has_test(name: &str) -> bool {
    TESTS.contains(&name)
}

pub(crate) fn test(name: &str, value: &Value, args: CallArgs) -> Outcome<bool> {
    if let Some(comparison) = comparison(name) {
        let [right] = args.bind(name, [if name == "in" { "seq" } else { "" }], 1)?;
        return compare(comparison, value, &right.unwrap_or(Value::None));
    }
    match name {
        "divisibleby" => {
            let [by] = args.bind(name, ["num"], 1)?;
            return equal(&binary(Operator::Mod, value, &by.unwrap_or(Value::None))?, &Value::Int(0));
        }
        "sameas" => {
            let [right] = args.bind(name, ["other"], 1)?;
            return same(value, &right.unwrap_or(Value::None));
        }
        _ => args.none(name)?,
    }
    let rest = |wanted: i64| equal(&binary(Operator::Mod, value, &Value::Int(2))?, &Value::Int(wanted));
    Ok(match name {
        "odd" => rest(1)?,
        "even" => rest(0)?,
        "defined" => !value.is_undefined(),
        "undefined" => value.is_undefined(),
        "filter" => hashable(value).map(|()| value.as_text().is_some_and(has_filter))?,
        "test" => hashable(value).map(|()| value.as_text().is_some_and(has_test))?,
        "none" => matches!(value, Value::None),
        "boolean" => matches!(value, Value::Bool(_)),
        "false" => matches!(value, Value::Bool(false)),
        "true" => matches!(value, Value::Bool(true)),
        "integer" => matches!(value, Value::Int(_) | Value::Big(_)),
        "float" => matches!(value, Value::Float(_)),
        "lower" => is_lower(&soft(value)?.text),
        "upper" => is_upper(&soft(value)?.text),
        "string" => matches!(value, Value::Text(_)),
        "mapping" => matches!(value, Value::Dict(_)),
        "number" => matches!(value, Value::Bool(_) | Value::Int(_) | Value::Big(_) | Value::Float(_)),
        "sequence" => {
            matches!(value, Value::Undefined(_) | Value::Text(_) | Value::List(_) | Value::Tuple(_) | Value::Dict(_) | Value::Range(_))
        }
        "iterable" => match value {
            Value::Object(object) => object.length().is_some(),
            Value::None | Value::Bool(_) | Value::Int(_) | Value::Big(_) | Value::Float(_) | Value::Function(_) | Value::Method(_) => false,
            _ => true,
        },
        "callable" => value.is_callable(),
        "escaped" => value.is_safe(),
        _ => return Err(other(format!("there is no test `{name}`"))),
    })
}

fn comparison(name: &str) -> Option<Comparison> {
    Some(match name {
        "==" | "eq" | "equalto" => Comparison::Eq,
        "!=" | "ne" => Comparison::Ne,
        ">" | "gt" | "greaterthan" => Comparison::Gt,
        ">=" | "ge" => Comparison::Ge,
        "<" | "lt" | "lessthan" => Comparison::Lt,
        "<=" | "le" => Comparison::Le,
        "in" => Comparison::In,
        _ => return None,
    })
}
