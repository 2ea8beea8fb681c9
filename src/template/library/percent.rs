//! Implements `pattern % values`, Python's formatting of strings.

use num_traits::{Signed, ToPrimitive};

use super::digits::{fixed, general, scientific};
use super::markup::escape;
use crate::budget::{afford, afford_copies};
use crate::failure::{Outcome, other, type_fault, value_fault};
use crate::value::{MAX_DIGITS, Number, Text, Value, ascii, float_repr, repr, text_of};

#[derive(Default)]
struct Field {
    left: bool,
    sign: &'static str,
    alternate: bool,
    zero: bool,
    width: usize,
    precision: Option<usize>,
}

/// The source of the fields' values.
struct Values<'a> {
    all: &'a Value,
    items: &'a [Value],
    next: usize,
}

impl<'a> Values<'a> {
    fn next(&mut self) -> Outcome<&'a Value> {
        let item = self.items.get(self.next).ok_or_else(|| type_fault("a format has more fields than values"))?;
        self.next += 1;
        Ok(item)
    }
}

pub(super) fn percent(pattern: &Text, values: &Value) -> Outcome<Value> {
    let single = [values.clone()];
    let items = match values {
        Value::Tuple(items) => &items.items[..],
        _ => &single[..],
    };
    let mut source = Values { all: values, items, next: 0 };
    let mut out = String::new();
    let mut rest = &*pattern.text;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        field(&mut rest, &mut source, pattern.safe, &mut out)?;
        afford(Some(out.len() as u64))?;
    }
    out.push_str(rest);
    // A value that could be a mapping may stay unused.
    let may_rest = matches!(values, Value::Dict(_) | Value::List(_) | Value::Undefined(_) | Value::Range(_));
    if source.next < items.len() && !may_rest {
        return Err(type_fault("a format has fewer fields than values"));
    }
    Value::marked(out, pattern.safe)
}

/// Writes the field at the start of `rest`, after its `%`.
fn field(rest: &mut &str, source: &mut Values, safe: bool, out: &mut String) -> Outcome<()> {
    let named = match rest.strip_prefix('(') {
        None => None,
        Some(inner) => {
            let end = closing(inner).ok_or_else(|| value_fault("the name of a field has no end: expected `)`"))?;
            *rest = &inner[end + 1..];
            let Value::Dict(dict) = source.all else { return Err(type_fault("a format with names needs a dict")) };
            let name = &inner[..end];
            Some(dict.get_text(name).ok_or_else(|| super::call_args::lookup_fault(format!("the dict has no key `{name}`")))?)
        }
    };
    let mut field = Field::default();
    flags(rest, &mut field);
    width(rest, source, &mut field)?;
    *rest = rest.trim_start_matches(['h', 'l', 'L']);
    let Some(kind) = rest.chars().next() else { return Err(value_fault("a format ends within a field")) };
    *rest = &rest[kind.len_utf8()..];
    if kind == '%' {
        out.push('%');
        return Ok(());
    }
    if !"diouxXeEfFgGcrsa".contains(kind) {
        return Err(value_fault(format!("a format has an unknown field `%{kind}`")));
    }
    let value = match named {
        Some(value) => {
            // The dict counts as used.
            source.next = source.items.len();
            value
        }
        None => source.next()?,
    };
    afford_copies(field.width.max(field.precision.unwrap_or(0)), 4, out.len())?;
    let written = match kind {
        'r' | 's' | 'a' | 'c' => words(kind, value, &field, safe)?,
        _ => number(kind, value, &field)?,
    };
    out.push_str(&written);
    Ok(())
}

/// The position at which the open bracket closes.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 1;
    text.bytes().position(|byte| {
        depth += match byte {
            b'(' => 1,
            b')' => -1,
            _ => 0,
        };
        depth == 0
    })
}

fn flags(rest: &mut &str, field: &mut Field) {
    loop {
        match rest.as_bytes().first() {
            Some(b'-') => field.left = true,
            Some(b'+') => field.sign = "+",
            Some(b' ') => field.sign = if field.sign == "+" { "+" } else { " " },
            Some(b'#') => field.alternate = true,
            Some(b'0') => field.zero = true,
            _ => return,
        }
        *rest = &rest[1..];
    }
}

fn width(rest: &mut &str, source: &mut Values, field: &mut Field) -> Outcome<()> {
    if let Some(width) = amount(rest, source)? {
        field.left |= width < 0;
        field.width = usize::try_from(width.unsigned_abs()).unwrap_or(usize::MAX / 8);
    }
    if let Some(behind) = rest.strip_prefix('.') {
        *rest = behind;
        field.precision = Some(usize::try_from(amount(rest, source)?.unwrap_or(0).max(0)).unwrap_or_default());
    }
    Ok(())
}

/// Reads a number, or `*` for the next value.
fn amount(rest: &mut &str, source: &mut Values) -> Outcome<Option<i64>> {
    if let Some(behind) = rest.strip_prefix('*') {
        *rest = behind;
        return match Number::of(source.next()?) {
            Some(Number::Int(number)) => Ok(Some(number)),
            _ => Err(type_fault("`*` in a format needs an integer")),
        };
    }
    let length = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, behind) = rest.split_at(length);
    *rest = behind;
    Ok((length > 0).then(|| digits.parse().unwrap_or(i64::MAX / 8)))
}

fn padded(lead: &str, body: &str, field: &Field, zeros: bool) -> String {
    let missing = field.width.saturating_sub(lead.chars().count() + body.chars().count());
    if field.left {
        format!("{lead}{body}{}", " ".repeat(missing))
    } else if zeros {
        format!("{lead}{}{body}", "0".repeat(missing))
    } else {
        format!("{}{lead}{body}", " ".repeat(missing))
    }
}

fn words(kind: char, value: &Value, field: &Field, safe: bool) -> Outcome<String> {
    let text = match kind {
        'r' => repr(value)?,
        'a' => ascii(value)?,
        's' => text_of(value)?,
        _ => character(value)?,
    };
    let text = if safe && !value.is_safe() { escape(&text)? } else { text };
    let end = field.precision.filter(|_| kind != 'c').and_then(|most| text.char_indices().nth(most)).map_or(text.len(), |(at, _)| at);
    Ok(padded("", &text[..end], field, false))
}

fn character(value: &Value) -> Outcome<String> {
    if let Some(text) = value.as_text() {
        return if text.chars().count() == 1 {
            Ok(text.to_owned())
        } else {
            Err(type_fault("`%c` needs an integer or a single character"))
        };
    }
    let number =
        Number::of(value).and_then(|number| number.big()).ok_or_else(|| type_fault("`%c` needs an integer or a single character"))?;
    let c = number.to_u32().and_then(char::from_u32).ok_or_else(|| other("`%c` needs the code of a character"))?;
    Ok(c.to_string())
}

fn number(kind: char, value: &Value, field: &Field) -> Outcome<String> {
    let wanted = || type_fault(format!("`%{kind}` needs a number, not {}", value.type_name()));
    let number = Number::of(value).ok_or_else(wanted)?;
    if !"diuoxX".contains(kind) {
        return float(kind, &number, field);
    }
    let whole = match &number {
        Number::Float(_) if "oxX".contains(kind) => return Err(type_fault(format!("`%{kind}` needs an integer, not float"))),
        Number::Float(float) if float.is_nan() => return Err(value_fault("NaN is no integer")),
        Number::Float(float) => Number::exact(&Value::Float(float.trunc())).ok_or_else(|| other("infinity is no integer"))?,
        number => number.big().ok_or_else(wanted)?,
    };
    let (radix, prefix) = match kind {
        'o' => (8, "0o"),
        'x' => (16, "0x"),
        'X' => (16, "0X"),
        _ => (10, ""),
    };
    let digits = whole.abs().to_str_radix(radix);
    if radix == 10 && digits.len() > MAX_DIGITS {
        return Err(value_fault(format!("an integer has more than {MAX_DIGITS} digits")));
    }
    let digits = if kind == 'X' { digits.to_uppercase() } else { digits };
    let digits = format!("{}{digits}", "0".repeat(field.precision.unwrap_or(0).saturating_sub(digits.len())));
    let sign = if whole.is_negative() { "-" } else { field.sign };
    let lead = format!("{sign}{}", if field.alternate { prefix } else { "" });
    Ok(padded(&lead, &digits, field, field.zero))
}

fn float(kind: char, number: &Number, field: &Field) -> Outcome<String> {
    let value = number.float();
    if value.is_infinite() && !number.is_float() {
        return Err(other("an integer is too large for a float"));
    }
    let (size, precision) = (value.abs(), field.precision.unwrap_or(6));
    let text = match kind.to_ascii_lowercase() {
        _ if !size.is_finite() => float_repr(size),
        'e' => scientific(size, precision, field.alternate),
        'g' => general(size, precision, field.alternate, false),
        _ => fixed(size, precision, field.alternate),
    };
    let text = if kind.is_ascii_uppercase() { text.to_uppercase() } else { text };
    let sign = if value.is_sign_negative() && !value.is_nan() { "-" } else { field.sign };
    Ok(padded(sign, &text, field, field.zero))
}
