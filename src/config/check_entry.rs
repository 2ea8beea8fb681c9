//! Checks entries of `[[models]]` before any part of them enters a path, a command or a URL.

use super::check_name::check_name;
use super::drafts::Drafts;
use super::entry::ModelEntry;
use super::mmproj::{Mmproj, MmprojFile};
use super::sampling::check_sampling;
use super::source::{PypiPackage, Source};
use super::validate::{MAX_IDLE_MINUTES, MAX_REPLICAS};

/// Checks an entry. Every part that enters a path, a URL or a command line must have a form that cannot break out of it.
pub fn check_entry(entry: &ModelEntry) -> Result<(), String> {
    for name in std::iter::once(&entry.id).chain(&entry.aliases) {
        check_name(name)?;
    }
    check_file(entry.sha256.as_deref(), entry.size)?;
    if entry.max_context == Some(0) || entry.gigabytes.is_some_and(|size| size <= 0.0) {
        return Err("max_context and gigabytes must be greater than 0".into());
    }
    if entry.share.is_some_and(|share| !(0.01..=100.0).contains(&share)) {
        return Err("share must be from 0.01 to 100".into());
    }
    if entry.replicas.is_some_and(|replicas| !(1..=MAX_REPLICAS).contains(&replicas)) {
        return Err(format!("replicas must be from 1 to {MAX_REPLICAS}"));
    }
    if entry.draft.as_deref().is_some_and(|name| name.trim().is_empty()) {
        return Err("draft is empty: name a model or the path of a GGUF file, or remove the key".into());
    }
    if entry.draft.is_some() && entry.drafts == Some(Drafts::Heads) {
        return Err("drafts is \"heads\", and draft names a draft model, which takes the place of a head: remove one of the two".into());
    }
    check_sampling(&entry.sampling)?;
    check_variant(entry)?;
    entry.mmproj.iter().try_for_each(|mmproj| check_mmproj(mmproj, &entry.source).map_err(|fault| format!("mmproj: {fault}")))?;
    match &entry.source {
        Source::File { path } if path.as_os_str().is_empty() && entry.of.is_none() => {
            Err("the entry needs a source with a path, or the name of another model in `of`".into())
        }
        Source::File { .. } => Ok(()),
        source => check_source(source),
    }
}

/// Checks the mmproj of a model with this source.
pub(super) fn check_mmproj(mmproj: &Mmproj, model: &Source) -> Result<(), String> {
    let Mmproj::File(MmprojFile { source, sha256, size }) = mmproj else { return Ok(()) };
    check_source(source)?;
    match source {
        Source::File { .. } if sha256.is_some() || size.is_some() => {
            Err("sha256 and size are for files that are fetched: remove them, or name a URL or hf:OWNER/REPO/FILE.gguf".into())
        }
        Source::File { .. } => Ok(()),
        _ if matches!(model, Source::File { .. }) => {
            Err("the model is a file of your own, so its mmproj must be one, too: download it and give its path".into())
        }
        Source::Hf { file: Some(file), .. } if !file.to_ascii_lowercase().ends_with(".gguf") => {
            Err(format!("the file `{file}` of the repository must end in .gguf"))
        }
        _ => check_file(sha256.as_deref(), *size),
    }
}

/// Checks what is known of a file that is fetched.
fn check_file(sha256: Option<&str>, size: Option<u64>) -> Result<(), String> {
    if sha256.is_some_and(|digest| digest.len() != 64 || !digest.bytes().all(|byte| byte.is_ascii_hexdigit())) {
        return Err("sha256 is not 64 hex digits".into());
    }
    if size == Some(0) { Err("size must be at least 1".into()) } else { Ok(()) }
}

/// Checks a source. A path must not be empty.
fn check_source(source: &Source) -> Result<(), String> {
    match source {
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
        Source::File { path } if path.as_os_str().is_empty() => Err("the path is empty".into()),
        Source::File { .. } => Ok(()),
        Source::Stored => Err("the source `stored` is that of models made with `penstock create`: a configuration cannot have it".into()),
    }
}

/// Checks that an entry, as written, either describes its own weights or names another model's, not both.
pub(super) fn check_weights(entry: &ModelEntry) -> Result<(), String> {
    let weights = [
        ("source", entry.has_source()),
        ("sha256", entry.sha256.is_some()),
        ("size", entry.size.is_some()),
        ("mmproj", entry.mmproj.is_some()),
        ("draft", entry.draft.is_some()),
        ("gigabytes", entry.gigabytes.is_some()),
        ("max_context", entry.max_context.is_some()),
    ];
    match weights.into_iter().find(|(_, is_set)| *is_set) {
        Some((key, _)) if entry.of.is_some() => {
            Err(format!("`{key}` describes the weights, which are those of the model in `of`: remove one of the two"))
        }
        _ => Ok(()),
    }
}

/// The longest system message and the most variables of a template.
const MAX_SYSTEM: usize = 1 << 20;
const MAX_VARIABLES: usize = 100;

/// Checks the fields that a name sets for its requests.
fn check_variant(entry: &ModelEntry) -> Result<(), String> {
    entry.of.iter().try_for_each(|of| check_name(of).map_err(|fault| format!("of: {fault}")))?;
    if entry.max_tokens == Some(0) {
        return Err("max_tokens must be at least 1".into());
    }
    if let Some(minutes) = entry.idle_unload_minutes.filter(|minutes| !(0.0..=MAX_IDLE_MINUTES).contains(minutes)) {
        return Err(format!("idle_unload_minutes is {minutes}, expected 0 to {MAX_IDLE_MINUTES}"));
    }
    if entry.system.as_ref().is_some_and(|text| text.len() > MAX_SYSTEM) {
        return Err(format!("system has more than {MAX_SYSTEM} bytes"));
    }
    if entry.chat_template_kwargs.len() > MAX_VARIABLES {
        return Err(format!("chat_template_kwargs has {} entries, at most {MAX_VARIABLES} are allowed", entry.chat_template_kwargs.len()));
    }
    Ok(())
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

/// Checks the name of a model that is to be made. Such a name must not be taken for a path or for a model on a hub.
pub fn check_made_name(name: &str) -> Result<(), String> {
    check_name(name)?;
    let bad = |why: &str| Err(format!("the name {name:?} {why}"));
    let last = name.rsplit('/').next().unwrap_or(name);
    if name.to_ascii_lowercase().ends_with(".gguf") {
        return bad("ends like a file's name: choose another");
    }
    if name.starts_with("hf:") {
        return bad("is that of a model on the Hugging Face hub: choose another");
    }
    if name.contains('@') || last.ends_with(':') || last.matches(':').count() > 1 || name.matches(':').count() > 2 {
        return bad("must have the form name, name:tag or owner/name:tag");
    }
    Ok(())
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
