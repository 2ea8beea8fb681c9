//! Percent-encoding in paths.

/// Decodes percent-encoding. `None` if `text` is not percent-encoded UTF-8.
pub fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut out = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut digit = || char::from(bytes.next()?).to_digit(16);
        out.push((digit()? * 16 + digit()?) as u8);
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::percent_decode;

    #[test]
    fn ids_are_decoded() {
        assert_eq!(percent_decode("meta-llama%2FLlama%203").as_deref(), Some("meta-llama/Llama 3"));
        assert_eq!(percent_decode("a/b").as_deref(), Some("a/b"));
        for bad in ["%", "%2", "%zz", "%ff"] {
            assert_eq!(percent_decode(bad), None, "{bad}");
        }
    }
}
