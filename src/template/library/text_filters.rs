//! Filters of strings.

use super::call_args::{CallArgs, defined, flag, int_or, some, text};
use super::cases;
use super::html::strip_tags;
use super::markup::{escape as escape_text, escaped};
use super::methods_text::{afford_case, centered, replace as replace_text, stripped};
use super::percent::percent;
use super::splitting::lines;
use crate::budget::{afford, afford_copies, walk_over};
use crate::failure::{Outcome, type_fault, value_fault};
use crate::syntax::chars::{is_space, is_word};
use crate::value::{Text, Value, drain, text_of};

/// The value if it is a string, or else its text.
pub(super) fn soft(value: &Value) -> Outcome<Text> {
    match value {
        Value::Text(text) => {
            walk_over(text.text.len() as u64)?;
            Ok(text.clone())
        }
        _ => Ok(Text { text: text_of(value)?.into(), safe: false }),
    }
}

fn changed(what: &str, value: &Value, args: CallArgs, change: impl Fn(&str) -> String) -> Outcome<Value> {
    args.none(what)?;
    let own = soft(value)?;
    afford_case(&own.text)?;
    Value::marked(change(&own.text), own.safe)
}

pub(super) fn upper(value: &Value, args: CallArgs) -> Outcome<Value> {
    changed("upper", value, args, str::to_uppercase)
}

pub(super) fn lower(value: &Value, args: CallArgs) -> Outcome<Value> {
    changed("lower", value, args, str::to_lowercase)
}

pub(super) fn capitalize(value: &Value, args: CallArgs) -> Outcome<Value> {
    changed("capitalize", value, args, cases::capitalize)
}

/// Capitalises each letter after white space, a hyphen or an opening bracket.
pub(super) fn title(value: &Value, args: CallArgs) -> Outcome<Value> {
    let is_between = |c: char| is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<');
    changed("title", value, args, move |text| {
        let mut out = String::with_capacity(text.len());
        for word in text.split_inclusive(is_between) {
            let mut rest = word.chars();
            out.extend(rest.next().into_iter().flat_map(char::to_uppercase));
            out.push_str(&rest.as_str().to_lowercase());
        }
        out
    })
}

pub(super) fn trim(value: &Value, args: CallArgs) -> Outcome<Value> {
    let [chars] = args.bind("trim", ["chars"], 0)?;
    let (own, chars) = (soft(value)?, some(chars));
    let chars = chars.as_ref().map(|chars| text("trim", chars)).transpose()?;
    Value::marked(stripped(&own.text, chars, [true, true])?, own.safe)
}

pub(super) fn center(value: &Value, args: CallArgs) -> Outcome<Value> {
    let [width] = args.bind("center", ["width"], 0)?;
    let own = soft(value)?;
    Value::marked(centered(&own.text, int_or("center", width.as_ref(), 80)?, ' ')?, own.safe)
}

pub(super) fn replace(value: &Value, args: CallArgs) -> Outcome<Value> {
    let [old, new, count] = args.bind("replace", ["old", "new", "count"], 2)?;
    let part = |value: Option<Value>| text_of(&value.unwrap_or(Value::None));
    let count = some(count);
    Value::text(replace_text(&text_of(value)?, &part(old)?, &part(new)?, int_or("replace", count.as_ref(), -1)?)?)
}

pub(super) fn string(value: &Value, args: CallArgs) -> Outcome<Value> {
    args.none("string")?;
    Ok(Value::Text(soft(value)?))
}

pub(super) fn safe(value: &Value, args: CallArgs) -> Outcome<Value> {
    args.none("safe")?;
    Value::marked(text_of(value)?, true)
}

pub(super) fn escape(value: &Value, args: CallArgs) -> Outcome<Value> {
    args.none("escape")?;
    Value::marked(escaped(value)?, true)
}

pub(super) fn forceescape(value: &Value, args: CallArgs) -> Outcome<Value> {
    args.none("forceescape")?;
    Value::marked(escape_text(&text_of(value)?)?, true)
}

pub(super) fn striptags(value: &Value, args: CallArgs) -> Outcome<Value> {
    args.none("striptags")?;
    Value::text(strip_tags(&text_of(value)?))
}

pub(super) fn format(value: &Value, args: CallArgs) -> Outcome<Value> {
    let CallArgs { positional, named } = args;
    let values = match (positional.is_empty(), named.is_empty()) {
        (false, false) => return Err(type_fault("`format` takes values by position or by name, not both")),
        (_, true) => Value::tuple(positional)?,
        _ => Value::dict(named.into_iter().map(|(name, value)| (Value::shared(&name), value)))?,
    };
    percent(&soft(value)?, &values)
}

pub(super) fn indent(value: &Value, args: CallArgs) -> Outcome<Value> {
    let [width, first, blank] = args.bind("indent", ["width", "first", "blank"], 0)?;
    defined(value)?;
    let Value::Text(own) = value else { return Err(type_fault(format!("`indent` needs a string, not {}", value.type_name()))) };
    let indention = match &width {
        Some(Value::Text(text)) => text.text.to_string(),
        width => {
            let width = usize::try_from(int_or("indent", width.as_ref(), 4)?).unwrap_or(0);
            afford(Some(width as u64))?;
            " ".repeat(width)
        }
    };
    let whole = [&*own.text, "\n"].concat();
    let parts = lines(&whole, false)?;
    afford_copies(parts.len() + 1, indention.len(), whole.len())?;
    let mut out = if flag(first.as_ref()) { indention.clone() } else { String::new() };
    for (at, line) in parts.iter().enumerate() {
        if at > 0 {
            out.push('\n');
            if flag(blank.as_ref()) || !line.is_empty() {
                out.push_str(&indention);
            }
        }
        out.push_str(line);
    }
    Value::marked(out, own.safe)
}

pub(super) fn wordcount(value: &Value, args: CallArgs) -> Outcome<Value> {
    args.none("wordcount")?;
    let own = soft(value)?;
    Ok(own.text.split(|c| !is_word(c)).filter(|word| !word.is_empty()).count().into())
}

/// Percent-encodes everything except letters, digits, `_.-~` and, outside queries, `/`.
fn quoted(text: &str, is_query: bool) -> Outcome<String> {
    afford_copies(text.len(), 3, 0)?;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => out.push(char::from(byte)),
            b'/' if !is_query => out.push('/'),
            b' ' if is_query => out.push('+'),
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    Ok(out)
}

pub(super) fn urlencode(value: &Value, args: CallArgs) -> Outcome<Value> {
    args.none("urlencode")?;
    let pairs: Vec<(Value, Value)> = match value {
        Value::Dict(dict) => dict.iter().map(|(key, value)| (key.clone(), value.clone())).collect(),
        Value::Text(_) | Value::None | Value::Bool(_) | Value::Int(_) | Value::Big(_) | Value::Float(_) => {
            return Value::text(quoted(&text_of(value)?, false)?);
        }
        _ => {
            let mut pairs = Vec::new();
            for pair in drain(value)? {
                let [key, item] = <[Value; 2]>::try_from(drain(&pair)?).map_err(|_| value_fault("`urlencode` needs pairs"))?;
                pairs.push((key, item));
            }
            pairs
        }
    };
    let mut out = String::new();
    for (at, (key, item)) in pairs.iter().enumerate() {
        let (key, item) = (quoted(&text_of(key)?, true)?, quoted(&text_of(item)?, true)?);
        afford(Some((out.len() + key.len() + item.len()) as u64))?;
        walk_over((key.len() + item.len()) as u64)?;
        out.extend([if at > 0 { "&" } else { "" }, &key, "=", &item]);
    }
    Value::text(out)
}

pub(super) fn xmlattr(value: &Value, args: CallArgs) -> Outcome<Value> {
    let [autospace] = args.bind("xmlattr", ["autospace"], 0)?;
    defined(value)?;
    let Value::Dict(dict) = value else { return Err(type_fault(format!("`xmlattr` needs a dict, not {}", value.type_name()))) };
    let mut joined = String::new();
    for (key, item) in dict.iter().filter(|(_, item)| !matches!(item, Value::None | Value::Undefined(_))) {
        let name = text("xmlattr", key)?;
        if name.contains([' ', '\t', '\n', '\r', '\x0b', '\x0c', '/', '>', '=']) {
            return Err(value_fault(format!("`{name}` is not the name of an attribute")));
        }
        let (key, item) = (escaped(key)?, escaped(item)?);
        afford(Some((joined.len() + key.len() + item.len()) as u64))?;
        walk_over((key.len() + item.len()) as u64)?;
        joined.extend([if joined.is_empty() { "" } else { " " }, &key, "=\"", &item, "\""]);
    }
    let space = if autospace.is_none_or(|space| space.truth()) && !joined.is_empty() { " " } else { "" };
    Value::text(format!("{space}{joined}"))
}
