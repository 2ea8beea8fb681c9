//! Compares values with `<`, and sorts them.

use std::cmp::Ordering;

use super::call_args::defined;
use crate::budget::walk_over;
use crate::failure::{Outcome, type_fault};
use crate::value::{Number, Value, equal};

/// Compares two values. `None` if neither is less, as with NaN. Fails if the values have no order.
pub(crate) fn order(a: &Value, b: &Value) -> Outcome<Option<Ordering>> {
    defined(a)?;
    defined(b)?;
    if let (Some(x), Some(y)) = (Number::of(a), Number::of(b)) {
        return Ok(x.compare(&y));
    }
    match (a, b) {
        (Value::Text(x), Value::Text(y)) => {
            walk_over(x.text.len().min(y.text.len()) as u64)?;
            Ok(Some(x.text.cmp(&y.text)))
        }
        (Value::List(x), Value::List(y)) | (Value::Tuple(x), Value::Tuple(y)) => {
            for (left, right) in x.items.iter().zip(&y.items) {
                if !equal(left, right)? {
                    return order(left, right);
                }
            }
            Ok(Some(x.items.len().cmp(&y.items.len())))
        }
        _ => Err(type_fault(format!("{} and {} have no order", a.type_name(), b.type_name()))),
    }
}

/// Sorts items by their keys. The sort is stable, also in reverse.
pub(crate) fn sorted<T>(items: Vec<(Value, T)>, reverse: bool) -> Outcome<Vec<T>> {
    let less = |a: &(Value, T), b: &(Value, T)| {
        let (a, b) = if reverse { (b, a) } else { (a, b) };
        Ok(order(&a.0, &b.0)? == Some(Ordering::Less))
    };
    Ok(merge_sort(items, &less)?.into_iter().map(|(_, item)| item).collect())
}

/// A merge sort, because the standard library's sort may panic if an order contradicts itself, as one with NaN does.
fn merge_sort<T>(mut items: Vec<T>, less: &impl Fn(&T, &T) -> Outcome<bool>) -> Outcome<Vec<T>> {
    if items.len() < 2 {
        return Ok(items);
    }
    let right = items.split_off(items.len() / 2);
    let mut left = merge_sort(items, less)?.into_iter().peekable();
    let mut right = merge_sort(right, less)?.into_iter().peekable();
    let mut merged = Vec::with_capacity(left.len() + right.len());
    while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
        crate::budget::walk_items(1)?;
        merged.extend(if less(b, a)? { right.next() } else { left.next() });
    }
    merged.extend(left);
    merged.extend(right);
    Ok(merged)
}
