//! Evaluates `value.name` and `value[key]` in the sandbox. Values have the attributes that they have in Python, except the methods that
//! would change them.

use super::call_args::defined;
use super::index::element;
use crate::failure::{Kind, Outcome};
use crate::value::{Method, Number, Value};

const TEXT: [&str; 47] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "encode",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "maketrans",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "translate",
    "upper",
    "zfill",
];
const MARKUP: [&str; 2] = ["striptags", "unescape"];
const LIST: [&str; 3] = ["copy", "count", "index"];
const LIST_UNSAFE: [&str; 8] = ["append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"];
const SEQUENCE: [&str; 2] = ["count", "index"];
const DICT: [&str; 6] = ["copy", "fromkeys", "get", "items", "keys", "values"];
const DICT_UNSAFE: [&str; 5] = ["clear", "pop", "popitem", "setdefault", "update"];
const INT: [&str; 4] = ["as_integer_ratio", "bit_count", "bit_length", "conjugate"];
const FLOAT: [&str; 3] = ["as_integer_ratio", "conjugate", "is_integer"];

/// The method `name` of a value, and whether the sandbox permits calling it.
fn method_of(value: &Value, name: &str) -> Option<(&'static str, bool)> {
    let among = |names: &'static [&'static str], safe: bool| names.iter().find(|known| **known == name).map(|known| (*known, safe));
    match value {
        Value::Text(text) => among(&TEXT, true).or_else(|| among(&MARKUP, true).filter(|_| text.safe)),
        Value::List(_) => among(&LIST, true).or_else(|| among(&LIST_UNSAFE, false)),
        Value::Tuple(_) | Value::Range(_) => among(&SEQUENCE, true),
        Value::Dict(_) => among(&DICT, true).or_else(|| among(&DICT_UNSAFE, false)),
        Value::Function("dict") => among(&["fromkeys"], true),
        Value::Bool(_) | Value::Int(_) | Value::Big(_) => among(&INT, true),
        Value::Float(_) => among(&FLOAT, true),
        Value::Object(object) => among(object.methods(), true),
        _ => None,
    }
}

/// An attribute that is not a method.
fn data(value: &Value, name: &str) -> Option<Value> {
    let whole = |value: &Value| Number::of(value).and_then(|number| number.big()).map(Value::big);
    match (value, name) {
        (Value::Object(object), _) => object.attribute(name),
        (Value::Tuple(items), "grouper") if items.is_group => items.items.first().cloned(),
        (Value::Tuple(items), "list") if items.is_group => items.items.get(1).cloned(),
        (Value::Range(range), "start") => Some(Value::Int(range.start)),
        (Value::Range(range), "stop") => Some(Value::Int(range.stop)),
        (Value::Range(range), "step") => Some(Value::Int(range.step)),
        (Value::Bool(_) | Value::Int(_) | Value::Big(_), "real" | "numerator") => whole(value),
        (Value::Bool(_) | Value::Int(_) | Value::Big(_), "imag") => Some(Value::Int(0)),
        (Value::Bool(_) | Value::Int(_) | Value::Big(_), "denominator") => Some(Value::Int(1)),
        (Value::Float(number), "real") => Some(Value::Float(*number)),
        (Value::Float(_), "imag") => Some(Value::Float(0.0)),
        _ => None,
    }
}

/// A method or another attribute, without the keys of a dict.
fn member(value: &Value, name: &str) -> Option<Value> {
    match method_of(value, name) {
        Some((name, true)) => Some(Value::Method(Method { receiver: value.clone(), name }.into())),
        Some((name, false)) => {
            let of = value.type_name();
            Some(Value::undefined_because(format!("`{name}` would change a {of}, which the sandbox does not permit")))
        }
        None => data(value, name),
    }
}

/// `value.name`: an attribute, or else a dict's value for that key.
pub(crate) fn attribute(value: &Value, name: &str) -> Outcome<Value> {
    defined(value)?;
    if let Some(found) = member(value, name) {
        return Ok(found);
    }
    if let Value::Dict(dict) = value
        && let Some(found) = dict.get_text(name)
    {
        return Ok(found.clone());
    }
    Ok(Value::undefined_member(value, Value::text(name)?))
}

/// Like `attribute`, without the keys of a dict. This is the filter `attr`.
pub(crate) fn attribute_only(value: &Value, name: &str) -> Outcome<Value> {
    match member(value, name) {
        Some(found) => Ok(found),
        None => Ok(Value::undefined_member(value, Value::text(name)?)),
    }
}

/// `value[key]`: an item, or else an attribute.
pub(crate) fn item(value: &Value, key: &Value) -> Outcome<Value> {
    defined(value)?;
    match element(value, key) {
        Ok(Some(found)) => return Ok(found),
        Err(fault) if fault.kind() != Kind::Type => return Err(fault),
        _ => {}
    }
    if let Some(found) = key.as_text().and_then(|name| member(value, name)) {
        return Ok(found);
    }
    Ok(Value::undefined_member(value, key.clone()))
}
