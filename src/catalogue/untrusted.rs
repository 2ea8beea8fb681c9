//! Parsers of untrusted downloads, as a pull uses them but without a network, for the fuzz targets.

use super::download::{files_of, next_of, pick, redirect};
use super::manifest::Manifest;

/// Reads a page of the hub's listing and picks the files of the split model that `file` belongs to, or else those of the type `quant`.
/// Returns their paths.
///
/// # Errors
/// The message for the user.
pub fn picked(page: &str, file: Option<&str>, quant: Option<&str>) -> Result<Vec<String>, String> {
    let listed = files_of(page)?;
    Ok(pick(&listed, file, quant)?.into_iter().map(|one| one.path.clone()).collect())
}

/// The URL of the next page in a `Link` header.
pub fn next_page(links: &str) -> Option<&str> {
    next_of(links)
}

/// The target of a redirect in a download that began at `start`. None if the redirect is not followed, or if `start` or `from` is no URL.
pub fn redirected(start: &str, from: &str, location: &str) -> Option<String> {
    let (start, from) = (start.parse().ok()?, from.parse().ok()?);
    redirect(&start, &from, location).ok().map(|target| target.to_string())
}

/// The files that a stored model's manifest names. None if the manifest is malformed.
pub fn files_of_manifest(text: &[u8]) -> Option<Vec<String>> {
    let manifest: Manifest = serde_json::from_slice(text).ok()?;
    Some(manifest.files().into_iter().map(|(name, _, _)| name.to_owned()).collect())
}
