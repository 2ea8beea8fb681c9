//! Writes the digits of floats with a given precision. All digits are exact, as in Python.

/// The most digits of a float that are not zero. Further ones are written as zeros.
const MAX_EXACT: usize = 1100;

/// `%.PRECISIONf` of a number of 0 or more. `dot`: write a point even without a fraction.
pub(super) fn fixed(number: f64, precision: usize, dot: bool) -> String {
    let exact = precision.min(MAX_EXACT);
    let mut text = format!("{number:.exact$}");
    text.push_str(&"0".repeat(precision - exact));
    if dot && precision == 0 {
        text.push('.');
    }
    text
}

/// `%.PRECISIONe`.
pub(super) fn scientific(number: f64, precision: usize, dot: bool) -> String {
    let (mantissa, exponent) = split(number, precision);
    let dot = if dot && precision == 0 { "." } else { "" };
    format!("{mantissa}{dot}{}", written(exponent))
}

/// The digits, `precision` of them after the point, and the exponent.
fn split(number: f64, precision: usize) -> (String, i32) {
    let exact = precision.min(MAX_EXACT);
    let text = format!("{number:.exact$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    (format!("{mantissa}{}", "0".repeat(precision - exact)), exponent.parse().unwrap_or_default())
}

fn written(exponent: i32) -> String {
    format!("e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.unsigned_abs())
}

/// `%.PRECISIONg`. `keep`: keep zeros at the end. `float`: the result must have a fraction or an exponent.
pub(super) fn general(number: f64, precision: usize, keep: bool, float: bool) -> String {
    let precision = precision.max(1);
    let (mantissa, exponent) = split(number, precision - 1);
    let most = precision as i64 - i64::from(float);
    let mut digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    if !keep {
        digits.truncate(digits.trim_end_matches('0').len().max(1));
    }
    if exponent < -4 || i64::from(exponent) >= most {
        let (first, rest) = digits.split_at(1);
        let dot = if rest.is_empty() && !keep { "" } else { "." };
        return format!("{first}{dot}{rest}{}", written(exponent));
    }
    let mut text = if exponent < 0 {
        format!("0.{}{digits}", "0".repeat(exponent.unsigned_abs() as usize - 1))
    } else {
        let whole = exponent as usize + 1;
        let padded = format!("{digits}{}", "0".repeat(whole.saturating_sub(digits.len())));
        let (whole, fraction) = padded.split_at(whole);
        if fraction.is_empty() && !keep { whole.to_owned() } else { format!("{whole}.{fraction}") }
    };
    if float && !text.contains('.') {
        text.push_str(".0");
    }
    text
}

/// Digits with a separator after `every` of them from the right, padded with zeros to at least `width` characters.
pub(super) fn grouped(digits: &str, separator: char, every: usize, width: usize) -> String {
    let mut reversed = String::with_capacity(width + digits.len() * 2);
    let mut count = 0;
    for digit in digits.bytes().rev() {
        if count > 0 && count % every == 0 {
            reversed.push(separator);
        }
        reversed.push(char::from(digit));
        count += 1;
    }
    while reversed.len() < width {
        if count % every == 0 {
            reversed.push(separator);
        }
        reversed.push('0');
        count += 1;
    }
    reversed.chars().rev().collect()
}
