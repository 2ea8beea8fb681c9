//! Filters that read the items of a sequence by an attribute, a key or a test.

use std::collections::HashSet;

use super::attributes::item;
use super::call_args::{CallArgs, flag, some, text};
use super::operators::{binary, is_less};
use super::order::sorted;
use crate::budget::{afford, walk_items, walk_over};
use crate::failure::{Outcome, type_fault};
use crate::syntax::ast::Operator;
use crate::value::{Generator, Value, drain, equal, hashable, iterate, text_of};

/// Calls a test by its name.
pub(crate) type Test = fn(&str, &Value, CallArgs) -> Outcome<bool>;
/// Calls a filter by its name.
type Call<'a> = &'a dyn Fn(&str, &Value, CallArgs) -> Outcome<Value>;

/// A path of attributes and items: `a.0.b`.
struct Path(Vec<Value>);

impl Path {
    fn new(attribute: &Value) -> Outcome<Self> {
        let Some(text) = attribute.as_text() else {
            return Ok(Self(if matches!(attribute, Value::None) { Vec::new() } else { vec![attribute.clone()] }));
        };
        let part = |part: &str| match part.parse::<u32>() {
            Ok(index) if part.bytes().all(|byte| byte.is_ascii_digit()) => Ok(Value::Int(i64::from(index))),
            _ => Value::text(part),
        };
        Ok(Self(text.split('.').map(part).collect::<Outcome<_>>()?))
    }

    /// The part of `value` at the path. An undefined part becomes `default`, if one is given.
    fn get(&self, value: &Value, default: Option<&Value>) -> Outcome<Value> {
        walk_items(self.0.len())?;
        let mut found = value.clone();
        for part in &self.0 {
            found = item(&found, part)?;
            if let (true, Some(default)) = (found.is_undefined(), default) {
                found = default.clone();
            }
        }
        Ok(found)
    }
}

/// Converts a string to lower case, and leaves any other value as it is.
pub(super) fn folded(value: Value) -> Outcome<Value> {
    match value.as_text() {
        Some(text) => Value::text(text.to_lowercase()),
        None => Ok(value),
    }
}

/// The key of an item for comparisons.
fn key(value: &Value, path: &Path, default: Option<&Value>, case_sensitive: bool) -> Outcome<Value> {
    let key = path.get(value, default)?;
    if case_sensitive { Ok(key) } else { folded(key) }
}

/// The function that `map` applies to each item.
type Mapped<'a> = Box<dyn Fn(&Value) -> Outcome<Value> + 'a>;

pub(super) fn map(value: &Value, args: CallArgs, call: Call) -> Outcome<Value> {
    let failing = |fault| Generator::of("sync_do_map", std::iter::once(Err(fault)));
    if !value.truth() {
        return Generator::of("sync_do_map", std::iter::empty());
    }
    let mapped: Mapped<'_> = if args.positional.is_empty() && args.named.iter().any(|(name, _)| **name == *"attribute") {
        let [attribute, default] = args.bind("map", ["attribute", "default"], 0)?;
        let (path, default) = (Path::new(&attribute.unwrap_or(Value::None))?, some(default));
        Box::new(move |item| path.get(item, default.as_ref()))
    } else {
        let CallArgs { mut positional, named } = args;
        if positional.is_empty() {
            return failing(type_fault("`map` needs a filter or an attribute"));
        }
        let name = positional.remove(0);
        let name = text("map", &name)?.to_owned();
        Box::new(move |item| {
            walk_items(positional.len() + named.len())?;
            call(&name, item, CallArgs { positional: positional.clone(), named: named.clone() })
        })
    };
    match drain(value) {
        Ok(items) => Generator::of("sync_do_map", items.iter().map(mapped)),
        Err(fault) => failing(fault),
    }
}

/// `select`, `reject` and their variants for attributes. `flags`: whether to keep the items that pass, and whether to test an attribute.
pub(super) fn select(value: &Value, args: CallArgs, test: Test, flags: [bool; 2]) -> Outcome<Value> {
    let [keep, by_attribute] = flags;
    let name = match flags {
        [_, true] if keep => "sync_do_selectattr",
        [_, true] => "sync_do_rejectattr",
        _ if keep => "sync_do_select",
        _ => "sync_do_reject",
    };
    let failing = |fault| Generator::of(name, std::iter::once(Err(fault)));
    if !value.truth() {
        return Generator::of(name, std::iter::empty());
    }
    let items = match drain(value) {
        Ok(items) => items,
        Err(fault) => return failing(fault),
    };
    let CallArgs { mut positional, named } = args;
    if by_attribute && positional.is_empty() {
        return failing(type_fault("the name of the attribute is missing"));
    }
    let path = if by_attribute { Path::new(&positional.remove(0))? } else { Path(Vec::new()) };
    let wanted = if positional.is_empty() { None } else { Some(positional.remove(0)) };
    let passes = |item: &Value| -> Outcome<bool> {
        let value = path.get(item, None)?;
        match &wanted {
            None => Ok(value.truth()),
            Some(name) => {
                walk_items(positional.len() + named.len())?;
                test(text("select", name)?, &value, CallArgs { positional: positional.clone(), named: named.clone() })
            }
        }
    };
    let kept = items.iter().filter_map(|item| match passes(item) {
        Ok(passed) => (passed == keep).then(|| Ok(item.clone())),
        Err(fault) => Some(Err(fault)),
    });
    Generator::of(name, kept)
}

pub(super) fn sort(value: &Value, args: CallArgs) -> Outcome<Value> {
    let [reverse, case_sensitive, attribute] = args.bind("sort", ["reverse", "case_sensitive", "attribute"], 0)?;
    let attribute = attribute.unwrap_or(Value::None);
    let paths: Vec<Path> = match attribute.as_text() {
        Some(names) => names.split(',').map(|name| Path::new(&Value::text(name)?)).collect::<Outcome<_>>()?,
        None => vec![Path::new(&attribute)?],
    };
    let items = drain(value)?.into_iter().map(|item| {
        let keys: Outcome<Vec<Value>> = paths.iter().map(|path| key(&item, path, None, flag(case_sensitive.as_ref()))).collect();
        Ok((Value::list(keys?)?, item))
    });
    Value::list(sorted(items.collect::<Outcome<_>>()?, flag(reverse.as_ref()))?)
}

pub(super) fn unique(value: &Value, args: CallArgs) -> Outcome<Value> {
    let [case_sensitive, attribute] = args.bind("unique", ["case_sensitive", "attribute"], 0)?;
    let path = Path::new(&attribute.unwrap_or(Value::None))?;
    #[allow(clippy::mutable_key_type, reason = "objects are compared and hashed by their address, which does not change")]
    let mut seen = HashSet::new();
    let items = match drain(value) {
        Ok(items) => items,
        Err(fault) => return Generator::of("sync_do_unique", std::iter::once(Err(fault))),
    };
    let kept = items.iter().filter_map(|item| {
        let key = key(item, &path, None, flag(case_sensitive.as_ref())).and_then(|key| {
            walk_over(key.measure().bytes)?;
            hashable(&key).map(|()| key)
        });
        match key {
            Ok(key) => seen.insert(key).then(|| Ok(item.clone())),
            Err(fault) => Some(Err(fault)),
        }
    });
    Generator::of("sync_do_unique", kept)
}

fn extreme(what: &str, value: &Value, args: CallArgs, is_better: fn(&Value, &Value) -> Outcome<bool>) -> Outcome<Value> {
    let [case_sensitive, attribute] = args.bind(what, ["case_sensitive", "attribute"], 0)?;
    let path = Path::new(&attribute.unwrap_or(Value::None))?;
    let mut best: Option<(Value, Value)> = None;
    for item in drain(value)? {
        let key = key(&item, &path, None, flag(case_sensitive.as_ref()))?;
        let wins = match &best {
            None => true,
            Some((old, _)) => is_better(&key, old)?,
        };
        if wins {
            best = Some((key, item));
        }
    }
    Ok(best.map_or_else(|| Value::undefined_because("the sequence is empty"), |(_, item)| item))
}

pub(super) fn min(value: &Value, args: CallArgs) -> Outcome<Value> {
    extreme("min", value, args, is_less)
}

pub(super) fn max(value: &Value, args: CallArgs) -> Outcome<Value> {
    extreme("max", value, args, |a, b| is_less(b, a))
}

pub(super) fn sum(value: &Value, args: CallArgs) -> Outcome<Value> {
    let [attribute, start] = args.bind("sum", ["attribute", "start"], 0)?;
    let path = Path::new(&attribute.unwrap_or(Value::None))?;
    let mut total = start.unwrap_or(Value::Int(0));
    if matches!(total, Value::Text(_)) {
        return Err(type_fault("`sum` does not add strings: use `join`"));
    }
    for item in drain(value)? {
        total = binary(Operator::Add, &total, &path.get(&item, None)?)?;
    }
    Ok(total)
}

pub(super) fn groupby(value: &Value, args: CallArgs) -> Outcome<Value> {
    let [attribute, default, case_sensitive] = args.bind("groupby", ["attribute", "default", "case_sensitive"], 1)?;
    let (path, default) = (Path::new(&attribute.unwrap_or(Value::None))?, some(default));
    let case_sensitive = flag(case_sensitive.as_ref());
    let items = drain(value)?.into_iter().map(|item| {
        let key = key(&item, &path, default.as_ref(), case_sensitive)?;
        Ok((key.clone(), (key, item)))
    });
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for (key, item) in sorted(items.collect::<Outcome<_>>()?, false)? {
        match groups.last_mut() {
            Some((known, group)) if equal(known, &key)? => group.push(item),
            _ => groups.push((key, vec![item])),
        }
    }
    let pairs = groups.into_iter().map(|(key, group)| {
        // The name of a group is that of its first item, in that item's own case.
        let shown = if case_sensitive { key } else { path.get(&group[0], default.as_ref())? };
        Value::group(shown, group)
    });
    Value::list(pairs.collect::<Outcome<_>>()?)
}

pub(super) fn join(value: &Value, args: CallArgs) -> Outcome<Value> {
    let [separator, attribute] = args.bind("join", ["d", "attribute"], 0)?;
    let items = iterate(value)?.ok_or_else(|| type_fault(format!("a value of type {} cannot be joined", value.type_name())))?;
    let path = Path::new(&attribute.unwrap_or(Value::None))?;
    let separator = separator.map_or(Ok(String::new()), |separator| text_of(&separator))?;
    crate::budget::afford_copies(items.len().saturating_sub(1), separator.len(), 0)?;
    walk_items(items.len())?;
    let mut out = String::new();
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            out.push_str(&separator);
        }
        let part = text_of(&path.get(item, None)?)?;
        afford(Some((out.len() + part.len()) as u64))?;
        out.push_str(&part);
    }
    Value::text(out)
}
