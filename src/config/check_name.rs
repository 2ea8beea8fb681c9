//! The form of names.

/// Checks the name of a model or an adapter, which enters paths and URLs.
pub(super) fn check_name(name: &str) -> Result<(), String> {
    let shape = name.len() <= 200
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-:/@".contains(c))
        && name.split('/').all(|part| !part.is_empty() && part != "." && part != "..");
    if shape {
        Ok(())
    } else {
        Err(format!("the name {name:?} must begin with a letter or digit and contain only letters, digits and . _ - : / @"))
    }
}
