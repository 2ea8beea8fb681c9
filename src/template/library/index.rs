//! Items and slices of sequences.

use num_traits::{Signed, ToPrimitive};

use super::call_args::defined;
use crate::budget::walk_over;
use crate::failure::{Outcome, type_fault, value_fault};
use crate::value::{Number, Range, Text, Value};

/// The item of a sequence or dict. `None` if there is no item with that key.
pub(super) fn element(value: &Value, key: &Value) -> Outcome<Option<Value>> {
    if let Value::Dict(dict) = value {
        return Ok(dict.get(key)?.cloned());
    }
    if !matches!(value, Value::Text(_) | Value::List(_) | Value::Tuple(_) | Value::Range(_)) {
        return Ok(None);
    }
    let index = match key {
        Value::Bool(on) => i64::from(*on),
        Value::Int(index) => *index,
        _ => return Ok(None),
    };
    let length = value.length()?;
    let at = if index < 0 { (length as i64).checked_add(index) } else { Some(index) };
    let Some(at) = at.and_then(|at| usize::try_from(at).ok()).filter(|at| *at < length) else { return Ok(None) };
    Ok(match value {
        Value::Text(text) => Some(nth(text, at)?),
        Value::List(items) | Value::Tuple(items) => items.items.get(at).cloned(),
        Value::Range(range) => Some(range.item(at)),
        _ => None,
    })
}

fn nth(text: &Text, at: usize) -> Outcome<Value> {
    let c = if text.text.is_ascii() { text.text.as_bytes().get(at).map(|byte| char::from(*byte)) } else { text.text.chars().nth(at) };
    Value::marked(c.map(String::from).unwrap_or_default(), text.safe)
}

/// `value[start:stop:step]`.
pub(crate) fn slice(value: &Value, bounds: [&Value; 3]) -> Outcome<Value> {
    defined(value)?;
    if !matches!(value, Value::Text(_) | Value::List(_) | Value::Tuple(_) | Value::Range(_)) {
        return Err(type_fault(format!("a value of type {} cannot be sliced", value.type_name())));
    }
    let length = value.length()? as i64;
    let [start, stop, step] = bounds;
    let step = bound(step)?.unwrap_or(1);
    if step == 0 {
        return Err(value_fault("the step of a slice is 0"));
    }
    let (low, high) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let clamp = |value: Option<i64>, default: i64| match value {
        None => default,
        Some(at) => (if at < 0 { at.saturating_add(length) } else { at }).clamp(low, high),
    };
    let (start, stop) = (clamp(bound(start)?, if step > 0 { low } else { high }), clamp(bound(stop)?, if step > 0 { high } else { low }));
    if let Value::Range(range) = value {
        let at = |index: i64| range.start.saturating_add(range.step.saturating_mul(index));
        return Ok(Value::Range(Range::new(at(start), at(stop), range.step.saturating_mul(step))?.into()));
    }
    let count = if step > 0 {
        (stop - start + step - 1).max(0) / step.max(1)
    } else {
        (start - stop).saturating_sub(step + 1).max(0) / step.saturating_neg()
    };
    let indices = (0..count).map(|n| (start + n * step) as usize);
    match value {
        Value::Text(text) => sliced_text(text, indices, step == 1),
        Value::List(items) | Value::Tuple(items) => {
            crate::value::afford_items(usize::try_from(count).unwrap_or_default())?;
            let all = indices.filter_map(|at| items.items.get(at).cloned()).collect();
            if matches!(value, Value::List(_)) { Value::list(all) } else { Value::tuple(all) }
        }
        _ => Ok(Value::None),
    }
}

/// A bound of a slice, clamped. `None` if the bound is not given.
fn bound(value: &Value) -> Outcome<Option<i64>> {
    match (value, Number::of(value)) {
        (Value::None, _) => Ok(None),
        (_, Some(Number::Int(number))) => Ok(Some(number)),
        (_, Some(Number::Big(number))) => Ok(number.to_i64().or(Some(if number.is_negative() { -i64::MAX } else { i64::MAX }))),
        _ => Err(type_fault(format!("the bounds of a slice must be integers or none, not {}", value.type_name()))),
    }
}

fn sliced_text(text: &Text, mut indices: impl Iterator<Item = usize> + Clone, is_range: bool) -> Outcome<Value> {
    walk_over(text.text.len() as u64)?;
    let is_ascii = text.text.is_ascii();
    let cut = if is_range {
        let count = indices.clone().count();
        let Some(start) = indices.next() else { return Value::marked("", text.safe) };
        if is_ascii { text.text[start..start + count].to_owned() } else { text.text.chars().skip(start).take(count).collect() }
    } else if is_ascii {
        indices.map(|at| char::from(text.text.as_bytes()[at])).collect()
    } else {
        crate::budget::afford(Some(text.text.len() as u64 * 4))?;
        let chars: Vec<char> = text.text.chars().collect();
        indices.map(|at| chars[at]).collect()
    };
    Value::marked(cut, text.safe)
}
