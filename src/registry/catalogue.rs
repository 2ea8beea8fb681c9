//! From what a user types to an entry of the catalogue.

use std::path::Path;

use crate::config::{Config, ModelEntry, Source, check_entry, find_model};

/// An entry by id or alias, by path (`*.gguf`; its id is the file's stem), or straight from the Hugging Face hub
/// (`hf:owner/repo/file.gguf`, with `@revision` at the end where it is not main).
pub fn resolve(config: &Config, name: &str) -> anyhow::Result<ModelEntry> {
    if let Some(entry) = find_model(&config.models, name) {
        return Ok(entry.clone());
    }
    if let Some(rest) = name.strip_prefix("hf:") {
        return from_hub(name, rest);
    }
    let path = Path::new(name);
    if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf")) {
        anyhow::ensure!(path.is_file(), "{name}: no such file");
        let id = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_owned();
        return Ok(adhoc(id, Source::File { path: path.to_owned() }));
    }
    anyhow::bail!("the catalogue has no model `{name}` (`penstock list` shows what it has)")
}

fn from_hub(name: &str, rest: &str) -> anyhow::Result<ModelEntry> {
    let (place, revision) = rest.split_once('@').unwrap_or((rest, "main"));
    let mut parts = place.splitn(3, '/');
    let (Some(owner), Some(repo), Some(file)) = (parts.next(), parts.next(), parts.next()) else {
        anyhow::bail!("`{name}` is not hf:owner/repo/file.gguf");
    };
    let source = Source::Hf { repo: format!("{owner}/{repo}"), file: file.into(), revision: revision.into() };
    let entry = adhoc(name.to_owned(), source);
    check_entry(&entry).map_err(|fault| anyhow::anyhow!("`{name}`: {fault}"))?;
    Ok(entry)
}

fn adhoc(id: String, source: Source) -> ModelEntry {
    ModelEntry { id, aliases: Vec::new(), source, sha256: None, size: None, context: None, eager: false, chat_template: None }
}

/// A source in a few words.
pub fn describe(source: &Source) -> String {
    match source {
        Source::Pypi { packages } => match packages.as_slice() {
            [one] => format!("pypi {}=={}", one.name, one.version),
            [first, ..] => format!("pypi {}=={} and {} more", first.name, first.version, packages.len() - 1),
            [] => "pypi".into(),
        },
        Source::Hf { repo, file, .. } => format!("hf {repo}/{file}"),
        Source::Https { url } => url.clone(),
        Source::File { path } => path.display().to_string(),
    }
}
