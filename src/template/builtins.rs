//! The functions that [`crate::instrument`] inserts into a template, and minijinja's filters and tests, all drawing on the budget.

use minijinja::value::{Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value, escape_formatter, filters, tests};

use crate::budget::{afford, charge, charged, checked_size, failure, scan};
use crate::instrument::PREFIX;

/// Adds the functions, filters and tests to an environment.
pub(super) fn add_to(env: &mut Environment<'static>) {
    env.set_formatter(|out, state, value| {
        charge(checked_size(value)?)?;
        escape_formatter(out, state, value)
    });
    // `debug` prints the whole state, whose size has no limit.
    env.remove_global("debug");
    env.add_function(format!("{PREFIX}add"), |values: Rest<Value>| fold(&values, add));
    env.add_function(format!("{PREFIX}mul"), |values: Rest<Value>| fold(&values, mul));
    env.add_function(format!("{PREFIX}concat"), |values: Rest<Value>| concat(&values));
    env.add_filter(format!("{PREFIX}charge"), charged);
    env.add_filter(format!("{PREFIX}check"), |value: Value| checked_size(&value).map(|_| value));
    env.add_filter(format!("{PREFIX}scan"), |value: Value| scan(&value).map(|()| value));
    env.add_filter(format!("{PREFIX}loop"), charge_loop);
    add_filters(env);
    let comparisons: [(&[&'static str], Value); 7] = [
        (&["eq", "equalto", "=="], Value::from_function(tests::is_eq)),
        (&["ne", "!="], Value::from_function(tests::is_ne)),
        (&["lt", "lessthan", "<"], Value::from_function(tests::is_lt)),
        (&["le", "<="], Value::from_function(tests::is_le)),
        (&["gt", "greaterthan", ">"], Value::from_function(tests::is_gt)),
        (&["ge", ">="], Value::from_function(tests::is_ge)),
        (&["in"], Value::from_function(tests::is_in)),
    ];
    for (names, test) in comparisons {
        for name in names {
            let test = test.clone();
            env.add_test(*name, move |state: &mut State, args: Rest<Value>| -> Result<bool, Error> {
                args.first().map(checked_size).transpose()?;
                if name == &"in" {
                    args.get(1).map(checked_size).transpose()?;
                }
                test.call(state, &args).map(|outcome| outcome.is_true())
            });
        }
    }
}

/// How the cost of a filter depends on the sizes of its arguments.
#[derive(Clone, Copy, PartialEq)]
enum Cost {
    /// Proportional to the length of the argument: the filter does not walk what the argument holds.
    Shallow,
    /// Proportional to the sum of the sizes.
    Deep,
    /// Proportional to a product of sizes, which [`check_product`] computes.
    Product,
}

fn add_filters(env: &mut Environment<'static>) {
    use Cost::{Deep, Product, Shallow};
    macro_rules! table {
        ($($cost:ident: $($name:ident),*;)*) => { [$($((stringify!($name), $cost, Value::from_function(filters::$name))),*),*] };
    }
    let named = table! {
        Shallow: safe, length, items, default, attr, first, last, bool, int, float, abs, round;
        Deep: escape, lower, upper, title, capitalize, dictsort, reverse, trim, split, lines, min, max, sort, list, string, sum, select,
            reject, selectattr, rejectattr, map, groupby, unique, chain, zip, pprint;
        Product: replace, join, batch, slice, indent, format;
    };
    let alias = |name: &str, cost, filter: &Value| (name.to_owned(), cost, filter.clone());
    let mut all = Vec::new();
    for (name, cost, filter) in &named {
        all.push(alias(name, *cost, filter));
        match *name {
            "escape" => all.push(alias("e", *cost, filter)),
            "length" => all.push(alias("count", *cost, filter)),
            "default" => all.push(alias("d", *cost, filter)),
            _ => {}
        }
    }
    for (name, cost, filter) in all {
        env.add_filter(name.clone(), move |state: &mut State, args: Rest<Value>| -> Result<Value, Error> {
            match cost {
                Shallow => args.first().map_or(Ok(()), scan)?,
                Deep | Product => args.iter().try_for_each(|arg| checked_size(arg).map(|_| ()))?,
            }
            if cost == Product {
                check_product(&name, &args)?;
            }
            let value = filter.call(state, &args)?;
            if cost == Shallow { Ok(value) } else { charged(value) }
        });
    }
}

/// Fails if a filter, or a method of strings of the same name, would multiply its arguments into more bytes than the budget has left.
pub(super) fn check_product(name: &str, args: &[Value]) -> Result<(), Error> {
    let text = |at: usize| args.get(at).and_then(Value::as_str).unwrap_or_default();
    let len = |value: &Value| value.as_str().map(str::len).or_else(|| value.len()).unwrap_or(0) as u64;
    let own = args.first().map_or(Ok(0), checked_size)?;
    match name {
        "replace" => {
            let (old, new) = (text(1), text(2).len() as u64);
            let times = if old.is_empty() { text(0).chars().count() as u64 + 1 } else { text(0).matches(old).count() as u64 };
            afford(times.checked_mul(new).and_then(|bytes| bytes.checked_add(own)))
        }
        // The separator is the first argument of the method, but the second one of the filter.
        "join" => {
            let (items, between) = match args {
                [list, ..] if list.as_str().is_none() => (list, args.get(1).map_or(0, len)),
                [between, list, ..] => (list, len(between)),
                _ => return Ok(()),
            };
            let count = items.len().unwrap_or_else(|| items.try_iter().map_or(0, Iterator::count)) as u64;
            afford(count.checked_mul(between).and_then(|bytes| bytes.checked_add(own)))
        }
        "indent" => {
            let width = args.get(1).map_or(4, |width| width.as_i64().map_or_else(|| len(width), |count| count.max(0) as u64));
            let named =
                args.iter().filter_map(|arg| arg.get_attr("width").ok()).filter_map(|width| width.as_i64()).max().unwrap_or(0) as u64;
            let lines = text(0).matches('\n').count() as u64 + 1;
            afford(lines.checked_mul(width.max(named)).and_then(|bytes| bytes.checked_add(own)))
        }
        "batch" | "slice" => afford(args.get(1).and_then(Value::as_i64).and_then(|count| u64::try_from(count).ok()?.checked_mul(64))),
        // A width is written in the pattern, or is an argument if the pattern contains `*`.
        "format" => {
            let digits = text(0).as_bytes().split(|byte| !byte.is_ascii_digit()).map(<[u8]>::len).max().unwrap_or(0);
            let wide = args.iter().skip(1).filter_map(Value::as_i64).any(|number| number.unsigned_abs() > 1 << 16) && text(0).contains('*');
            if digits > 4 || wide { Err(failure("a format's width is too large")) } else { Ok(()) }
        }
        _ => Ok(()),
    }
}

/// Charges a loop over `value`. `raw`: bytes of literal text that each pass prints into a value.
fn charge_loop(value: Value, raw: u64) -> Result<Value, Error> {
    let count = match value.as_str() {
        Some(text) => text.len() as u64,
        None => value.len().unwrap_or(0) as u64,
    };
    let each = if value.as_str().is_some() { raw.saturating_add(64) } else { raw };
    charge(count.saturating_mul(each))?;
    Ok(value)
}

fn fold(values: &[Value], operation: fn(&Value, &Value) -> Result<Value, Error>) -> Result<Value, Error> {
    let mut values = values.iter();
    let first = values.next().cloned().unwrap_or_default();
    values.try_fold(first, |left, right| charged(operation(&left, right)?))
}

fn unsupported(sign: char, a: &Value, b: &Value) -> Error {
    failure(format!("tried to use {sign} operator on unsupported types {} and {}", a.kind(), b.kind()))
}

fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

/// Adds or multiplies numbers like minijinja: integers with 128 bits, other numbers as floats.
fn numbers(sign: char, a: &Value, b: &Value) -> Result<Value, Error> {
    let is_float = |value: &Value| value.kind() == ValueKind::Number && !value.is_integer();
    if let (Ok(x), Ok(y)) = (i128::try_from(a.clone()), i128::try_from(b.clone()))
        && !is_float(a)
        && !is_float(b)
    {
        let result = if sign == '+' { x.checked_add(y) } else { x.checked_mul(y) };
        let result = result.ok_or_else(|| failure(format!("unable to calculate {a} {sign} {b}")))?;
        return Ok(i64::try_from(result).map_or_else(|_| Value::from(result), Value::from));
    }
    match (f64::try_from(a.clone()), f64::try_from(b.clone())) {
        (Ok(x), Ok(y)) => Ok(Value::from(if sign == '+' { x + y } else { x * y })),
        _ => Err(unsupported(sign, a, b)),
    }
}

fn add(a: &Value, b: &Value) -> Result<Value, Error> {
    if let (Some(left), Some(right)) = (a.as_str(), b.as_str()) {
        afford(Some((left.len() + right.len()) as u64))?;
        return Ok(match (a.is_safe(), b.is_safe()) {
            (false, false) => Value::from([left, right].concat()),
            // Like Jinja's Markup: the operand that is not safe is escaped.
            (true, false) => Value::from_safe_string([left, &escaped(right)].concat()),
            (false, true) => Value::from_safe_string([&escaped(left), right].concat()),
            (true, true) => Value::from_safe_string([left, right].concat()),
        });
    }
    if is_list(a) && is_list(b) && a.is_tuple() == b.is_tuple() {
        afford(Some(((a.len().unwrap_or(0) + b.len().unwrap_or(0)) as u64).saturating_mul(64)))?;
        let items = a.try_iter()?.checked().chain(b.try_iter()?.checked()).collect::<Result<Vec<Value>, Error>>()?;
        return Ok(if a.is_tuple() { Value::from(minijinja::value::Tuple::from(items)) } else { Value::from(items) });
    }
    numbers('+', a, b)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('\'', "&#39;").replace('"', "&#34;")
}

fn mul(a: &Value, b: &Value) -> Result<Value, Error> {
    let (many, count) = if a.as_str().is_some() || is_list(a) { (a, b) } else { (b, a) };
    let times = || {
        let whole = Error::new(ErrorKind::InvalidOperation, "a string or list can only be multiplied by an integer");
        count.as_i64().map(|count| count.max(0) as u64).ok_or(whole)
    };
    if let Some(text) = many.as_str() {
        let times = times()?;
        afford(times.checked_mul(text.len() as u64))?;
        return Ok(Value::from(text.repeat(times as usize)));
    }
    if is_list(many) {
        let (times, items) = (times()?, many.try_iter()?.checked().collect::<Result<Vec<Value>, Error>>()?);
        afford(times.checked_mul(items.len() as u64 * 64))?;
        return Ok(Value::from_iter(std::iter::repeat_n(items, times as usize).flatten()));
    }
    numbers('*', a, b)
}

fn concat(values: &[Value]) -> Result<Value, Error> {
    let mut out = String::new();
    for value in values {
        match value.as_str() {
            Some(text) => {
                afford(Some((out.len() + text.len()) as u64))?;
                out.push_str(text);
            }
            None => {
                afford(checked_size(value)?.checked_add(out.len() as u64))?;
                out.push_str(&value.to_string());
            }
        }
    }
    charged(Value::from(out))
}
