//! Limits the size of schemas.

use serde_json::Value;

use crate::error::GrammarError;
use crate::locate::DEFINITIONS;

/// The most bytes of strings in a schema.
const MAX_BYTES: usize = 1 << 20;
/// The most values in a schema. Compiling takes about a microsecond per value, and longer for some.
const MAX_VALUES: usize = 100_000;
/// The most members of an object, except for definitions. Their order is part of the grammar, whose size is quadratic in their number.
const MAX_MEMBERS: usize = 500;
/// The most items of a list, except for values (`enum`, `examples`). Alternatives are compared with each other.
const MAX_ITEMS: usize = 2000;
/// The most references. Each may lead to another, and the stack of the compiling thread must hold the whole chain.
const MAX_REFS: usize = 5000;
/// The cost of a value besides its strings [bytes]. In a text, these are its quotes, comma and colon, or its digits. In memory, a value
/// takes more.
const BYTES_PER_VALUE: usize = 16;

/// Whether the last backslash of a regular expression escapes nothing. The compiler drops such a backslash instead of refusing it.
pub fn ends_in_escape(regex: &str) -> bool {
    let slashes = regex.len() - regex.trim_end_matches('\\').len();
    slashes % 2 == 1
}

#[derive(Default)]
struct Size {
    ends_in_escape: bool,
    bytes: usize,
    values: usize,
    refs: usize,
    members: usize,
    items: usize,
}

impl Size {
    fn counted(&self) -> usize {
        self.bytes + BYTES_PER_VALUE * self.values
    }

    fn add(&mut self, value: &Value) {
        self.values += 1;
        match value {
            Value::String(text) => self.bytes += text.len(),
            Value::Array(items) => items.iter().for_each(|item| self.add(item)),
            Value::Object(map) => {
                self.members = self.members.max(map.len());
                for (key, value) in map {
                    self.bytes += key.len();
                    self.refs += usize::from(key.ends_with("ef") && key.starts_with('$'));
                    match (key.as_str(), value) {
                        // Each required name is a member, whether or not it is declared.
                        ("required", Value::Array(names)) => self.members = self.members.max(names.len()),
                        ("enum" | "examples", _) => {}
                        ("pattern", Value::String(pattern)) => self.ends_in_escape |= ends_in_escape(pattern),
                        ("patternProperties", Value::Object(patterns)) => {
                            self.ends_in_escape |= patterns.keys().any(|pattern| ends_in_escape(pattern));
                        }
                        (_, Value::Array(items)) => self.items = self.items.max(items.len()),
                        _ => {}
                    }
                    match value {
                        Value::Object(definitions) if DEFINITIONS.contains(&key.as_str()) => {
                            self.values += 1;
                            self.bytes += definitions.keys().map(String::len).sum::<usize>();
                            definitions.values().for_each(|definition| self.add(definition));
                        }
                        other => self.add(other),
                    }
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

/// The cost of a schema [bytes].
pub fn measured(schema: &Value) -> usize {
    let mut size = Size::default();
    size.add(schema);
    size.counted()
}

/// Checks the sizes of a schema and returns its cost in bytes. Recursion is safe, because request bodies are nested less than 128 levels
/// deep.
///
/// # Errors
/// A size is too large, or a pattern ends with a backslash that escapes nothing.
pub fn check_size(schema: &Value) -> Result<usize, GrammarError> {
    let mut size = Size::default();
    size.add(schema);
    if size.ends_in_escape {
        return Err(GrammarError::Invalid("a pattern of the schema ends with a lone backslash".into()));
    }
    let bounds = [
        (size.bytes, MAX_BYTES, "bytes"),
        (size.values, MAX_VALUES, "values"),
        (size.members, MAX_MEMBERS, "members in one object"),
        (size.items, MAX_ITEMS, "items in one list"),
        (size.refs, MAX_REFS, "references"),
    ];
    match bounds.into_iter().find(|(count, most, _)| count > most) {
        Some((count, most, what)) => Err(GrammarError::Invalid(format!("the schema has {count} {what}, expected at most {most}"))),
        None => Ok(size.counted()),
    }
}
