//! Compares and hashes values as in Python, where `1`, `1.0` and `True` are equal.

use std::hash::{Hash, Hasher};
use std::rc::Rc;

use super::integers::Number;
use super::iteration::drain;
use super::{Dict, Items, Object, Value, ViewKind};
use crate::budget::{walk_items, walk_over};
use crate::failure::{Outcome, type_fault};

/// Whether two values are equal. Charges the walk over the smaller one.
pub(crate) fn equal(a: &Value, b: &Value) -> Outcome<bool> {
    walk_over(a.measure().bytes.min(b.measure().bytes))?;
    Ok(a == b)
}

/// Whether two values are the same object, as far as Python's implementation shows it.
pub(crate) fn same(a: &Value, b: &Value) -> Outcome<bool> {
    Ok(match (a, b) {
        (Value::List(x), Value::List(y)) | (Value::Tuple(x), Value::Tuple(y)) => {
            Rc::ptr_eq(x, y) || (x.items.is_empty() && y.items.is_empty() && matches!(a, Value::Tuple(_)))
        }
        (Value::Dict(x), Value::Dict(y)) => Rc::ptr_eq(x, y),
        (Value::Undefined(x), Value::Undefined(y)) => Rc::ptr_eq(x, y),
        _ => a.type_name() == b.type_name() && equal(a, b)?,
    })
}

/// Evaluates `item in container`.
pub(crate) fn contains(container: &Value, item: &Value) -> Outcome<bool> {
    match container {
        Value::Text(text) => match item.as_text() {
            Some(part) => {
                walk_over(text.text.len() as u64)?;
                Ok(text.text.contains(part))
            }
            None => Err(type_fault(format!("`in` on a string needs a string before it, not {}", item.type_name()))),
        },
        Value::Dict(dict) => Ok(dict.get(item)?.is_some()),
        Value::View(view) if view.kind == ViewKind::Keys => Ok(view.dict.get(item)?.is_some()),
        Value::Range(range) => Ok(match Number::exact(item) {
            Some(number) => range.position(&number).is_some(),
            None => false,
        }),
        Value::List(items) | Value::Tuple(items) => holds(&items.items, item),
        _ => holds(&drain(container)?, item),
    }
}

fn holds(items: &[Value], item: &Value) -> Outcome<bool> {
    walk_items(items.len())?;
    for other in items {
        if equal(other, item)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Fails for lists and dicts, which cannot be keys.
pub(crate) fn hashable(value: &Value) -> Outcome<()> {
    match value {
        Value::View(view) if view.kind == ViewKind::Values => Ok(()),
        Value::List(_) | Value::Dict(_) | Value::View(_) => Err(type_fault(format!("a {} cannot be a key", value.type_name()))),
        Value::Tuple(items) => {
            walk_over(items.measure.bytes)?;
            items.items.iter().try_for_each(hashable)
        }
        _ => Ok(()),
    }
}

pub(super) fn hash_text<H: Hasher>(text: &str, state: &mut H) {
    state.write_u8(1);
    text.hash(state);
}

impl Hash for Value {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            Value::Text(text) => hash_text(&text.text, state),
            Value::Bool(_) | Value::Int(_) | Value::Big(_) | Value::Float(_) => {
                state.write_u8(2);
                Number::of(self).map(|number| number.hash_bits()).hash(state);
            }
            Value::Tuple(items) => {
                state.write_u8(3);
                items.items.iter().for_each(|item| item.hash(state));
            }
            Value::Range(range) => (4_u8, range.start, range.len()).hash(state),
            Value::Method(method) => {
                method.name.hash(state);
                identity(&method.receiver).hash(state);
            }
            Value::Object(object) => Rc::as_ptr(object).addr().hash(state),
            Value::Generator(generator) => Rc::as_ptr(generator).addr().hash(state),
            // All others hash by their type.
            other => other.type_name().hash(state),
        }
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        if let (Some(a), Some(b)) = (Number::of(self), Number::of(other)) {
            return a.equals(&b);
        }
        match (self, other) {
            (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
            (Value::Text(a), Value::Text(b)) => a.text == b.text,
            (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => same_items(a, b),
            (Value::Dict(a), Value::Dict(b)) => same_dict(a, b),
            (Value::Range(a), Value::Range(b)) => a.equals(b),
            (Value::View(a), Value::View(b)) => a.kind == b.kind && a.kind != ViewKind::Values && same_dict(&a.dict, &b.dict),
            (Value::Generator(a), Value::Generator(b)) => Rc::ptr_eq(a, b),
            (Value::Function(a), Value::Function(b)) => a == b,
            (Value::Method(a), Value::Method(b)) => a.name == b.name && identity(&a.receiver) == identity(&b.receiver),
            (Value::Object(a), Value::Object(b)) => is_same_object(a, b),
            _ => false,
        }
    }
}

impl Eq for Value {}

/// Identifies a method's receiver: its address, or the number itself.
fn identity(value: &Value) -> (usize, u64) {
    let at = match value {
        Value::Text(text) => text.text.as_ptr().addr(),
        Value::List(items) | Value::Tuple(items) => Rc::as_ptr(items).addr(),
        Value::Dict(dict) => Rc::as_ptr(dict).addr(),
        Value::Range(range) => Rc::as_ptr(range).addr(),
        Value::Object(object) => Rc::as_ptr(object).addr(),
        Value::Big(number) => Rc::as_ptr(number).addr(),
        _ => 0,
    };
    (at, if at == 0 { Number::of(value).map_or(0, |number| number.hash_bits()) } else { 0 })
}

/// Compares by address: two objects of the interpreter are never equal, and none is empty.
fn is_same_object(a: &Rc<dyn Object>, b: &Rc<dyn Object>) -> bool {
    std::ptr::addr_eq(Rc::as_ptr(a), Rc::as_ptr(b))
}

fn same_items(a: &Rc<Items>, b: &Rc<Items>) -> bool {
    Rc::ptr_eq(a, b) || a.items == b.items
}

fn same_dict(a: &Rc<Dict>, b: &Rc<Dict>) -> bool {
    let equal = |(key, value): (&Value, &Value)| b.get(key).ok().flatten().is_some_and(|other| other == value);
    Rc::ptr_eq(a, b) || (a.len() == b.len() && a.iter().all(equal))
}
