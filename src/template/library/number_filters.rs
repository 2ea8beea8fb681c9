//! Filters of numbers.

use num_bigint::BigInt;
use num_integer::Integer;
use num_traits::{Signed, ToPrimitive};

use super::call_args::{CallArgs, defined, flag, int as integer_of, int_or};
use super::digits::fixed;
use crate::failure::{Fault, Kind, Outcome, other, type_fault, value_fault};
use crate::value::{Number, Value, bounded, parse_float, parse_integer};

pub(super) fn abs(value: &Value, args: CallArgs) -> Outcome<Value> {
    args.none("abs")?;
    defined(value).map_err(|fault| type_fault(fault.text().to_owned()))?;
    match Number::of(value) {
        Some(Number::Float(number)) => Ok(Value::Float(number.abs())),
        Some(number) => Ok(Value::big(number.big().unwrap_or_default().abs())),
        None => Err(type_fault(format!("`abs` needs a number, not {}", value.type_name()))),
    }
}

fn is_caught(fault: &Fault) -> bool {
    matches!(fault.kind(), Kind::Type | Kind::Value)
}

/// `int(value)` of a number.
fn truncated(value: &Value) -> Outcome<Value> {
    match Number::of(value) {
        Some(Number::Float(number)) if number.is_nan() => Err(value_fault("NaN is no integer")),
        Some(Number::Float(number)) => {
            Number::exact(&Value::Float(number.trunc())).map(Value::big).ok_or_else(|| other("infinity is no integer"))
        }
        Some(number) => Ok(Value::big(number.big().unwrap_or_default())),
        None => Err(type_fault(format!("a value of type {} is no number", value.type_name()))),
    }
}

fn as_float(value: &Value) -> Outcome<f64> {
    match (value, Number::of(value)) {
        (Value::Undefined(why), _) => Err(why.fault()),
        (Value::Text(text), _) => parse_float(&text.text),
        (_, Some(number)) => {
            let float = number.float();
            if float.is_infinite() && !number.is_float() { Err(other("an integer is too large for a float")) } else { Ok(float) }
        }
        _ => Err(type_fault(format!("a value of type {} is no number", value.type_name()))),
    }
}

pub(super) fn int(value: &Value, args: CallArgs) -> Outcome<Value> {
    let [default, base] = args.bind("int", ["default", "base"], 0)?;
    let whole = match value {
        Value::Undefined(why) => Err(why.fault()),
        Value::Text(text) => match int_or("int", base.as_ref(), 10) {
            Ok(base @ (0 | 2..=36)) => parse_integer(&text.text, base as u32),
            Ok(_) => Err(value_fault("a base is 0 or between 2 and 36")),
            Err(fault) => Err(fault),
        },
        _ => truncated(value),
    };
    match whole {
        Err(fault) if is_caught(&fault) => {}
        whole => return whole,
    }
    match as_float(value).and_then(|number| truncated(&Value::Float(number))) {
        Err(fault) if is_caught(&fault) || fault.kind() == Kind::Other => Ok(default.unwrap_or(Value::Int(0))),
        whole => whole,
    }
}

pub(super) fn float(value: &Value, args: CallArgs) -> Outcome<Value> {
    let [default] = args.bind("float", ["default"], 0)?;
    match as_float(value) {
        Ok(number) => Ok(Value::Float(number)),
        Err(fault) if is_caught(&fault) => Ok(default.unwrap_or(Value::Float(0.0))),
        Err(fault) => Err(fault),
    }
}

pub(super) fn round(value: &Value, args: CallArgs) -> Outcome<Value> {
    let [precision, method] = args.bind("round", ["precision", "method"], 0)?;
    let method = method.unwrap_or(Value::text("common")?);
    let step: fn(f64) -> f64 = match method.as_text() {
        Some("common") => return rounded(value, precision.as_ref()),
        Some("ceil") => f64::ceil,
        Some("floor") => f64::floor,
        _ => return Err(value_fault("the method of `round` is `common`, `ceil` or `floor`")),
    };
    defined(value)?;
    let number = Number::of(value).ok_or_else(|| type_fault(format!("`round` needs a number, not {}", value.type_name())))?;
    let scale = 10_f64.powi(int_or("round", precision.as_ref(), 0)?.clamp(-400, 400) as i32);
    let scaled = step(number.float() * scale);
    if !scaled.is_finite() {
        return Err(other("a number that is not finite cannot be rounded"));
    }
    Ok(Value::Float(scaled / scale))
}

/// `round(value, precision)`, with ties to even.
fn rounded(value: &Value, precision: Option<&Value>) -> Outcome<Value> {
    let number = match (value, Number::of(value)) {
        (_, Some(number)) => number,
        _ => return Err(type_fault(format!("`round` needs a number, not {}", value.type_name()))),
    };
    let Number::Float(float) = number else {
        let digits = match precision {
            Some(Value::None) | None => 0,
            Some(precision) => integer_of("round", precision)?,
        };
        return round_integer(&number.big().unwrap_or_default(), digits);
    };
    if matches!(precision, Some(Value::None)) {
        return truncated(&Value::Float(float.round_ties_even()));
    }
    let digits = int_or("round", precision, 0)?;
    if !float.is_finite() || digits > 330 {
        return Ok(Value::Float(float));
    }
    if digits < 0 {
        if digits < -308 {
            return Ok(Value::Float(0.0_f64.copysign(float)));
        }
        // The nearest multiple of a power of ten, computed from the exact value of the float.
        let whole = Number::exact(&Value::Float(float.trunc())).unwrap_or_default();
        let unit = BigInt::from(10).pow(digits.unsigned_abs() as u32);
        let (quotient, rest) = whole.abs().div_rem(&unit);
        let half: BigInt = rest * 2;
        let up = half > unit || (half == unit && (float.fract() != 0.0 || quotient.is_odd()));
        let size = ((quotient + u32::from(up)) * unit).to_f64().unwrap_or(f64::INFINITY);
        return Ok(Value::Float(size.copysign(float)));
    }
    let text = fixed(float.abs(), digits as usize, false);
    Ok(Value::Float(text.parse::<f64>().unwrap_or(float.abs()).copysign(float)))
}

fn round_integer(number: &BigInt, digits: i64) -> Outcome<Value> {
    if digits >= 0 {
        return Ok(Value::big(number.clone()));
    }
    if digits < -5000 {
        return Ok(Value::Int(0));
    }
    let unit = BigInt::from(10).pow(digits.unsigned_abs() as u32);
    let (quotient, rest) = number.div_mod_floor(&unit);
    let half: BigInt = rest * 2;
    let up = half > unit || (half == unit && quotient.is_odd());
    bounded((quotient + u32::from(up)) * unit)
}

pub(super) fn filesizeformat(value: &Value, args: CallArgs) -> Outcome<Value> {
    let [binary] = args.bind("filesizeformat", ["binary"], 0)?;
    let (bytes, binary) = (as_float(value)?, flag(binary.as_ref()));
    let base: f64 = if binary { 1024.0 } else { 1000.0 };
    if bytes == 1.0 {
        return Value::text("1 Byte");
    }
    if bytes < base {
        let whole = truncated(&Value::Float(bytes))?;
        return Value::text(format!("{} Bytes", crate::value::text_of(&whole)?));
    }
    let prefixes =
        if binary { ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"] } else { ["kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"] };
    let mut unit = base;
    for prefix in prefixes {
        unit *= base;
        if bytes < unit {
            return Value::text(format!("{:.1} {prefix}", base * bytes / unit));
        }
    }
    Value::text(format!("{:.1} {}", base * bytes / unit, prefixes[7]))
}
