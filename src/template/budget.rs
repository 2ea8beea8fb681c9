//! The budget of one render: bounds its steps, the bytes of values that it makes and walks, and its time.
//!
//! Every operation that makes or walks values draws on the budget. Constructors of values charge what they make, and an operation that
//! multiplies its arguments first asks whether the budget can afford the product. Containers know their size, in which shared parts count
//! as often as they occur ([`crate::value::Measure`]), so a walk is charged before it begins.
//!
//! A charge is not refunded when a value is dropped, because a render is short and its budget grows with its input.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::failure::{Fault, Outcome, limit};

/// The longest output of a render [bytes].
pub(super) const MAX_OUTPUT: usize = 32 << 20;
/// A render may make `BASE_BYTES` of values plus `INPUT_COPIES` times the size of its input. Real templates copy a conversation two or
/// three times.
const BASE_BYTES: u64 = 32 << 20;
const INPUT_COPIES: u64 = 16;
/// A render may walk `BASE_WORK` bytes of values plus `INPUT_WALKS` times the size of its input. A search (`.count`, `in`) makes no values,
/// but takes about a nanosecond per byte.
const BASE_WORK: u64 = 256 << 20;
const INPUT_WALKS: u64 = 256;
/// The time limit of a render. A render takes a few milliseconds, which is far less even on a loaded machine.
const MAX_TIME: Duration = Duration::from_secs(5);
/// The approximate size of an item of a list or dict [bytes].
pub(crate) const ITEM_BYTES: u64 = 64;
/// The clock is read once per this many steps, and once per this many charged bytes.
const STEPS_PER_LOOK: u64 = 64;
const BYTES_PER_LOOK: u64 = 1 << 16;

thread_local! {
    /// The steps, the bytes to make and the bytes to walk that are left to the render on this thread, and its deadline. Outside a render,
    /// nothing is limited.
    static STEPS: Cell<u64> = const { Cell::new(u64::MAX) };
    static LEFT: Cell<u64> = const { Cell::new(u64::MAX) };
    static WORK: Cell<u64> = const { Cell::new(u64::MAX) };
    static END: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Runs a render of at most `steps` steps with the budget for an input of `input` bytes.
pub(super) fn with_budget<T>(input: u64, steps: u64, render: impl FnOnce() -> T) -> T {
    STEPS.set(steps);
    LEFT.set(BASE_BYTES.saturating_add(input.saturating_mul(INPUT_COPIES)));
    WORK.set(BASE_WORK.saturating_add(input.saturating_mul(INPUT_WALKS)));
    END.set(Some(Instant::now() + MAX_TIME));
    let result = render();
    STEPS.set(u64::MAX);
    LEFT.set(u64::MAX);
    WORK.set(u64::MAX);
    END.set(None);
    result
}

fn too_much() -> Fault {
    limit("the render makes more text than its input allows for")
}

fn check_time() -> Outcome<()> {
    match END.get() {
        Some(end) if Instant::now() > end => Err(limit(format!("the render takes more than {} s", MAX_TIME.as_secs()))),
        _ => Ok(()),
    }
}

/// Takes one step: the evaluation of one node of the syntax tree.
pub(crate) fn step() -> Outcome<()> {
    let left = STEPS.get().checked_sub(1).ok_or_else(|| limit("the render takes too many steps"))?;
    STEPS.set(left);
    if left.is_multiple_of(STEPS_PER_LOOK) { check_time() } else { Ok(()) }
}

/// Checks the time if a budget has passed a multiple of [`BYTES_PER_LOOK`].
fn look_between(before: u64, left: u64) -> Outcome<()> {
    if before / BYTES_PER_LOOK == left / BYTES_PER_LOOK { Ok(()) } else { check_time() }
}

/// Charges `bytes` of values that have already been made. If they exceed the budget, the next charge fails.
pub(crate) fn note(bytes: u64) {
    LEFT.set(LEFT.get().saturating_sub(bytes));
}

/// Charges `bytes` of new values. Fails if they exceed the budget or the time is up.
pub(crate) fn charge(bytes: u64) -> Outcome<()> {
    let before = LEFT.get();
    let left = before.checked_sub(bytes).ok_or_else(too_much)?;
    LEFT.set(left);
    look_between(before, left)
}

/// Charges the walk over `bytes` bytes of values.
pub(crate) fn walk_over(bytes: u64) -> Outcome<()> {
    let before = WORK.get();
    let left = before.checked_sub(bytes).ok_or_else(|| limit("the render searches more text than its input allows for"))?;
    WORK.set(left);
    look_between(before, left)
}

/// Charges the walk over `count` items without their contents.
pub(crate) fn walk_items(count: usize) -> Outcome<()> {
    walk_over((count as u64).saturating_mul(ITEM_BYTES))
}

/// Fails if the budget has less than `bytes` left. Called before a value is made, whose constructor then charges the budget. `None` means
/// that the size overflowed.
pub(crate) fn afford(bytes: Option<u64>) -> Outcome<()> {
    bytes.filter(|bytes| *bytes <= LEFT.get()).map(|_| ()).ok_or_else(too_much)
}

/// Like [`afford`], for `count` copies of `bytes` bytes and `rest` more bytes.
pub(crate) fn afford_copies(count: usize, bytes: usize, rest: usize) -> Outcome<()> {
    afford((count as u64).checked_mul(bytes as u64).and_then(|product| product.checked_add(rest as u64)))
}

/// The approximate size of a template's input [bytes].
pub(super) fn input_bytes(value: &serde_json::Value) -> u64 {
    match value {
        serde_json::Value::String(text) => text.len() as u64,
        serde_json::Value::Array(items) => items.iter().map(input_bytes).sum::<u64>() + ITEM_BYTES,
        serde_json::Value::Object(map) => map.iter().map(|(key, item)| key.len() as u64 + input_bytes(item)).sum::<u64>() + ITEM_BYTES,
        _ => ITEM_BYTES,
    }
}
