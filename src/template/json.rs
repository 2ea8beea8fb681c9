//! The filter `tojson` as in Transformers: Python's `json.dumps`, which by default escapes neither non-ASCII characters nor HTML.

use std::fmt::Write;

use minijinja::value::{Kwargs, Serde, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use crate::budget::{MAX_OUTPUT, charged, checked_size};

/// Deepest nesting of a value. The serialiser recurses.
const MAX_DEPTH: usize = 200;
/// Longest indent, in bytes. It is written once per level for each item, and the limit on the output is only checked between items.
const MAX_INDENT: usize = 64;

struct Style {
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    ensure_ascii: bool,
    sort_keys: bool,
}

/// `json.dumps(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`
pub(super) fn tojson(value: &Value, kwargs: Kwargs) -> Result<Value, Error> {
    let indent = match kwargs.get::<Option<Value>>("indent")? {
        None => None,
        Some(v) if v.is_none() => None,
        Some(v) => match (v.as_str(), v.as_i64()) {
            (Some(text), _) if text.len() <= MAX_INDENT => Some(text.to_string()),
            (None, Some(n)) if n <= MAX_INDENT as i64 => Some(" ".repeat(usize::try_from(n).unwrap_or(0))),
            _ => return Err(failure("indent must be an integer up to 64 or a string of at most 64 bytes")),
        },
    };
    let separators = kwargs.get::<Option<Vec<String>>>("separators")?;
    let [item_separator, key_separator] = match separators.as_deref() {
        Some([item, key]) => [item.clone(), key.clone()],
        Some(_) => return Err(failure("separators must be two strings")),
        None => [if indent.is_some() { "," } else { ", " }.to_string(), ": ".to_string()],
    };
    let style = Style {
        indent,
        item_separator,
        key_separator,
        ensure_ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    kwargs.assert_all_used()?;
    checked_size(value)?;
    let mut out = String::new();
    write_value(&mut out, value, &style, 0)?;
    charged(Value::from(out))
}

/// `json.loads`, which some templates apply to the arguments of a tool call.
pub(super) fn from_json(text: &str) -> Result<Value, Error> {
    let value: serde_json::Value = serde_json::from_str(text).map_err(|e| failure(&e.to_string()))?;
    Ok(Value::from(Serde(value)))
}

fn failure(what: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("json: {what}"))
}

fn write_value(out: &mut String, value: &Value, style: &Style, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(failure("the value is nested too deeply"));
    }
    if out.len() > MAX_OUTPUT {
        return Err(failure("the value is too long"));
    }
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => write_number(out, value),
        ValueKind::String => write_string(out, value.as_str().unwrap_or_default(), style),
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.try_iter()?.checked().map(|item| item.map(|item| (None, item)));
            write_items(out, ['[', ']'], items, style, depth)?;
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, _>>()?;
            if style.sort_keys {
                keys.sort();
            }
            let items = keys.into_iter().map(|key| value.get_item(&key).map(|item| (Some(key), item)));
            write_items(out, ['{', '}'], items, style, depth)?;
        }
        kind => return Err(failure(&format!("a value of type {kind} is not JSON serializable"))),
    }
    Ok(())
}

type Item = Result<(Option<Value>, Value), Error>;

fn write_items(out: &mut String, brackets: [char; 2], items: impl Iterator<Item = Item>, style: &Style, depth: usize) -> Result<(), Error> {
    out.push(brackets[0]);
    let mut empty = true;
    for item in items {
        let (key, item) = item?;
        if !empty {
            out.push_str(&style.item_separator);
        }
        empty = false;
        new_line(out, style, depth + 1);
        if let Some(key) = key {
            write_key(out, &key, style)?;
            out.push_str(&style.key_separator);
        }
        write_value(out, &item, style, depth + 1)?;
    }
    if !empty {
        new_line(out, style, depth);
    }
    out.push(brackets[1]);
    Ok(())
}

fn new_line(out: &mut String, style: &Style, depth: usize) {
    if let Some(indent) = &style.indent {
        out.push('\n');
        for _ in 0..depth {
            out.push_str(indent);
        }
    }
}

fn write_key(out: &mut String, key: &Value, style: &Style) -> Result<(), Error> {
    match key.kind() {
        ValueKind::String => write_string(out, key.as_str().unwrap_or_default(), style),
        ValueKind::None | ValueKind::Bool | ValueKind::Number => {
            out.push('"');
            write_value(out, key, style, 0)?;
            out.push('"');
        }
        kind => return Err(failure(&format!("a key may not be a {kind}"))),
    }
    Ok(())
}

fn write_number(out: &mut String, value: &Value) {
    match f64::try_from(value.clone()) {
        Ok(number) if !value.is_integer() => write_float(out, number),
        _ => {
            let _ = write!(out, "{value}");
        }
    }
}

/// Writes a float like Python's `repr`: the shortest digits, with an exponent below 1e-4 and from 1e16 on.
fn write_float(out: &mut String, number: f64) {
    let size = number.abs();
    let _ = if number.is_nan() {
        write!(out, "NaN")
    } else if number.is_infinite() {
        write!(out, "{}Infinity", if number < 0.0 { "-" } else { "" })
    } else if size != 0.0 && !(1e-4..1e16).contains(&size) {
        let text = format!("{number:e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let sign = if exponent.starts_with('-') { '-' } else { '+' };
        write!(out, "{mantissa}e{sign}{:0>2}", exponent.trim_start_matches('-'))
    } else {
        write!(out, "{number:?}")
    };
}

fn write_string(out: &mut String, text: &str, style: &Style) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c if style.ensure_ascii && !c.is_ascii() => {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}
