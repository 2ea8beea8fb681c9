//! Evaluates Python's operators.

use num_bigint::BigInt;
use num_integer::Integer;
use num_traits::{Signed, ToPrimitive, Zero};

use super::call_args::defined;
use super::markup::{escape, joined};
use super::order::order;
use super::percent::percent;
use crate::budget::{afford_copies, walk_over};
use crate::failure::{Fault, Outcome, limit, other, type_fault};
use crate::syntax::ast::{Comparison, Operator};
use crate::value::{MAX_BITS, Number, Value, bounded, contains, equal};

/// `a OPERATOR b`.
pub(crate) fn binary(operator: Operator, a: &Value, b: &Value) -> Outcome<Value> {
    if let (Operator::Mod, Value::Text(pattern)) = (operator, a) {
        return percent(pattern, b);
    }
    defined(a)?;
    defined(b)?;
    if let (Some(x), Some(y)) = (Number::of(a), Number::of(b)) {
        return arithmetic(operator, &x, &y);
    }
    match operator {
        Operator::Add => add(a, b),
        Operator::Mul => repeat(a, b),
        _ => Err(unsupported(operator, a, b)),
    }
}

fn unsupported(operator: Operator, a: &Value, b: &Value) -> Fault {
    type_fault(format!("`{}` does not work on {} and {}", operator.sign(), a.type_name(), b.type_name()))
}

fn add(a: &Value, b: &Value) -> Outcome<Value> {
    match (a, b) {
        (Value::Text(x), Value::Text(y)) => joined(x, y),
        (Value::List(x), Value::List(y)) | (Value::Tuple(x), Value::Tuple(y)) => {
            crate::value::afford_items(x.items.len() + y.items.len())?;
            let items = x.items.iter().chain(&y.items).cloned().collect();
            if matches!(a, Value::List(_)) { Value::list(items) } else { Value::tuple(items) }
        }
        _ => Err(unsupported(Operator::Add, a, b)),
    }
}

/// A string, list or tuple times an integer.
fn repeat(a: &Value, b: &Value) -> Outcome<Value> {
    let is_many = |value: &Value| matches!(value, Value::Text(_) | Value::List(_) | Value::Tuple(_));
    let (many, count) = if is_many(a) { (a, b) } else { (b, a) };
    let times = match Number::of(count) {
        Some(Number::Int(number)) if is_many(many) => usize::try_from(number.max(0)).unwrap_or(usize::MAX),
        Some(Number::Big(number)) if is_many(many) => {
            if number.is_negative() {
                0
            } else {
                usize::MAX
            }
        }
        _ => return Err(unsupported(Operator::Mul, a, b)),
    };
    match many {
        Value::Text(text) => {
            afford_copies(times, text.text.len(), 0)?;
            let times = if text.text.is_empty() { 0 } else { times };
            Value::marked(text.text.repeat(times), text.safe)
        }
        Value::List(items) | Value::Tuple(items) => {
            afford_copies(times, items.items.len() * 64, 0)?;
            let times = if items.items.is_empty() { 0 } else { times };
            let all = std::iter::repeat_n(&items.items, times).flatten().cloned().collect();
            if matches!(many, Value::List(_)) { Value::list(all) } else { Value::tuple(all) }
        }
        _ => Err(unsupported(Operator::Mul, a, b)),
    }
}

fn arithmetic(operator: Operator, a: &Number, b: &Number) -> Outcome<Value> {
    if operator == Operator::Div || a.is_float() || b.is_float() {
        return floats(operator, a, b);
    }
    if let (Number::Int(x), Number::Int(y)) = (a, b) {
        let quick = match operator {
            Operator::Add => x.checked_add(*y),
            Operator::Sub => x.checked_sub(*y),
            Operator::Mul => x.checked_mul(*y),
            Operator::FloorDiv if *y != 0 && *y != -1 => Some(Integer::div_floor(x, y)),
            Operator::Mod if *y != 0 && *y != -1 => Some(Integer::mod_floor(x, y)),
            _ => None,
        };
        if let Some(number) = quick {
            return Ok(Value::Int(number));
        }
    }
    let (x, y) = (a.big().unwrap_or_default(), b.big().unwrap_or_default());
    walk_over((x.bits() + y.bits()).saturating_mul(8))?;
    match operator {
        Operator::Add => bounded(x + y),
        Operator::Sub => bounded(x - y),
        Operator::Mul => bounded(x * y),
        Operator::Pow => power(&x, &y),
        _ if y.is_zero() => Err(division_by_zero()),
        Operator::FloorDiv => bounded(x.div_floor(&y)),
        _ => bounded(x.mod_floor(&y)),
    }
}

fn division_by_zero() -> Fault {
    other("a division by zero")
}

fn power(base: &BigInt, exponent: &BigInt) -> Outcome<Value> {
    if exponent.is_negative() {
        return floats(
            Operator::Pow,
            &Number::Float(base.to_f64().unwrap_or(f64::NAN)),
            &Number::Float(exponent.to_f64().unwrap_or(f64::NAN)),
        );
    }
    if base.bits() <= 1 {
        // 0, 1 and -1.
        let is_odd = exponent.is_odd();
        return Ok(Value::big(if exponent.is_zero() {
            1.into()
        } else if is_odd {
            base.clone()
        } else {
            base * base
        }));
    }
    let exponent = exponent.to_u32().filter(|exponent| (base.bits() - 1).saturating_mul(u64::from(*exponent)) <= MAX_BITS);
    let exponent = exponent.ok_or_else(|| limit("an integer is too large"))?;
    walk_over(MAX_BITS)?;
    bounded(base.pow(exponent))
}

fn floats(operator: Operator, a: &Number, b: &Number) -> Outcome<Value> {
    let (x, y) = (a.float(), b.float());
    let exact = [(a, x), (b, y)].into_iter().all(|(number, float)| number.is_float() || float.is_finite());
    if !exact {
        return Err(other("an integer is too large for a float"));
    }
    let is_division = matches!(operator, Operator::Div | Operator::FloorDiv | Operator::Mod);
    if is_division && y == 0.0 {
        return Err(division_by_zero());
    }
    Ok(Value::Float(match operator {
        Operator::Add => x + y,
        Operator::Sub => x - y,
        Operator::Mul => x * y,
        Operator::Div => x / y,
        Operator::FloorDiv => floor_division(x, y).0,
        Operator::Mod => floor_division(x, y).1,
        Operator::Pow if x == 0.0 && y < 0.0 => return Err(division_by_zero()),
        Operator::Pow if x < 0.0 && x.is_finite() && y.is_finite() && y.fract() != 0.0 => {
            return Err(type_fault("a power would be a complex number, which templates do not have"));
        }
        Operator::Pow => {
            let power = x.powf(y);
            if power.is_infinite() && x.is_finite() && y.is_finite() {
                return Err(other("a power is too large for a float"));
            }
            power
        }
    }))
}

/// The quotient and remainder as in Python: the remainder has the sign of the divisor.
fn floor_division(x: f64, y: f64) -> (f64, f64) {
    let mut rest = x % y;
    let mut quotient = (x - rest) / y;
    if rest == 0.0 {
        rest = 0.0_f64.copysign(y);
    } else if (y < 0.0) != (rest < 0.0) {
        rest += y;
        quotient -= 1.0;
    }
    let floor = quotient.floor();
    let whole = if quotient == 0.0 {
        0.0_f64.copysign(x / y)
    } else if quotient - floor > 0.5 {
        floor + 1.0
    } else {
        floor
    };
    (whole, rest)
}

/// `-value`, or `+value`.
pub(crate) fn signed(is_minus: bool, value: &Value) -> Outcome<Value> {
    defined(value)?;
    match Number::of(value) {
        Some(Number::Float(number)) => Ok(Value::Float(if is_minus { -number } else { number })),
        Some(number) => {
            let number = number.big().unwrap_or_default();
            Ok(Value::big(if is_minus { -number } else { number }))
        }
        None => Err(type_fault(format!("a sign does not work on {}", value.type_name()))),
    }
}

/// `a COMPARISON b`.
pub(crate) fn compare(comparison: Comparison, a: &Value, b: &Value) -> Outcome<bool> {
    match comparison {
        Comparison::Eq => equal(a, b),
        Comparison::Ne => Ok(!equal(a, b)?),
        Comparison::In => contains(b, a),
        Comparison::NotIn => Ok(!contains(b, a)?),
        Comparison::Lt => Ok(order(a, b)?.is_some_and(std::cmp::Ordering::is_lt)),
        Comparison::Le => Ok(order(a, b)?.is_some_and(std::cmp::Ordering::is_le)),
        Comparison::Gt => Ok(order(a, b)?.is_some_and(std::cmp::Ordering::is_gt)),
        Comparison::Ge => Ok(order(a, b)?.is_some_and(std::cmp::Ordering::is_ge)),
    }
}

/// `a < b`.
pub(crate) fn is_less(a: &Value, b: &Value) -> Outcome<bool> {
    compare(Comparison::Lt, a, b)
}

/// `a ~ b ~ …`. If `escaped`, values that are not safe are escaped.
pub(crate) fn concat(values: &[Value], escaped: bool) -> Outcome<Value> {
    let is_markup = escaped && values.iter().any(Value::is_safe);
    let mut out = String::new();
    for value in values {
        let part = crate::value::text_of(value)?;
        let part = if is_markup && !value.is_safe() { escape(&part)? } else { part };
        crate::budget::afford(Some((out.len() + part.len()) as u64))?;
        out.push_str(&part);
    }
    Value::marked(out, is_markup)
}
