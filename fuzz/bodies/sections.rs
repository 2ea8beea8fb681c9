//! Inputs of several parts.

/// Separates the parts. No text in UTF-8 has this byte.
pub const SEPARATOR: u8 = 0xff;

/// The first `N` parts of an input. Missing ones are empty. The last one may hold separators.
pub fn sections<const N: usize>(input: &[u8]) -> [&[u8]; N] {
    let mut parts = input.splitn(N, |byte| *byte == SEPARATOR);
    std::array::from_fn(|_| parts.next().unwrap_or_default())
}

/// The inverse of [`sections`].
pub fn joined(parts: &[&[u8]]) -> Vec<u8> {
    parts.join(&SEPARATOR)
}

/// A part as text. Bytes that are not UTF-8 become U+FFFD.
pub fn text(part: &[u8]) -> String {
    String::from_utf8_lossy(part).into_owned()
}
