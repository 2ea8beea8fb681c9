//! Implements Python's format specifications: `format(value, ">+10.3f")`.

use num_bigint::BigInt;
use num_traits::{Signed, ToPrimitive};

use super::digits::{fixed, general, grouped, scientific};
use crate::budget::afford_copies;
use crate::failure::{Outcome, other, type_fault, value_fault};
use crate::value::{MAX_DIGITS, Number, Value, float_repr, text_of};

struct Spec {
    fill: char,
    align: Option<char>,
    sign: Option<char>,
    alternate: bool,
    /// Whether minus zero is written as zero.
    no_minus_zero: bool,
    width: usize,
    group: Option<char>,
    precision: Option<usize>,
    kind: Option<char>,
}

/// `format(value, spec)`.
pub(super) fn format_value(value: &Value, spec: &str) -> Outcome<String> {
    if spec.is_empty() {
        return text_of(value);
    }
    match (value, Number::of(value)) {
        (Value::Text(text), _) => format_text(&text.text, &parse(spec)?),
        (_, Some(number)) => format_number(&number, &parse(spec)?),
        _ => Err(type_fault(format!("a value of type {} takes no format specification", value.type_name()))),
    }
}

/// Takes a number from the start of `rest`. Digits beyond what any budget affords saturate.
fn take_number(rest: &mut &str) -> Option<usize> {
    let length = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, behind) = rest.split_at(length);
    *rest = behind;
    (length > 0).then(|| digits.parse().unwrap_or(usize::MAX / 2))
}

fn take_char(rest: &mut &str, wanted: &[char]) -> Option<char> {
    let found = rest.chars().next().filter(|c| wanted.contains(c))?;
    *rest = &rest[found.len_utf8()..];
    Some(found)
}

fn parse(text: &str) -> Outcome<Spec> {
    const ALIGN: [char; 4] = ['<', '>', '=', '^'];
    let bad = || value_fault(format!("`{text}` is no format specification"));
    let mut rest = text;
    let mut head = rest.chars();
    let (mut fill, mut align) = (None, None);
    if let (Some(first), Some(second)) = (head.next(), head.next())
        && ALIGN.contains(&second)
    {
        (fill, align, rest) = (Some(first), Some(second), head.as_str());
    } else if let Some(found) = take_char(&mut rest, &ALIGN) {
        align = Some(found);
    }
    let sign = take_char(&mut rest, &['+', '-', ' ']);
    let no_minus_zero = take_char(&mut rest, &['z']).is_some();
    let alternate = take_char(&mut rest, &['#']).is_some();
    let is_zero = fill.is_none() && take_char(&mut rest, &['0']).is_some();
    let width = take_number(&mut rest).unwrap_or(0);
    let group = take_char(&mut rest, &[',', '_']);
    let precision = match take_char(&mut rest, &['.']) {
        Some(_) => Some(take_number(&mut rest).ok_or_else(bad)?),
        None => None,
    };
    let mut kind = rest.chars();
    let kind = (kind.next(), kind.as_str());
    if !kind.1.is_empty() || kind.0.is_some_and(|c| matches!(c, ',' | '_')) {
        return Err(bad());
    }
    let fill = fill.unwrap_or(if is_zero { '0' } else { ' ' });
    // A zero before the width pads numbers after their sign.
    let align = if is_zero && align.is_none() { Some('0') } else { align };
    Ok(Spec { fill, align, sign, alternate, no_minus_zero, width, group, precision, kind: kind.0 })
}

/// Pads `body` to the width, with `lead` (a sign and a prefix) before it.
fn padded(lead: &str, body: &str, spec: &Spec, default: char) -> Outcome<String> {
    let length = lead.chars().count() + body.chars().count();
    let missing = spec.width.saturating_sub(length);
    afford_copies(missing, spec.fill.len_utf8(), lead.len() + body.len())?;
    let pad = |count: usize| spec.fill.to_string().repeat(count);
    Ok(match spec.align.unwrap_or(default) {
        '<' => format!("{lead}{body}{}", pad(missing)),
        '^' => format!("{}{lead}{body}{}", pad(missing / 2), pad(missing - missing / 2)),
        '=' | '0' => format!("{lead}{}{body}", pad(missing)),
        _ => format!("{}{lead}{body}", pad(missing)),
    })
}

fn format_text(text: &str, spec: &Spec) -> Outcome<String> {
    let refused = |what: &str| value_fault(format!("{what} is not allowed in the format of a string"));
    match spec.kind {
        None | Some('s') => {}
        Some(kind) => return Err(value_fault(format!("`{kind}` is no format of a string"))),
    }
    if spec.sign.is_some() || spec.no_minus_zero {
        return Err(refused("a sign"));
    }
    if spec.alternate || spec.group.is_some() || spec.align == Some('=') {
        return Err(refused("`#`, `,`, `_` or `=`"));
    }
    let end = spec.precision.and_then(|most| text.char_indices().nth(most)).map_or(text.len(), |(at, _)| at);
    let align = if spec.align == Some('0') { Some('<') } else { spec.align };
    padded("", &text[..end], &Spec { align, ..*spec }, '<')
}

fn format_number(number: &Number, spec: &Spec) -> Outcome<String> {
    match spec.kind {
        Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%') => format_float(number, spec),
        None if number.is_float() => format_float(number, spec),
        Some('n') if number.is_float() => format_float(number, &Spec { kind: Some('g'), ..*spec }),
        _ => match number.big() {
            Some(whole) => format_integer(&whole, spec),
            None => Err(value_fault(format!("`{}` is no format of a float", spec.kind.unwrap_or_default()))),
        },
    }
}

fn sign_of(is_negative: bool, spec: &Spec) -> &'static str {
    match (is_negative, spec.sign) {
        (true, _) => "-",
        (false, Some('+')) => "+",
        (false, Some(' ')) => " ",
        _ => "",
    }
}

fn format_integer(number: &BigInt, spec: &Spec) -> Outcome<String> {
    if spec.precision.is_some() {
        return Err(value_fault("a precision is not allowed in the format of an integer"));
    }
    if spec.no_minus_zero {
        return Err(value_fault("`z` is not allowed in the format of an integer"));
    }
    let (radix, prefix, every) = match spec.kind {
        None | Some('d' | 'n') => (10, "", 3),
        Some('b') => (2, "0b", 4),
        Some('o') => (8, "0o", 4),
        Some('x') => (16, "0x", 4),
        Some('X') => (16, "0X", 4),
        Some('c') => return format_char(number, spec),
        Some(kind) => return Err(value_fault(format!("`{kind}` is no format of an integer"))),
    };
    if spec.group == Some(',') && radix != 10 {
        return Err(value_fault("`,` is allowed in decimal numbers only"));
    }
    let digits = number.abs().to_str_radix(radix);
    if radix == 10 && digits.len() > MAX_DIGITS {
        return Err(value_fault(format!("an integer has more than {MAX_DIGITS} digits")));
    }
    let digits = if spec.kind == Some('X') { digits.to_uppercase() } else { digits };
    let lead = format!("{}{}", sign_of(number.is_negative(), spec), if spec.alternate { prefix } else { "" });
    let group = if spec.kind == Some('n') { None } else { spec.group };
    with_groups(&lead, &digits, "", spec, group.map(|separator| (separator, every)))
}

/// Groups the whole part of a number, and appends the rest. Zeros used as padding are grouped too.
fn with_groups(lead: &str, digits: &str, rest: &str, spec: &Spec, group: Option<(char, usize)>) -> Outcome<String> {
    let Some((separator, every)) = group else { return padded(lead, &format!("{digits}{rest}"), spec, '>') };
    let is_filled = spec.fill == '0' && matches!(spec.align, Some('0' | '='));
    let width = if is_filled { spec.width.saturating_sub(lead.len() + rest.len()) } else { 0 };
    afford_copies(width, 2, 0)?;
    padded(lead, &format!("{}{rest}", grouped(digits, separator, every, width)), spec, '>')
}

fn format_char(number: &BigInt, spec: &Spec) -> Outcome<String> {
    if spec.sign.is_some() || spec.alternate {
        return Err(value_fault("a sign or `#` is not allowed with the format `c`"));
    }
    let c = number.to_u32().and_then(char::from_u32).ok_or_else(|| other("the format `c` needs the code of a character"))?;
    padded("", &c.to_string(), spec, '>')
}

fn format_float(number: &Number, spec: &Spec) -> Outcome<String> {
    let value = number.float();
    if value.is_infinite() && !number.is_float() {
        return Err(other("an integer is too large for a float"));
    }
    let kind = spec.kind.unwrap_or('r');
    let value = if kind == '%' { value * 100.0 } else { value };
    let precision = spec.precision.unwrap_or(6);
    afford_copies(precision, 1, 0)?;
    let size = value.abs();
    let text = if size.is_finite() {
        match kind.to_ascii_lowercase() {
            'e' => scientific(size, precision, spec.alternate),
            'g' => general(size, precision, spec.alternate, false),
            'r' if spec.precision.is_some() => general(size, precision, spec.alternate, true),
            'r' => float_repr(size),
            _ => fixed(size, precision, spec.alternate),
        }
    } else {
        float_repr(size)
    };
    let text = if kind.is_ascii_uppercase() { text.to_uppercase() } else { text };
    let is_zero =
        !text.bytes().take_while(|byte| !matches!(byte, b'e' | b'E')).any(|byte| matches!(byte, b'1'..=b'9' | b'i' | b'n' | b'I' | b'N'));
    let is_negative = value.is_sign_negative() && !value.is_nan() && !(spec.no_minus_zero && is_zero);
    let end = text.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, rest) = text.split_at(end);
    let rest = format!("{rest}{}", if kind == '%' { "%" } else { "" });
    with_groups(sign_of(is_negative, spec), digits, &rest, spec, spec.group.filter(|_| end > 0).map(|separator| (separator, 3)))
}
