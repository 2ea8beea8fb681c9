//! Iterates over values: ranges, generators and the rest.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use num_bigint::BigInt;
use num_integer::Integer;
use num_traits::ToPrimitive;

use super::{Generator, Measure, Range, Value};
use crate::budget::{ITEM_BYTES, charge, walk_items};
use crate::failure::{Kind, Outcome, other, type_fault};

/// The longest range that Jinja's sandbox permits [items].
const MAX_RANGE: i128 = 100_000;

impl Range {
    pub fn new(start: i64, stop: i64, step: i64) -> Outcome<Self> {
        let (first, end, by) = (i128::from(start), i128::from(stop), i128::from(step));
        let span = if step > 0 { end - first } else { first - end };
        let length = if span <= 0 { 0 } else { (span - 1) / by.abs() + 1 };
        if length > MAX_RANGE {
            return Err(other(format!("a range has {length} items, expected at most {MAX_RANGE}")));
        }
        Ok(Self { start, stop, step, length: usize::try_from(length).unwrap_or_default() })
    }

    pub fn len(&self) -> usize {
        self.length
    }

    pub fn item(&self, index: usize) -> Value {
        Value::Int(self.start.saturating_add(self.step.saturating_mul(index as i64)))
    }

    pub fn items(&self) -> Vec<Value> {
        (0..self.length).map(|index| self.item(index)).collect()
    }

    /// The index of a number in the range.
    pub fn position(&self, number: &BigInt) -> Option<usize> {
        let (index, rest) = (number - self.start).div_mod_floor(&self.step.into());
        index.to_usize().filter(|index| *index < self.length && rest == BigInt::ZERO)
    }

    pub fn equals(&self, other: &Self) -> bool {
        self.length == other.length && (self.length == 0 || (self.start == other.start && (self.length == 1 || self.step == other.step)))
    }
}

impl Generator {
    /// A generator of the items that `items` yields until it ends or fails. A limit of the sandbox fails at once.
    pub fn of(name: &'static str, items: impl Iterator<Item = Outcome<Value>>) -> Outcome<Value> {
        let (mut found, mut fault) = (VecDeque::new(), None);
        for item in items {
            charge(ITEM_BYTES)?;
            match item {
                Ok(item) => found.push_back(item),
                Err(error) if error.kind() == Kind::Limit => return Err(error),
                Err(error) => {
                    fault = Some(error);
                    break;
                }
            }
        }
        let measure = Measure::of(found.iter())?;
        Ok(Value::Generator(Rc::new(Self { name, items: RefCell::new(found), fault: RefCell::new(fault), measure })))
    }

    pub fn next(&self) -> Outcome<Option<Value>> {
        let item = self.items.borrow_mut().pop_front();
        match item {
            Some(item) => Ok(Some(item)),
            None => self.fault.take().map_or(Ok(None), Err),
        }
    }

    /// All remaining items.
    pub fn rest(&self) -> Outcome<Vec<Value>> {
        let items = self.items.take();
        match self.fault.take() {
            Some(fault) => Err(fault),
            None => Ok(items.into()),
        }
    }

    pub fn type_name(&self) -> &'static str {
        if self.name.ends_with("iterator") { self.name } else { "generator" }
    }

    pub fn shown(&self) -> String {
        let at = std::ptr::from_ref(self).addr();
        if self.name.ends_with("iterator") {
            format!("<{} object at 0x{at:x}>", self.name)
        } else {
            format!("<generator object {} at 0x{at:x}>", self.name)
        }
    }
}

/// The items of a value. A generator is then empty.
pub(crate) fn drain(value: &Value) -> Outcome<Vec<Value>> {
    iterate(value)?.ok_or_else(|| type_fault(format!("a value of type {} cannot be iterated over", value.type_name())))
}

/// The items of a value. `None` if the value cannot be iterated over.
pub(crate) fn iterate(value: &Value) -> Outcome<Option<Vec<Value>>> {
    let items = match value {
        Value::Undefined(_) => Vec::new(),
        Value::Text(text) => {
            super::afford_items(text.text.len())?;
            let chars = text.text.chars().map(|c| Value::text(c.encode_utf8(&mut [0; 4]) as &str));
            chars.collect::<Outcome<_>>()?
        }
        Value::List(items) | Value::Tuple(items) => items.items.clone(),
        Value::Dict(dict) => dict.keys().cloned().collect(),
        Value::View(view) => view.items()?,
        Value::Range(range) => range.items(),
        Value::Generator(generator) => generator.rest()?,
        _ => return Ok(None),
    };
    walk_items(items.len())?;
    Ok(Some(items))
}
