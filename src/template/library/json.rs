//! Implements the filter `tojson` as in Transformers: Python's `json.dumps`, which by default escapes neither non-ASCII characters nor
//! HTML.

use std::fmt::Write;

use super::call_args::{CallArgs, flag, some, text};
use super::order::sorted;
use crate::budget::{afford, walk_over};
use crate::failure::{Fault, Outcome, type_fault, value_fault};
use crate::input::Input;
use crate::integers::parse_json;
use crate::value::{Number, Value, afford_items, drain, float_repr, repr};

/// The longest indent [bytes]. The indent is written once per level for each item.
const MAX_INDENT: usize = 64;

struct Style {
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    ensure_ascii: bool,
    sort_keys: bool,
}

/// `json.dumps(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`
pub(super) fn tojson(value: &Value, args: CallArgs) -> Outcome<Value> {
    let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
    let [ensure_ascii, indent, separators, sort_keys] = args.bind("tojson", names, 0)?;
    let indent = match some(indent) {
        None => None,
        Some(indent) => match (&indent, Number::of(&indent)) {
            (Value::Text(text), _) if text.text.len() <= MAX_INDENT => Some(text.text.to_string()),
            (_, Some(Number::Int(count))) if count <= MAX_INDENT as i64 => Some(" ".repeat(usize::try_from(count).unwrap_or(0))),
            _ => return Err(failure("indent must be an integer up to 64 or a string of at most 64 bytes")),
        },
    };
    let [item_separator, key_separator] = match some(separators) {
        Some(separators) => {
            let pair = <[Value; 2]>::try_from(drain(&separators)?).map_err(|_| value_fault("json: separators must be two strings"))?;
            [text("tojson", &pair[0])?.to_owned(), text("tojson", &pair[1])?.to_owned()]
        }
        None => [if indent.is_some() { "," } else { ", " }.to_string(), ": ".to_string()],
    };
    let (ensure_ascii, sort_keys) = (flag(ensure_ascii.as_ref()), flag(sort_keys.as_ref()));
    let style = Style { indent, item_separator, key_separator, ensure_ascii, sort_keys };
    let mut out = String::new();
    write_value(&mut out, value, &style, 0)?;
    walk_over(out.len() as u64)?;
    Value::text(out)
}

/// `json.loads`, which some templates apply to the arguments of a tool call.
pub(super) fn from_json(value: &Value, args: CallArgs) -> Outcome<Value> {
    args.none("from_json")?;
    let source = text("from_json", value)?;
    // Each item follows one of these.
    afford_items(source.bytes().filter(|byte| matches!(byte, b',' | b':' | b'[' | b'{')).count())?;
    let value = parse_json(source).map_err(|error| failure(&error))?;
    Value::of_input(&Input::of(&value))
}

fn failure(what: &str) -> Fault {
    value_fault(format!("json: {what}"))
}

fn write_value(out: &mut String, value: &Value, style: &Style, depth: usize) -> Outcome<()> {
    afford(Some(out.len() as u64))?;
    match value {
        Value::None => out.push_str("null"),
        Value::Bool(on) => out.push_str(if *on { "true" } else { "false" }),
        Value::Float(number) => out.push_str(&json_float(*number)),
        Value::Int(_) | Value::Big(_) => out.push_str(&repr(value)?),
        Value::Text(text) => {
            afford((out.len() as u64).checked_add(text.text.len() as u64))?;
            write_string(out, &text.text, style)?;
        }
        Value::List(items) | Value::Tuple(items) => {
            let items = items.items.iter().map(|item| (None, item));
            write_items(out, ['[', ']'], items, style, depth)?;
        }
        Value::Dict(dict) => {
            let pairs = dict.iter().map(|(key, item)| (Some(key), item));
            if style.sort_keys {
                let pairs = sorted(pairs.map(|(key, item)| (key.cloned().unwrap_or(Value::None), (key, item))).collect(), false)?;
                write_items(out, ['{', '}'], pairs.into_iter(), style, depth)?;
            } else {
                write_items(out, ['{', '}'], pairs, style, depth)?;
            }
        }
        _ => return Err(type_fault(format!("json: a value of type {} is not JSON serializable", value.type_name()))),
    }
    Ok(())
}

fn json_float(number: f64) -> String {
    if number.is_nan() {
        "NaN".into()
    } else if number.is_infinite() {
        if number < 0.0 { "-Infinity".into() } else { "Infinity".into() }
    } else {
        float_repr(number)
    }
}

type Item<'a> = (Option<&'a Value>, &'a Value);

fn write_items<'a>(
    out: &mut String,
    brackets: [char; 2],
    items: impl Iterator<Item = Item<'a>>,
    style: &Style,
    depth: usize,
) -> Outcome<()> {
    out.push(brackets[0]);
    let mut empty = true;
    for (key, item) in items {
        if !empty {
            out.push_str(&style.item_separator);
        }
        empty = false;
        new_line(out, style, depth + 1);
        if let Some(key) = key {
            write_key(out, key, style)?;
            out.push_str(&style.key_separator);
        }
        write_value(out, item, style, depth + 1)?;
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

fn write_key(out: &mut String, key: &Value, style: &Style) -> Outcome<()> {
    match key {
        Value::Text(text) => write_string(out, &text.text, style)?,
        Value::None | Value::Bool(_) | Value::Int(_) | Value::Big(_) | Value::Float(_) => {
            out.push('"');
            write_value(out, key, style, 0)?;
            out.push('"');
        }
        _ => return Err(type_fault(format!("json: a key may not be a {}", key.type_name()))),
    }
    Ok(())
}

fn write_string(out: &mut String, text: &str, style: &Style) -> Outcome<()> {
    out.push('"');
    for (at, c) in text.chars().enumerate() {
        // An escape is longer than its character.
        if at.is_multiple_of(4096) {
            afford(Some(out.len() as u64))?;
        }
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
            c if style.ensure_ascii && !matches!(c, ' '..='~') => {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
    Ok(())
}
