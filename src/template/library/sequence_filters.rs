//! Filters of sequences and of any value.

use super::attributes::attribute_only;
use super::call_args::{CallArgs, defined, flag, int, some, text};
use super::order::sorted;
use super::select_filters::folded;
use crate::failure::{Outcome, type_fault, value_fault};
use crate::value::{Generator, Value, View, ViewKind, drain};

pub(super) fn attr(value: &Value, args: CallArgs) -> Outcome<Value> {
    let [name] = args.bind("attr", ["name"], 1)?;
    defined(value)?;
    attribute_only(value, text("attr", &name.unwrap_or(Value::None))?)
}

pub(super) fn default(value: &Value, args: CallArgs) -> Outcome<Value> {
    let [default, boolean] = args.bind("default", ["default_value", "boolean"], 0)?;
    if value.is_undefined() || (flag(boolean.as_ref()) && !value.truth()) {
        return default.map_or_else(|| Value::text(""), Ok);
    }
    Ok(value.clone())
}

pub(super) fn length(value: &Value, args: CallArgs) -> Outcome<Value> {
    args.none("length")?;
    Ok(value.length()?.into())
}

pub(super) fn list(value: &Value, args: CallArgs) -> Outcome<Value> {
    args.none("list")?;
    Value::list(drain(value)?)
}

pub(super) fn first(value: &Value, args: CallArgs) -> Outcome<Value> {
    args.none("first")?;
    let found = match value {
        Value::Generator(generator) => generator.next()?,
        Value::Text(text) => {
            let first = text.text.chars().next();
            first.map(|c| Value::marked(String::from(c), text.safe)).transpose()?
        }
        _ => drain(value)?.into_iter().next(),
    };
    Ok(found.unwrap_or_else(|| Value::undefined_because("the sequence has no first item, because it is empty")))
}

/// The items of a value in reverse order. Fails if the value cannot be read from its end.
fn reversed(value: &Value) -> Outcome<Vec<Value>> {
    let is_reversible = matches!(
        value,
        Value::Text(_) | Value::List(_) | Value::Tuple(_) | Value::Dict(_) | Value::Range(_) | Value::View(_) | Value::Undefined(_)
    );
    if !is_reversible {
        return Err(type_fault(format!("a value of type {} cannot be read in reverse", value.type_name())));
    }
    let mut items = drain(value)?;
    items.reverse();
    Ok(items)
}

pub(super) fn last(value: &Value, args: CallArgs) -> Outcome<Value> {
    args.none("last")?;
    defined(value)?;
    if let Value::Text(text) = value {
        crate::budget::walk_over(text.text.len() as u64)?;
        if let Some(last) = text.text.chars().next_back() {
            return Value::marked(String::from(last), text.safe);
        }
    }
    let found = reversed(value)?.into_iter().next();
    Ok(found.unwrap_or_else(|| Value::undefined_because("the sequence has no last item, because it is empty")))
}

pub(super) fn reverse(value: &Value, args: CallArgs) -> Outcome<Value> {
    args.none("reverse")?;
    if let Value::Text(text) = value {
        return Value::marked(text.text.chars().rev().collect::<String>(), text.safe);
    }
    match reversed(value) {
        Ok(items) if !value.is_undefined() => {
            let name = match value {
                Value::List(_) => "list_reverseiterator",
                Value::Range(_) => "range_iterator",
                Value::Dict(_) => "dict_reversekeyiterator",
                Value::View(view) if view.kind == ViewKind::Items => "dict_reverseitemiterator",
                _ => "reversed_iterator",
            };
            Generator::of(name, items.into_iter().map(Ok))
        }
        _ => {
            let mut items = drain(value)?;
            items.reverse();
            Value::list(items)
        }
    }
}

pub(super) fn random(value: &Value, args: CallArgs) -> Outcome<Value> {
    args.none("random")?;
    let length = value.length()?;
    if length == 0 {
        return Ok(Value::undefined_because("the sequence has no random item, because it is empty"));
    }
    // A new hasher has random keys.
    let random = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), length);
    let at = Value::Int((random % length as u64) as i64);
    match super::attributes::item(value, &at)? {
        Value::Undefined(_) => Err(type_fault(format!("a value of type {} has no random item", value.type_name()))),
        found => Ok(found),
    }
}

pub(super) fn items(value: &Value, args: CallArgs) -> Outcome<Value> {
    args.none("items")?;
    match value {
        Value::Undefined(_) => Generator::of("do_items", std::iter::empty()),
        Value::Dict(dict) => {
            let view = View { kind: ViewKind::Items, dict: std::rc::Rc::clone(dict) };
            Generator::of("do_items", view.items()?.into_iter().map(Ok))
        }
        _ => Generator::of("do_items", std::iter::once(Err(type_fault("only a mapping has pairs of items")))),
    }
}

pub(super) fn dictsort(value: &Value, args: CallArgs) -> Outcome<Value> {
    let [case_sensitive, by, reverse] = args.bind("dictsort", ["case_sensitive", "by", "reverse"], 0)?;
    let at = match by.as_ref().map(Value::as_text) {
        None | Some(Some("key")) => 0,
        Some(Some("value")) => 1,
        _ => return Err(value_fault("`dictsort` sorts by `key` or `value`")),
    };
    defined(value)?;
    let Value::Dict(dict) = value else { return Err(type_fault(format!("`dictsort` needs a dict, not {}", value.type_name()))) };
    let pairs = dict.iter().map(|(key, value)| {
        let by = if at == 0 { key } else { value };
        let by = if flag(case_sensitive.as_ref()) { by.clone() } else { folded(by.clone())? };
        Ok((by, Value::tuple(vec![key.clone(), value.clone()])?))
    });
    Value::list(sorted(pairs.collect::<Outcome<_>>()?, flag(reverse.as_ref()))?)
}

pub(super) fn batch(value: &Value, args: CallArgs) -> Outcome<Value> {
    let [count, fill] = args.bind("batch", ["linecount", "fill_with"], 1)?;
    let (count, fill) = (count.unwrap_or(Value::None), some(fill));
    let size = crate::value::Number::of(&count);
    let items = match drain(value) {
        Ok(items) => items,
        Err(fault) => return Generator::of("do_batch", std::iter::once(Err(fault))),
    };
    // A count that is not an integer equals no length, so there is one row.
    let size = size.and_then(|_| int("batch", &count).ok()).unwrap_or(-1);
    let mut rows: Vec<Vec<Value>> = Vec::new();
    let mut row: Vec<Value> = Vec::new();
    for item in items {
        if row.len() as i64 == size {
            rows.push(std::mem::take(&mut row));
        }
        row.push(item);
    }
    if !row.is_empty() {
        if let Some(fill) = fill {
            if !matches!(count, Value::Int(_) | Value::Bool(_) | Value::Float(_)) {
                defined(&count)?;
                return Err(type_fault("`batch` needs an integer"));
            }
            let missing = usize::try_from(size).unwrap_or(0).saturating_sub(row.len());
            crate::value::afford_items(missing)?;
            row.extend(std::iter::repeat_n(fill, missing));
        }
        rows.push(row);
    }
    Generator::of("do_batch", rows.into_iter().map(Value::list))
}

pub(super) fn slice(value: &Value, args: CallArgs) -> Outcome<Value> {
    let [count, fill] = args.bind("slice", ["slices", "fill_with"], 1)?;
    let fill = some(fill);
    let rows = || -> Outcome<Vec<Outcome<Value>>> {
        let items = drain(value)?;
        let count = int("slice", &count.unwrap_or(Value::None))?;
        if count == 0 {
            return Err(crate::failure::other("a division by zero"));
        }
        let count = usize::try_from(count).unwrap_or(0);
        crate::value::afford_items(count)?;
        let each = items.len().checked_div(count).unwrap_or(0);
        let extra = items.len() - each * count;
        let mut offset = 0;
        let mut rows = Vec::new();
        for number in 0..count {
            let size = each + usize::from(number < extra);
            let mut row = items[offset..offset + size].to_vec();
            offset += size;
            if number >= extra
                && let Some(fill) = &fill
            {
                row.push(fill.clone());
            }
            rows.push(Value::list(row));
        }
        Ok(rows)
    };
    match rows() {
        Ok(rows) => Generator::of("sync_do_slice", rows.into_iter()),
        Err(fault) => Generator::of("sync_do_slice", std::iter::once(Err(fault))),
    }
}
