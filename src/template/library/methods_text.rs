//! Methods of strings.

use super::call_args::{CallArgs, int, int_or, some, text};
use super::cases::{capitalize, casefold, question, swapcase, title};
use super::entities::unescape;
use super::html::strip_tags;
use super::markup::escaped;
use super::splitting::{partition, split, splitlines};
use super::str_format::{format, format_map};
use crate::budget::{afford_copies, walk_over};
use crate::failure::{Outcome, type_fault, value_fault};
use crate::syntax::chars::is_space;
use crate::value::{Number, Text, Value, drain};

pub(super) fn text_method(own: &Text, name: &'static str, args: CallArgs) -> Outcome<Value> {
    walk_over(own.text.len() as u64)?;
    if let Some(answer) = question(name, &own.text) {
        return args.none(name).map(|()| Value::Bool(answer));
    }
    match name {
        "format" => format(own, &args),
        "format_map" => {
            let [map] = args.bind(name, [""], 1)?;
            format_map(own, &map.unwrap_or(Value::None))
        }
        "split" => split(own, args, false),
        "rsplit" => split(own, args, true),
        "splitlines" => splitlines(own, args),
        "partition" => partition(own, args, false),
        "rpartition" => partition(own, args, true),
        "strip" | "lstrip" | "rstrip" => strip(own, name, args),
        "startswith" | "endswith" => begins_or_ends(own, name, args),
        "find" | "rfind" | "index" | "rindex" | "count" => search(own, name, args),
        "center" | "ljust" | "rjust" => justify(own, name, args),
        "zfill" => zfill(own, args),
        "expandtabs" => expandtabs(own, args),
        "replace" => {
            let [old, new, count] = args.bind(name, ["", "", ""], 2)?;
            let (old, new) = (old.unwrap_or(Value::None), new.unwrap_or(Value::None));
            let new = if own.safe { Value::marked(escaped(&new)?, true)? } else { new };
            let count = int_or(name, count.as_ref(), -1)?;
            Value::marked(replace(&own.text, text(name, &old)?, text(name, &new)?, count)?, own.safe)
        }
        "join" => {
            let [items] = args.bind(name, [""], 1)?;
            join(own, &items.unwrap_or(Value::None))
        }
        "removeprefix" | "removesuffix" => {
            let [part] = args.bind(name, [""], 1)?;
            let part = part.unwrap_or(Value::None);
            let part = text(name, &part)?;
            let cut = if name == "removeprefix" { own.text.strip_prefix(part) } else { own.text.strip_suffix(part) };
            Value::marked(cut.unwrap_or(&own.text), own.safe)
        }
        "translate" => translate(own, args),
        "maketrans" => maketrans(args),
        "encode" => Err(type_fault("`encode` gives bytes, which templates do not have")),
        _ => cased(own, name, args),
    }
}

/// Fails unless the budget can afford the text in another case, in which one character may become three.
pub(super) fn afford_case(text: &str) -> Outcome<()> {
    afford_copies(text.len(), if text.is_ascii() { 1 } else { 3 }, 0)
}

fn cased(own: &Text, name: &str, args: CallArgs) -> Outcome<Value> {
    args.none(name)?;
    afford_case(&own.text)?;
    let changed = match name {
        "upper" => own.text.to_uppercase(),
        "lower" => own.text.to_lowercase(),
        "capitalize" => capitalize(&own.text),
        "title" => title(&own.text),
        "swapcase" => swapcase(&own.text),
        "casefold" => casefold(&own.text),
        "striptags" => return Value::text(strip_tags(&own.text)),
        "unescape" => return Value::text(unescape(&own.text)),
        _ => return Err(type_fault(format!("a string has no method `{name}`"))),
    };
    Value::marked(changed, own.safe)
}

/// Strips the characters in `chars`, or white space, from the ends of `text`. `ends`: whether to strip the left and the right end.
pub(super) fn stripped<'a>(text: &'a str, chars: Option<&str>, ends: [bool; 2]) -> Outcome<&'a str> {
    let mut cut = text;
    let set = chars.unwrap_or_default();
    // Each character is searched for in the set.
    walk_over((text.len() as u64).saturating_mul(set.len() as u64 / 16))?;
    let goes = |c: char| if chars.is_some() { set.contains(c) } else { is_space(c) };
    if ends[0] {
        cut = cut.trim_start_matches(goes);
    }
    if ends[1] {
        cut = cut.trim_end_matches(goes);
    }
    Ok(cut)
}

fn strip(own: &Text, name: &str, args: CallArgs) -> Outcome<Value> {
    let [chars] = args.bind(name, [""], 0)?;
    let chars = some(chars);
    let chars = chars.as_ref().map(|chars| text(name, chars)).transpose()?;
    Value::marked(stripped(&own.text, chars, [name != "rstrip", name != "lstrip"])?, own.safe)
}

/// The part of a string between two indices of characters, and the number of characters before it. `None` if the start is after the end.
fn between<'a>(own: &'a str, what: &str, start: Option<Value>, stop: Option<Value>) -> Outcome<Option<(&'a str, usize)>> {
    let (start, stop) = (some(start), some(stop));
    if start.is_none() && stop.is_none() {
        return Ok(Some((own, 0)));
    }
    let length = own.chars().count() as i64;
    let absolute = |at: i64| if at < 0 { at.saturating_add(length).max(0) } else { at };
    let start = absolute(int_or(what, start.as_ref(), 0)?);
    let stop = absolute(int_or(what, stop.as_ref(), i64::MAX)?).min(length);
    if start > stop || start > length {
        return Ok(None);
    }
    let byte = |at: i64| own.char_indices().nth(at as usize).map_or(own.len(), |(at, _)| at);
    Ok(Some((&own[byte(start)..byte(stop)], start as usize)))
}

fn begins_or_ends(own: &Text, name: &str, args: CallArgs) -> Outcome<Value> {
    let [wanted, start, stop] = args.bind(name, ["", "", ""], 1)?;
    let wanted = wanted.unwrap_or(Value::None);
    let part = between(&own.text, name, start, stop)?;
    let holds = |wanted: &Value| -> Outcome<bool> {
        let wanted = text(name, wanted)?;
        walk_over(wanted.len() as u64)?;
        Ok(part.is_some_and(|(part, _)| if name == "startswith" { part.starts_with(wanted) } else { part.ends_with(wanted) }))
    };
    let Value::Tuple(all) = &wanted else { return Ok(Value::Bool(holds(&wanted)?)) };
    for one in &all.items {
        if holds(one)? {
            return Ok(Value::Bool(true));
        }
    }
    Ok(Value::Bool(false))
}

fn search(own: &Text, name: &str, args: CallArgs) -> Outcome<Value> {
    let [wanted, start, stop] = args.bind(name, ["", "", ""], 1)?;
    let wanted = wanted.unwrap_or(Value::None);
    let wanted = text(name, &wanted)?;
    let part = between(&own.text, name, start, stop)?;
    if name == "count" {
        let count = part.map_or(0, |(part, _)| if wanted.is_empty() { part.chars().count() + 1 } else { part.matches(wanted).count() });
        return Ok(count.into());
    }
    let found = part.and_then(|(part, before)| {
        let at = if name.starts_with('r') { part.rfind(wanted) } else { part.find(wanted) };
        at.map(|at| before + part[..at].chars().count())
    });
    match found {
        Some(at) => Ok(at.into()),
        None if name.ends_with("find") => Ok(Value::Int(-1)),
        None => Err(value_fault(format!("`{name}`: the string does not hold the text"))),
    }
}

fn pad(fill: char, count: usize) -> String {
    fill.to_string().repeat(count)
}

/// Implements `str.center`. If the number of blanks is odd, the larger half is on the left if the width is odd.
pub(super) fn centered(own: &str, width: i64, fill: char) -> Outcome<String> {
    let length = own.chars().count();
    let missing = usize::try_from(width).unwrap_or(0).saturating_sub(length);
    afford_copies(missing, fill.len_utf8(), own.len())?;
    let left = missing / 2 + (missing & 1 & (length + missing));
    Ok(format!("{}{own}{}", pad(fill, left), pad(fill, missing - left)))
}

fn justify(own: &Text, name: &str, args: CallArgs) -> Outcome<Value> {
    let [width, fill] = args.bind(name, ["", ""], 1)?;
    let width = int(name, &width.unwrap_or(Value::None))?;
    let fill = match &fill {
        None => ' ',
        Some(fill) => {
            let mut chars = text(name, fill)?.chars();
            match (chars.next(), chars.next()) {
                (Some(fill), None) => fill,
                _ => return Err(type_fault(format!("`{name}` fills with a single character"))),
            }
        }
    };
    if name == "center" {
        return Value::marked(centered(&own.text, width, fill)?, own.safe);
    }
    let missing = usize::try_from(width).unwrap_or(0).saturating_sub(own.text.chars().count());
    afford_copies(missing, fill.len_utf8(), own.text.len())?;
    let blank = pad(fill, missing);
    Value::marked(if name == "ljust" { format!("{}{blank}", own.text) } else { format!("{blank}{}", own.text) }, own.safe)
}

fn zfill(own: &Text, args: CallArgs) -> Outcome<Value> {
    let [width] = args.bind("zfill", [""], 1)?;
    let width = usize::try_from(int("zfill", &width.unwrap_or(Value::None))?).unwrap_or(0);
    let missing = width.saturating_sub(own.text.chars().count());
    afford_copies(missing, 1, own.text.len())?;
    let (sign, digits) = own.text.split_at(usize::from(own.text.starts_with(['+', '-'])));
    Value::marked(format!("{sign}{}{digits}", pad('0', missing)), own.safe)
}

fn expandtabs(own: &Text, args: CallArgs) -> Outcome<Value> {
    let [size] = args.bind("expandtabs", ["tabsize"], 0)?;
    let size = usize::try_from(int_or("expandtabs", size.as_ref(), 8)?).unwrap_or(0);
    afford_copies(own.text.matches('\t').count(), size, own.text.len())?;
    let (mut out, mut column) = (String::with_capacity(own.text.len()), 0);
    for c in own.text.chars() {
        match c {
            '\t' => {
                let blank = if size == 0 { 0 } else { size - column % size };
                out.push_str(&pad(' ', blank));
                column += blank;
            }
            '\n' | '\r' => {
                out.push(c);
                column = 0;
            }
            c => {
                out.push(c);
                column += 1;
            }
        }
    }
    Value::marked(out, own.safe)
}

/// `text.replace(old, new, count)`. A negative count means no limit.
pub(super) fn replace(own: &str, old: &str, new: &str, count: i64) -> Outcome<String> {
    walk_over(own.len() as u64)?;
    let most = usize::try_from(count).unwrap_or(usize::MAX);
    let times = if old.is_empty() { own.chars().count() + 1 } else { own.matches(old).count() };
    afford_copies(times.min(most), new.len(), own.len())?;
    Ok(own.replacen(old, new, most))
}

fn join(own: &Text, items: &Value) -> Outcome<Value> {
    let items = drain(items)?;
    afford_copies(items.len().saturating_sub(1), own.text.len(), 0)?;
    let mut out = String::new();
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            out.push_str(&own.text);
        }
        let wrong = || type_fault(format!("`join` needs strings, item {at} is {}", item.type_name()));
        let part = item.as_text().ok_or_else(wrong)?;
        crate::budget::afford(Some((out.len() + part.len()) as u64))?;
        if own.safe { out.push_str(&escaped(item)?) } else { out.push_str(part) }
    }
    Value::marked(out, own.safe)
}

/// `translate` with a dict from characters' codes to codes, strings or none.
fn translate(own: &Text, args: CallArgs) -> Outcome<Value> {
    let [table] = args.bind("translate", [""], 1)?;
    let Some(Value::Dict(table)) = table else { return Err(type_fault("`translate` needs a dict")) };
    let mut out = String::new();
    for c in own.text.chars() {
        match table.get(&Value::Int(i64::from(c as u32)))? {
            None => out.push(c),
            Some(Value::None) => {}
            Some(Value::Text(text)) => {
                crate::budget::afford(Some((out.len() + text.text.len()) as u64))?;
                out.push_str(&text.text);
            }
            Some(code) => {
                let code = Number::of(code).and_then(|code| u32::try_from(code.big()?).ok()).and_then(char::from_u32);
                out.push(code.ok_or_else(|| type_fault("`translate` needs the codes of characters, strings or none"))?);
            }
        }
    }
    Value::marked(out, own.safe)
}

/// The table of `translate`, made from a dict, or from two strings of the same length and the characters to remove.
fn maketrans(args: CallArgs) -> Outcome<Value> {
    let [from, to, gone] = args.bind("maketrans", ["", "", ""], 1)?;
    let code = |c: char| Value::Int(i64::from(c as u32));
    if let (Some(Value::Dict(dict)), None) = (&from, &to) {
        let pairs = dict.iter().map(|(key, value)| match key.as_text() {
            None => Ok((key.clone(), value.clone())),
            Some(key) if key.chars().count() == 1 => Ok((key.chars().next().map_or(Value::None, code), value.clone())),
            Some(_) => Err(value_fault("the keys of `maketrans` must be single characters")),
        });
        return Value::dict(pairs.collect::<Outcome<Vec<_>>>()?);
    }
    let (from, to) = (from.unwrap_or(Value::None), to.unwrap_or(Value::None));
    let (from, to) = (text("maketrans", &from)?, text("maketrans", &to)?);
    if from.chars().count() != to.chars().count() {
        return Err(value_fault("`maketrans` needs two strings of the same length"));
    }
    let gone = gone.unwrap_or(Value::text("")?);
    let gone = text("maketrans", &gone)?.chars().map(|c| (code(c), Value::None));
    Value::dict(from.chars().zip(to.chars()).map(|(a, b)| (code(a), code(b))).chain(gone))
}
