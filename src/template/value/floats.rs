//! Writes floats as text.

/// Like Python's `repr`: the shortest digits that read back as the same number. Numbers below 1e-4 and from 1e16 on have an exponent.
pub(crate) fn float_repr(number: f64) -> String {
    let size = number.abs();
    if number.is_nan() {
        return "nan".into();
    }
    if number.is_infinite() {
        return if number < 0.0 { "-inf".into() } else { "inf".into() };
    }
    if size == 0.0 || (1e-4..1e16).contains(&size) {
        return format!("{number:?}");
    }
    let text = format!("{number:e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let sign = if exponent.starts_with('-') { '-' } else { '+' };
    format!("{mantissa}e{sign}{:0>2}", exponent.trim_start_matches('-'))
}
