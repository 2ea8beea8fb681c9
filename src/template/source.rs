//! Checks a template's source before it is parsed.

/// The longest source [bytes]. The longest of 51 real templates has 17 KiB.
pub(super) const MAX_SOURCE: usize = 192 << 10;

pub(super) fn check(source: &str) -> Result<(), String> {
    if source.len() > MAX_SOURCE {
        return Err(format!("the source has {} bytes, expected at most {MAX_SOURCE}", source.len()));
    }
    Ok(())
}
