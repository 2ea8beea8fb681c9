//! Writes the `str`, `repr` and `ascii` forms of values.

use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::fmt::Write;
use std::rc::Rc;

use unicode_general_category::{GeneralCategory as Category, get_general_category};

use super::{Dict, MAX_DEPTH, MAX_DIGITS, Number, Value, float_repr};
use crate::budget::{afford, walk_over};
use crate::failure::{Outcome, limit, value_fault};

/// `str(value)`.
pub(crate) fn text_of(value: &Value) -> Outcome<String> {
    match value {
        Value::Text(text) => {
            afford(Some(text.text.len() as u64))?;
            Ok(text.text.to_string())
        }
        Value::Undefined(_) => Ok(String::new()),
        _ => repr(value),
    }
}

/// `repr(value)`.
pub(crate) fn repr(value: &Value) -> Outcome<String> {
    Writer::run(value, false)
}

/// `repr(value)` with the keys of dicts sorted, as `pprint` writes it.
pub(crate) fn repr_sorted(value: &Value) -> Outcome<String> {
    Writer::run(value, true)
}

/// `ascii(value)`.
pub(crate) fn ascii(value: &Value) -> Outcome<String> {
    let text = repr(value)?;
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_ascii() {
            out.push(c);
        } else {
            escape(&mut out, c);
        }
    }
    Ok(out)
}

thread_local! {
    /// The nesting depth of writers on this thread. Objects write their contents with writers of their own.
    static DEPTH: Cell<u16> = const { Cell::new(0) };
    /// The addresses of lists and dicts that are being written. A namespace may lead back to one.
    static OPEN: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

struct Writer {
    out: String,
    sorted: bool,
}

impl Writer {
    fn run(value: &Value, sorted: bool) -> Outcome<String> {
        let mut writer = Self { out: String::new(), sorted };
        writer.value(value)?;
        walk_over(writer.out.len() as u64)?;
        Ok(writer.out)
    }

    fn value(&mut self, value: &Value) -> Outcome<()> {
        afford(Some(self.out.len() as u64))?;
        let depth = DEPTH.get();
        if depth > 2 * MAX_DEPTH {
            return Err(limit("a value is nested too deeply"));
        }
        DEPTH.set(depth + 1);
        let result = match value {
            Value::List(items) => self.once(Rc::as_ptr(items).addr(), value, "[...]"),
            Value::Dict(dict) => self.once(Rc::as_ptr(dict).addr(), value, "{...}"),
            _ => self.write(value),
        };
        DEPTH.set(depth);
        result
    }

    /// Writes a list or dict, or dots if it is already being written.
    fn once(&mut self, address: usize, value: &Value, dots: &str) -> Outcome<()> {
        if OPEN.with_borrow(|open| open.contains(&address)) {
            self.out.push_str(dots);
            return Ok(());
        }
        OPEN.with_borrow_mut(|open| open.push(address));
        let result = self.write(value);
        OPEN.with_borrow_mut(Vec::pop);
        result
    }

    fn write(&mut self, value: &Value) -> Outcome<()> {
        match value {
            Value::Undefined(_) => self.out.push_str("Undefined"),
            Value::None => self.out.push_str("None"),
            Value::Bool(on) => self.out.push_str(if *on { "True" } else { "False" }),
            Value::Int(number) => write!(self.out, "{number}").unwrap_or_default(),
            Value::Big(number) => {
                // A digit takes more than three bits.
                let text = if number.bits() > 4 * MAX_DIGITS as u64 { String::new() } else { number.to_string() };
                if text.is_empty() || text.len() > MAX_DIGITS + usize::from(text.starts_with('-')) {
                    return Err(value_fault(format!("an integer has more than {MAX_DIGITS} digits")));
                }
                self.out.push_str(&text);
            }
            Value::Float(number) => self.out.push_str(&float_repr(*number)),
            Value::Text(text) if text.safe => {
                self.out.push_str("Markup(");
                self.text(&text.text)?;
                self.out.push(')');
            }
            Value::Text(text) => self.text(&text.text)?,
            Value::List(items) => self.items('[', &items.items, "]")?,
            Value::Tuple(items) => self.items('(', &items.items, if items.items.len() == 1 { ",)" } else { ")" })?,
            Value::Dict(dict) => self.dict(dict)?,
            Value::Range(range) if range.step == 1 => write!(self.out, "range({}, {})", range.start, range.stop).unwrap_or_default(),
            Value::Range(range) => {
                write!(self.out, "range({}, {}, {})", range.start, range.stop, range.step).unwrap_or_default();
            }
            Value::View(view) => {
                self.out.push_str(view.kind.type_name());
                self.out.push('(');
                self.items('[', &view.items()?, "]")?;
                self.out.push(')');
            }
            Value::Generator(generator) => self.out.push_str(&generator.shown()),
            Value::Function(name) if value.type_name() == "type" => {
                let module = if *name == "dict" { "" } else { "jinja2.utils." };
                let class = name[..1].to_uppercase() + &name[1..];
                write!(self.out, "<class '{module}{}'>", if *name == "dict" { name } else { &*class }).unwrap_or_default();
            }
            Value::Function(name) => write!(self.out, "<function {name}>").unwrap_or_default(),
            Value::Method(method) => {
                let of = method.receiver.type_name();
                let at = Rc::as_ptr(method).addr();
                write!(self.out, "<built-in method {} of {of} object at 0x{at:x}>", method.name).unwrap_or_default();
            }
            Value::Object(object) => self.out.push_str(&object.shown()?),
        }
        Ok(())
    }

    fn items(&mut self, start: char, items: &[Value], end: &str) -> Outcome<()> {
        self.out.push(start);
        for (at, item) in items.iter().enumerate() {
            if at > 0 {
                self.out.push_str(", ");
            }
            self.value(item)?;
        }
        self.out.push_str(end);
        Ok(())
    }

    fn dict(&mut self, dict: &Dict) -> Outcome<()> {
        let mut pairs: Vec<(&Value, &Value)> = dict.iter().collect();
        if self.sorted {
            pairs.sort_by(|(a, _), (b, _)| key_order(a, b));
        }
        self.out.push('{');
        for (at, (key, value)) in pairs.into_iter().enumerate() {
            if at > 0 {
                self.out.push_str(", ");
            }
            self.value(key)?;
            self.out.push_str(": ");
            self.value(value)?;
        }
        self.out.push('}');
        Ok(())
    }

    fn text(&mut self, text: &str) -> Outcome<()> {
        afford((self.out.len() as u64).checked_add(text.len() as u64))?;
        let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
        self.out.push(quote);
        for (at, c) in text.chars().enumerate() {
            // An escape is longer than its character.
            if at.is_multiple_of(4096) {
                afford(Some(self.out.len() as u64))?;
            }
            match c {
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                c if c == quote => self.out.extend(['\\', c]),
                c if is_printable(c) => self.out.push(c),
                c => escape(&mut self.out, c),
            }
        }
        self.out.push(quote);
        Ok(())
    }
}

/// The order of a dict's keys in `pprint`'s output: by type if keys cannot be compared.
pub(crate) fn key_order(a: &Value, b: &Value) -> Ordering {
    // Numbers of all types can be compared with each other.
    let class = |value: &Value| if Number::of(value).is_some() { "float" } else { value.type_name() };
    class(a).cmp(class(b)).then_with(|| match (Number::of(a), Number::of(b)) {
        (Some(x), Some(y)) => x.compare(&y).unwrap_or_else(|| x.float().total_cmp(&y.float())),
        _ => a.as_text().cmp(&b.as_text()),
    })
}

fn escape(out: &mut String, c: char) {
    let _ = match c as u32 {
        code @ ..0x100 => write!(out, "\\x{code:02x}"),
        code @ ..0x1_0000 => write!(out, "\\u{code:04x}"),
        code => write!(out, "\\U{code:08x}"),
    };
}

/// Whether `repr` writes a character unescaped.
pub(crate) fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return matches!(c, ' '..='~');
    }
    !matches!(
        get_general_category(c),
        Category::Control
            | Category::Format
            | Category::Surrogate
            | Category::PrivateUse
            | Category::Unassigned
            | Category::LineSeparator
            | Category::ParagraphSeparator
            | Category::SpaceSeparator
    )
}
