//! Methods of dicts, sequences and numbers.

use std::rc::Rc;

use num_bigint::BigInt;
use num_traits::ToPrimitive;

use super::call_args::{CallArgs, int_or};
use crate::failure::{Outcome, other, type_fault, value_fault};
use crate::value::{Dict, Value, View, ViewKind, drain, equal};

pub(super) fn dict_method(dict: &Rc<Dict>, name: &str, args: CallArgs) -> Outcome<Value> {
    let view = |kind: ViewKind| Value::View(View { kind, dict: Rc::clone(dict) }.into());
    match name {
        "get" => {
            let [key, default] = args.bind("get", ["", ""], 1)?;
            let found = dict.get(&key.unwrap_or(Value::None))?.cloned();
            Ok(found.or(default).unwrap_or(Value::None))
        }
        "fromkeys" => {
            let [keys, value] = args.bind("fromkeys", ["", ""], 1)?;
            let value = value.unwrap_or(Value::None);
            Value::dict(drain(&keys.unwrap_or(Value::None))?.into_iter().map(|key| (key, value.clone())))
        }
        _ => {
            args.none(name)?;
            Ok(match name {
                "keys" => view(ViewKind::Keys),
                "values" => view(ViewKind::Values),
                "items" => view(ViewKind::Items),
                // A dict is immutable, so it is its own copy.
                _ => Value::Dict(Rc::clone(dict)),
            })
        }
    }
}

pub(super) fn sequence_method(receiver: &Value, name: &str, args: CallArgs) -> Outcome<Value> {
    if name == "copy" {
        args.none("copy")?;
        return Ok(receiver.clone());
    }
    let items = drain(receiver)?;
    if name == "count" {
        let [wanted] = args.bind("count", [""], 1)?;
        let wanted = wanted.unwrap_or(Value::None);
        let mut count = 0_usize;
        for item in &items {
            count += usize::from(equal(item, &wanted)?);
        }
        return Ok(count.into());
    }
    let [wanted, start, stop] = args.bind("index", ["", "", ""], 1)?;
    let wanted = wanted.unwrap_or(Value::None);
    let length = items.len() as i64;
    let clamp = |at: i64| (if at < 0 { at.saturating_add(length) } else { at }).clamp(0, length) as usize;
    let (start, stop) = (clamp(int_or("index", start.as_ref(), 0)?), clamp(int_or("index", stop.as_ref(), i64::MAX)?));
    for (at, item) in items.iter().enumerate().take(stop).skip(start) {
        if equal(item, &wanted)? {
            return Ok(at.into());
        }
    }
    Err(value_fault("`index`: the sequence does not hold the value"))
}

pub(super) fn int_method(number: &BigInt, name: &str, args: CallArgs) -> Outcome<Value> {
    args.none(name)?;
    match name {
        "bit_length" => Ok((number.bits() as usize).into()),
        "bit_count" => Ok((number.magnitude().count_ones() as usize).into()),
        "conjugate" => Ok(Value::big(number.clone())),
        _ => Value::tuple(vec![Value::big(number.clone()), Value::Int(1)]),
    }
}

pub(super) fn float_method(number: f64, name: &str, args: CallArgs) -> Outcome<Value> {
    args.none(name)?;
    match name {
        "is_integer" => Ok(Value::Bool(number.is_finite() && number.fract() == 0.0)),
        "conjugate" => Ok(Value::Float(number)),
        _ if number.is_nan() => Err(value_fault("NaN has no ratio of integers")),
        _ if number.is_infinite() => Err(other("infinity has no ratio of integers")),
        _ => {
            // A float is its significant bits times a power of two.
            let (mut top, mut exponent) = (number, 0_u32);
            while top.fract() != 0.0 {
                top *= 2.0;
                exponent += 1;
            }
            let top = crate::value::Number::exact(&Value::Float(top)).ok_or_else(|| type_fault("the float has no ratio"))?;
            Value::tuple(vec![Value::big(top), Value::big(BigInt::from(1) << exponent.to_usize().unwrap_or_default())])
        }
    }
}
