//! Implements `Markup`: strings that are safe in HTML.

use std::sync::Arc;

use crate::budget::afford;
use crate::failure::Outcome;
use crate::value::{Text, Value, text_of};

/// Replaces the five special characters of HTML in `text` by references.
pub(crate) fn escape(text: &str) -> Outcome<String> {
    let special = text.bytes().filter(|byte| matches!(byte, b'&' | b'<' | b'>' | b'\'' | b'"')).count();
    crate::budget::afford_copies(special, 5, text.len())?;
    let mut out = String::with_capacity(text.len() + 4 * special);
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    Ok(out)
}

/// A value's text, escaped unless it is safe.
pub(crate) fn escaped(value: &Value) -> Outcome<String> {
    let text = text_of(value)?;
    if value.is_safe() { Ok(text) } else { escape(&text) }
}

/// `a + b`. If one operand is safe, the other is escaped.
pub(crate) fn joined(a: &Text, b: &Text) -> Outcome<Value> {
    let safe = a.safe || b.safe;
    let part =
        |text: &Text| -> Outcome<Arc<str>> { if safe && !text.safe { Ok(escape(&text.text)?.into()) } else { Ok(Arc::clone(&text.text)) } };
    let (left, right) = (part(a)?, part(b)?);
    afford(Some((left.len() + right.len()) as u64))?;
    Value::marked([&*left, &*right].concat(), safe)
}
