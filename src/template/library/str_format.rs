//! Implements `str.format`: fields with names, attributes, conversions and nested specifications.

use std::sync::Arc;

use super::attributes::{attribute, item};
use super::call_args::{CallArgs, lookup_fault};
use super::format_spec::format_value;
use super::markup::escape;
use crate::budget::{afford, walk_items};
use crate::failure::{Outcome, value_fault};
use crate::value::{Text, Value, ascii, repr, text_of};

/// The deepest nesting of formats: a specification may hold fields, and the specification of such a field is text.
const MAX_DEPTH: usize = 3;

struct Formatter<'a> {
    args: &'a CallArgs,
    /// The values of `format_map`, by name.
    map: Option<&'a Value>,
    /// The next automatic number. `None` once a field has an explicit number.
    auto: Option<usize>,
    safe: bool,
}

/// `pattern.format(*positional, **named)`.
pub(super) fn format(pattern: &Text, args: &CallArgs) -> Outcome<Value> {
    run(pattern, args, None)
}

/// `pattern.format_map(map)`.
pub(super) fn format_map(pattern: &Text, map: &Value) -> Outcome<Value> {
    run(pattern, &CallArgs::default(), Some(map))
}

fn run(pattern: &Text, args: &CallArgs, map: Option<&Value>) -> Outcome<Value> {
    let mut formatter = Formatter { args, map, auto: Some(0), safe: pattern.safe };
    let text = formatter.expand(&pattern.text, MAX_DEPTH)?;
    Value::marked(text, pattern.safe)
}

impl Formatter<'_> {
    fn expand(&mut self, pattern: &str, depth: usize) -> Outcome<String> {
        let depth = depth.checked_sub(1).ok_or_else(|| value_fault("the fields of a format are nested too deeply"))?;
        let mut out = String::new();
        let mut rest = pattern;
        while let Some(at) = rest.find(['{', '}']) {
            out.push_str(&rest[..at]);
            let brace = &rest[at..=at];
            rest = &rest[at + 1..];
            if rest.starts_with(brace) {
                out.push_str(brace);
                rest = &rest[1..];
                continue;
            }
            if brace == "}" {
                return Err(value_fault("a format has a single `}`: write `}}` for the character"));
            }
            let end = closing(rest).ok_or_else(|| value_fault("a field of a format has no end: expected `}`"))?;
            let field = self.field(&rest[..end], depth)?;
            afford(Some((out.len() + field.len()) as u64))?;
            out.push_str(&field);
            rest = &rest[end + 1..];
        }
        out.push_str(rest);
        Ok(out)
    }

    fn field(&mut self, field: &str, depth: usize) -> Outcome<String> {
        let name_end = name_end(field);
        let (name, mut rest) = field.split_at(name_end);
        if name.contains('{') {
            return Err(value_fault("the name of a field has an unexpected `{`"));
        }
        let mut conversion = None;
        if let Some(behind) = rest.strip_prefix('!') {
            let mut chars = behind.chars();
            conversion = chars.next();
            rest = chars.as_str();
            if conversion.is_none() || !(rest.is_empty() || rest.starts_with(':')) {
                return Err(value_fault("`!` in a format needs one letter: `r`, `s` or `a`"));
            }
        }
        let value = self.value(name)?;
        let value = match conversion {
            None => value,
            Some('r') => Value::text(repr(&value)?)?,
            Some('s') => Value::text(text_of(&value)?)?,
            Some('a') => Value::text(ascii(&value)?)?,
            Some(letter) => return Err(value_fault(format!("`!{letter}` is no conversion, expected `!r`, `!s` or `!a`"))),
        };
        let spec = self.expand(rest.strip_prefix(':').unwrap_or(rest), depth)?;
        let text = format_value(&value, &spec)?;
        if self.safe && !value.is_safe() { escape(&text) } else { Ok(text) }
    }

    fn value(&mut self, name: &str) -> Outcome<Value> {
        let end = name.find(['.', '[']).unwrap_or(name.len());
        let (first, mut path) = name.split_at(end);
        let mut value = self.first(first)?;
        while !path.is_empty() {
            if let Some(behind) = path.strip_prefix('.') {
                let end = behind.find(['.', '[']).unwrap_or(behind.len());
                value = attribute(&value, &behind[..end])?;
                path = &behind[end..];
            } else {
                let behind = path.strip_prefix('[').ok_or_else(|| value_fault("a `.` or `[` must follow `]` in a field"))?;
                let end = behind.find(']').ok_or_else(|| value_fault("a field has a `[` without `]`"))?;
                let key = &behind[..end];
                if key.is_empty() {
                    return Err(value_fault("a field has an empty attribute"));
                }
                value = item(&value, &key.parse().map_or_else(|_| Value::text(key), |index| Ok(Value::Int(index)))?)?;
                path = &behind[end + 1..];
            }
        }
        Ok(value)
    }

    fn first(&mut self, name: &str) -> Outcome<Value> {
        let is_number = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
        if !name.is_empty() && !is_number {
            let named = match self.map {
                Some(Value::Dict(dict)) => dict.get_text(name),
                Some(other) => return item(other, &Value::text(Arc::<str>::from(name))?),
                None => {
                    walk_items(self.args.named.len())?;
                    self.args.named.iter().find(|(key, _)| **key == *name).map(|(_, value)| value)
                }
            };
            return named.cloned().ok_or_else(|| lookup_fault(format!("a format has no value for `{name}`")));
        }
        let mixed = || value_fault("a format mixes fields with and without numbers");
        let index = if is_number {
            if self.auto.is_some_and(|next| next > 0) {
                return Err(mixed());
            }
            self.auto = None;
            name.parse().unwrap_or(usize::MAX)
        } else {
            let next = self.auto.ok_or_else(mixed)?;
            self.auto = Some(next + 1);
            next
        };
        self.args.positional.get(index).cloned().ok_or_else(|| lookup_fault(format!("a format has no value number {index}")))
    }
}

/// The position at which the open brace closes. Braces in brackets do not count.
fn closing(text: &str) -> Option<usize> {
    let (mut depth, mut bracketed) = (1, false);
    text.bytes().position(|byte| {
        match byte {
            b'[' => bracketed = true,
            b']' => bracketed = false,
            b'{' if !bracketed => depth += 1,
            b'}' if !bracketed => depth -= 1,
            _ => {}
        }
        depth == 0
    })
}

/// The position at which the name of a field ends: a `!` or `:` outside brackets.
fn name_end(field: &str) -> usize {
    let mut bracketed = false;
    let end = field.bytes().position(|byte| {
        match byte {
            b'[' => bracketed = true,
            b']' => bracketed = false,
            _ => {}
        }
        !bracketed && matches!(byte, b'!' | b':')
    });
    end.unwrap_or(field.len())
}
