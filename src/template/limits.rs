//! What one render may hold and how long it may take. Minijinja bounds a render's steps, not what a step makes; so everything that makes or
//! walks large values is led through here (see `edit`): texts and lists are charged when they are made, and nothing is walked that is
//! larger than what may still be charged, however often its parts are shared.
//!
//! What is charged is not given back when a value dies: a render is short, and its budget grows with its input.

use std::cell::Cell;
use std::time::{Duration, Instant};

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

/// Bytes that a render may make, beside so many times its input: real templates copy a conversation two or three times.
const BASE: u64 = 32 << 20;
const INPUTS: u64 = 16;
/// A render takes some milliseconds; this is far beyond what a loaded machine makes of that.
const TIME: Duration = Duration::from_secs(20);
/// About what an item of a list or a map takes.
const ITEM: u64 = 64;
/// Values nested deeper are refused where they are walked, as the walkers recurse.
const MAX_DEPTH: usize = 200;

#[derive(Clone, Copy)]
struct Budget {
    left: u64,
    end: Instant,
}

thread_local! {
    /// Of the render that runs on this thread.
    static BUDGET: Cell<Option<Budget>> = const { Cell::new(None) };
}

/// Runs a render whose input has `input` bytes.
pub(super) fn within<T>(input: u64, render: impl FnOnce() -> T) -> T {
    let left = BASE.saturating_add(input.saturating_mul(INPUTS));
    BUDGET.set(Some(Budget { left, end: Instant::now() + TIME }));
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

/// Takes `bytes` off the budget.
pub(super) fn charge(bytes: u64) -> Result<(), Error> {
    let Some(budget) = BUDGET.get() else { return Ok(()) };
    let left = budget.left.checked_sub(bytes).ok_or_else(too_much)?;
    if Instant::now() > budget.end {
        return Err(failure(format!("the render takes more than {} s", TIME.as_secs())));
    }
    BUDGET.set(Some(Budget { left, ..budget }));
    Ok(())
}

/// Refuses to make so many bytes before they are made; they are charged once they are there.
pub(super) fn afford(bytes: Option<u64>) -> Result<(), Error> {
    let left = BUDGET.get().map_or(u64::MAX, |budget| budget.left);
    bytes.filter(|bytes| *bytes <= left).map(|_| ()).ok_or_else(too_much)
}

/// The size of what walking a value goes through, shared parts as often as they are met; an error where that is more than the budget has
/// left.
pub(super) fn bounded(value: &Value) -> Result<u64, Error> {
    let mut left = BUDGET.get().map_or(u64::MAX, |budget| budget.left);
    let before = left;
    walk(value, MAX_DEPTH, &mut left)?;
    Ok(before - left)
}

fn walk(value: &Value, depth: usize, left: &mut u64) -> Result<(), Error> {
    let text = value.as_str().map_or(0, |text| text.len() as u64);
    *left = left.checked_sub(ITEM + text).ok_or_else(too_much)?;
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

/// Charges what an operation made: a text, or a list and the texts that stand in it.
pub(super) fn made(value: Value) -> Result<Value, Error> {
    match (value.as_str(), value.kind()) {
        (Some(text), _) => charge(text.len() as u64)?,
        (None, ValueKind::Seq) => {
            let texts = value.try_iter()?.map(|item| item.as_str().map_or(0, str::len) as u64);
            charge(texts.map(|bytes| bytes + ITEM).sum())?;
        }
        _ => charge(ITEM)?,
    }
    Ok(value)
}

/// About what a template's input takes.
pub(super) fn input_bytes(value: &serde_json::Value) -> u64 {
    match value {
        serde_json::Value::String(text) => text.len() as u64,
        serde_json::Value::Array(items) => items.iter().map(input_bytes).sum::<u64>() + ITEM,
        serde_json::Value::Object(map) => map.iter().map(|(key, item)| key.len() as u64 + input_bytes(item)).sum::<u64>() + ITEM,
        _ => ITEM,
    }
}
