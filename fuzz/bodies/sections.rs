//! Splits inputs into several parts.

/// Separates the parts. UTF-8 text never contains this byte.
pub const SEPARATOR: u8 = 0xff;

/// The first `N` parts of an input. Missing parts are empty. The last part may contain separators.
pub fn sections<const N: usize>(input: &[u8]) -> [&[u8]; N] {
    let mut parts = input.splitn(N, |byte| *byte == SEPARATOR);
    std::array::from_fn(|_| parts.next().unwrap_or_default())
}

/// Joins parts into an input. The inverse of [`sections`].
pub fn joined(parts: &[&[u8]]) -> Vec<u8> {
    parts.join(&SEPARATOR)
}

/// Converts a part to text. Bytes that are not UTF-8 become U+FFFD.
pub fn text(part: &[u8]) -> String {
    String::from_utf8_lossy(part).into_owned()
}
