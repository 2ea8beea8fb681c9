//! Implements `split`, `rsplit`, `splitlines` and `partition`.

use super::call_args::{CallArgs, flag, int_or, some, text};
use crate::budget::walk_items;
use crate::failure::{Outcome, value_fault};
use crate::syntax::chars::is_space;
use crate::value::{Text, Value, afford_items};

/// Whether Python's `splitlines` ends a line at the character.
fn ends_line(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// The lines of a text, with or without their line breaks.
pub(super) fn lines(text: &str, keep: bool) -> Outcome<Vec<&str>> {
    afford_items(text.chars().filter(|c| ends_line(*c)).count())?;
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((at, end)) = rest.char_indices().find(|(_, c)| ends_line(*c)) {
        let length = if rest[at..].starts_with("\r\n") { 2 } else { end.len_utf8() };
        found.push(&rest[..if keep { at + length } else { at }]);
        rest = &rest[at + length..];
    }
    if !rest.is_empty() {
        found.push(rest);
    }
    Ok(found)
}

fn list(parts: Vec<&str>, safe: bool) -> Outcome<Value> {
    walk_items(parts.len())?;
    Value::list(parts.into_iter().map(|part| Value::marked(part, safe)).collect::<Outcome<_>>()?)
}

pub(super) fn splitlines(receiver: &Text, args: CallArgs) -> Outcome<Value> {
    let [keep] = args.bind("splitlines", ["keepends"], 0)?;
    list(lines(&receiver.text, flag(keep.as_ref()))?, receiver.safe)
}

/// `split`, or `rsplit` from the right.
pub(super) fn split(receiver: &Text, args: CallArgs, right: bool) -> Outcome<Value> {
    let what = if right { "rsplit" } else { "split" };
    let [separator, most] = args.bind(what, ["sep", "maxsplit"], 0)?;
    let most = usize::try_from(int_or(what, most.as_ref(), -1)?).unwrap_or(usize::MAX);
    let own = &*receiver.text;
    crate::budget::walk_over(own.len() as u64)?;
    let parts = match some(separator) {
        None => {
            afford_items(own.split(is_space).filter(|word| !word.is_empty()).count().min(most))?;
            by_space(own, most, right)
        }
        Some(separator) => {
            let separator = text(what, &separator)?.to_owned();
            if separator.is_empty() {
                return Err(value_fault("the separator is empty"));
            }
            afford_items(own.matches(&*separator).count().min(most))?;
            let most = most.saturating_add(1);
            let parts: Vec<&str> = if right { own.rsplitn(most, &*separator).collect() } else { own.splitn(most, &*separator).collect() };
            return list(if right { parts.into_iter().rev().collect() } else { parts }, receiver.safe);
        }
    };
    list(parts, receiver.safe)
}

/// The words between white space. After `most` words, or before them if `right`, the rest stays whole.
fn by_space(text: &str, most: usize, right: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text;
    loop {
        rest = if right { rest.trim_end_matches(is_space) } else { rest.trim_start_matches(is_space) };
        if rest.is_empty() {
            break;
        }
        let cut = if right { rest.rfind(is_space) } else { rest.find(is_space) };
        let Some(at) = cut.filter(|_| parts.len() < most) else {
            parts.push(rest);
            break;
        };
        let behind = at + rest[at..].chars().next().map_or(0, char::len_utf8);
        parts.push(if right { &rest[behind..] } else { &rest[..at] });
        rest = if right { &rest[..at] } else { &rest[behind..] };
    }
    if right {
        parts.reverse();
    }
    parts
}

/// `partition`, or `rpartition` from the right.
pub(super) fn partition(receiver: &Text, args: CallArgs, right: bool) -> Outcome<Value> {
    let [separator] = args.bind("partition", [""], 1)?;
    let separator = separator.unwrap_or(Value::None);
    let separator = text("partition", &separator)?;
    if separator.is_empty() {
        return Err(value_fault("the separator is empty"));
    }
    let own = &*receiver.text;
    crate::budget::walk_over(own.len() as u64)?;
    let found = if right { own.rsplit_once(separator) } else { own.split_once(separator) };
    let parts = match found {
        Some((head, tail)) => [head, separator, tail],
        None if right => ["", "", own],
        None => [own, "", ""],
    };
    Value::tuple(parts.into_iter().map(|part| Value::marked(part, receiver.safe)).collect::<Outcome<_>>()?)
}
