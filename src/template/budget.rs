//! The budget of one render: how many bytes of values it may make, and how long it may take.
//!
//! minijinja limits the number of instructions, but not what one instruction makes. So every operation that makes or walks large values
//! draws on the budget (see [`crate::instrument`]). Strings and lists are charged when they are made. A value is walked only if its size,
//! with shared parts counted as often as they occur, is within what the budget has left.
//!
//! A charge is not refunded when a value is dropped, because a render is short and its budget grows with its input.

use std::cell::Cell;
use std::time::{Duration, Instant};

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

/// Longest output of a render, in bytes.
pub(super) const MAX_OUTPUT: usize = 32 << 20;
/// A render may make `BASE_BYTES` bytes of values plus `INPUT_COPIES` times the size of its input. Real templates copy a conversation two
/// or three times.
const BASE_BYTES: u64 = 32 << 20;
const INPUT_COPIES: u64 = 16;
/// A render may walk `BASE_WORK` bytes of values plus `INPUT_WALKS` times the size of its input. A search (`.count`, `in`) makes nothing,
/// but takes about a nanosecond per byte.
const BASE_WORK: u64 = 256 << 20;
const INPUT_WALKS: u64 = 256;
/// A render takes a few milliseconds. This limit is far above that even on a loaded machine.
const MAX_TIME: Duration = Duration::from_secs(5);
/// Approximate size of an item of a list or map, in bytes.
const ITEM_BYTES: u64 = 64;
/// Deepest nesting of a value that is walked. The walkers recurse.
const MAX_DEPTH: usize = 200;

#[derive(Clone, Copy)]
struct Budget {
    /// Bytes that may still be made.
    left: u64,
    /// Bytes that may still be walked.
    work: u64,
    end: Instant,
}

thread_local! {
    /// The budget of the render on this thread.
    static BUDGET: Cell<Option<Budget>> = const { Cell::new(None) };
}

/// Runs a render with the budget for an input of `input` bytes.
pub(super) fn with_budget<T>(input: u64, render: impl FnOnce() -> T) -> T {
    let left = BASE_BYTES.saturating_add(input.saturating_mul(INPUT_COPIES));
    let work = BASE_WORK.saturating_add(input.saturating_mul(INPUT_WALKS));
    BUDGET.set(Some(Budget { left, work, end: Instant::now() + MAX_TIME }));
    let result = render();
    BUDGET.set(None);
    result
}

pub(super) fn failure(what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

fn too_much() -> Error {
    failure("the render makes more text than its input allows for")
}

/// Charges `bytes` to the budget. Fails if they exceed it or the time is up.
pub(super) fn charge(bytes: u64) -> Result<(), Error> {
    let Some(budget) = BUDGET.get() else { return Ok(()) };
    let left = budget.left.checked_sub(bytes).ok_or_else(too_much)?;
    if Instant::now() > budget.end {
        return Err(failure(format!("the render takes more than {} s", MAX_TIME.as_secs())));
    }
    BUDGET.set(Some(Budget { left, ..budget }));
    Ok(())
}

/// Charges the walk over `bytes` bytes of values.
pub(super) fn walk_over(bytes: u64) -> Result<(), Error> {
    let Some(budget) = BUDGET.get() else { return Ok(()) };
    let work = budget.work.checked_sub(bytes).ok_or_else(|| failure("the render searches more text than its input allows for"))?;
    BUDGET.set(Some(Budget { work, ..budget }));
    Ok(())
}

/// Charges the walk over a string, or over the items of a list without what they hold.
pub(super) fn scan(value: &Value) -> Result<(), Error> {
    walk_over(match value.as_str() {
        Some(text) => text.len() as u64,
        None => (value.len().unwrap_or(0) as u64).saturating_mul(ITEM_BYTES),
    })
}

/// Fails if the budget has less than `bytes` left. Called before a value is made; [`charged`] charges it afterwards.
pub(super) fn afford(bytes: Option<u64>) -> Result<(), Error> {
    let left = BUDGET.get().map_or(u64::MAX, |budget| budget.left);
    bytes.filter(|bytes| *bytes <= left).map(|_| ()).ok_or_else(too_much)
}

/// The size of a value in bytes, with shared parts counted as often as they occur. Charges the walk over it, and fails if it exceeds what
/// the budget has left.
pub(super) fn checked_size(value: &Value) -> Result<u64, Error> {
    let mut left = BUDGET.get().map_or(u64::MAX, |budget| budget.left);
    let before = left;
    walk(value, MAX_DEPTH, &mut left)?;
    walk_over(before - left)?;
    Ok(before - left)
}

fn walk(value: &Value, depth: usize, left: &mut u64) -> Result<(), Error> {
    let text = value.as_str().map_or(0, |text| text.len() as u64);
    *left = left.checked_sub(ITEM_BYTES + text).ok_or_else(too_much)?;
    let kind = value.kind();
    if !matches!(kind, ValueKind::Seq | ValueKind::Iterable | ValueKind::Map) {
        return Ok(());
    }
    let depth = depth.checked_sub(1).ok_or_else(|| failure("a value is nested too deeply"))?;
    for item in value.try_iter()?.checked() {
        let item = item?;
        if kind == ValueKind::Map {
            walk(&value.get_item(&item)?, depth, left)?;
        }
        walk(&item, depth, left)?;
    }
    Ok(())
}

/// Charges the result of an operation: a string, or a list with its strings.
pub(super) fn charged(value: Value) -> Result<Value, Error> {
    match (value.as_str(), value.kind()) {
        (Some(text), _) => charge(text.len() as u64)?,
        (None, ValueKind::Seq) => {
            let texts = value.try_iter()?.map(|item| item.as_str().map_or(0, str::len) as u64);
            charge(texts.map(|bytes| bytes + ITEM_BYTES).sum())?;
        }
        _ => charge(ITEM_BYTES)?,
    }
    Ok(value)
}

/// Approximate size of a template's input, in bytes.
pub(super) fn input_bytes(value: &serde_json::Value) -> u64 {
    match value {
        serde_json::Value::String(text) => text.len() as u64,
        serde_json::Value::Array(items) => items.iter().map(input_bytes).sum::<u64>() + ITEM_BYTES,
        serde_json::Value::Object(map) => map.iter().map(|(key, item)| key.len() as u64 + input_bytes(item)).sum::<u64>() + ITEM_BYTES,
        _ => ITEM_BYTES,
    }
}
