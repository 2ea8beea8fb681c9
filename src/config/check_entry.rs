//! Checks entries of `[[models]]` before any part of them enters a path, a command or a URL.

use super::entry::{ModelEntry, PypiPackage, Source};
use super::sampling::check_sampling;

/// Checks an entry. Every part that enters a path, a URL or a command line must have a form that cannot escape from it.
pub fn check_entry(entry: &ModelEntry) -> Result<(), String> {
    for name in std::iter::once(&entry.id).chain(&entry.aliases) {
        check_name(name)?;
    }
    if entry.sha256.as_ref().is_some_and(|digest| digest.len() != 64 || !digest.bytes().all(|b| b.is_ascii_hexdigit())) {
        return Err("sha256 is not 64 hex digits".into());
    }
    if entry.size == Some(0) {
        return Err("size must be at least 1".into());
    }
    if entry.max_context == Some(0) || entry.gigabytes.is_some_and(|size| size <= 0.0) {
        return Err("max_context and gigabytes must be greater than 0".into());
    }
    if entry.share.is_some_and(|share| !(0.01..=100.0).contains(&share)) {
        return Err("share must be from 0.01 to 100".into());
    }
    check_sampling(&entry.sampling)?;
    match &entry.source {
        Source::Pypi { packages } if packages.is_empty() => Err("packages is empty".into()),
        Source::Pypi { packages } => packages.iter().try_for_each(check_package),
        Source::Hf { repo, file, quant, revision } => {
            if repo.split('/').count() != 2 {
                return Err(format!("repo `{repo}` must have the form owner/name"));
            }
            check_path("repo", repo)?;
            file.iter().try_for_each(|file| check_path("file", file))?;
            match quant {
                Some(_) if file.is_some() => return Err("a source must not have both file and quant".into()),
                Some(quant) if quant.is_empty() || !quant.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c)) => {
                    return Err(format!("quant {quant:?} must be the name of a type, such as Q4_K_M"));
                }
                _ => {}
            }
            check_path("revision", revision)
        }
        Source::Https { url } => check_url(url),
        Source::File { path } if path.as_os_str().is_empty() => Err("path is empty".into()),
        Source::File { .. } => Ok(()),
    }
}

/// Allows `https` to any host and plain `http` to this machine. Refuses user names and passwords, which would end up in logs.
pub fn check_url(url: &str) -> Result<(), String> {
    let Some((scheme, rest)) = url.split_once("://") else { return Err(format!("url {url:?} is not https")) };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit_once(':').map_or(authority, |(host, port)| if port.ends_with(']') { authority } else { host });
    if !["https", "http"].contains(&scheme) {
        return Err(format!("url {url:?} is not https"));
    }
    if authority.is_empty() || authority.contains('@') || !url.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(format!("url {url:?} is malformed"));
    }
    if scheme == "https" || ["127.0.0.1", "localhost", "[::1]"].contains(&host) {
        return Ok(());
    }
    Err(format!("url {url:?}: plain http is only allowed to this machine, use https"))
}

fn check_name(name: &str) -> Result<(), String> {
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

fn check_package(package: &PypiPackage) -> Result<(), String> {
    let plain = |text: &str, more: &str| {
        text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c))
    };
    if !plain(&package.name, "._-") {
        return Err(format!("the package name {:?} is malformed", package.name));
    }
    if !plain(&package.version, "._+!-") {
        return Err(format!("the package version {:?} is malformed", package.version));
    }
    check_path("member", &package.member)
}

/// Allows a relative path of plain characters without `..`.
fn check_path(what: &str, path: &str) -> Result<(), String> {
    let shape = path.chars().all(|c| c.is_ascii_alphanumeric() || "._-+/@".contains(c))
        && path.split('/').all(|part| !part.is_empty() && part != "." && part != "..");
    if shape { Ok(()) } else { Err(format!("{what} {path:?} must be a plain relative path")) }
}
