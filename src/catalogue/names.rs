//! Resolves a name that a user types to a catalogue entry.

use std::path::Path;

use super::beside::is_mmproj_name;
use super::download::SAFETENSORS;
use super::store::Store;
use config::{AdapterEntry, Config, ModelEntry, Source, check_entry, find_model, nearest_model};

/// The tag that Ollama's clients give a name without one.
pub const LATEST: &str = ":latest";

/// Finds the entry for a name, which is one of
/// - an id or an alias of the catalogue or of a model that was made on this machine, with or without `:latest`,
/// - the path of a `*.gguf` file, whose stem becomes the id,
/// - `hf:owner/repo/file.gguf`, a file on the Hugging Face hub,
/// - `hf:owner/repo:Q4_K_M` (with or without `hf:`), the repository's file of that type,
/// - `hf:owner/repo`, the repository's only file, or the one of the usual type.
///
/// Names on the hub may end in `@revision`. The default is `main`.
pub fn resolve(config: &Config, name: &str) -> anyhow::Result<ModelEntry> {
    resolve_among(&models(config, &Store::new(&config.server.models_dir)), name)
}

/// Does the same for a list of models, for several names.
pub fn resolve_among(models: &[ModelEntry], name: &str) -> anyhow::Result<ModelEntry> {
    // Ollama's users write `:latest` for a name without a tag.
    let known = find_model(models, name).or_else(|| find_model(models, name.strip_suffix(LATEST)?));
    if let Some(entry) = known {
        return Ok(entry.clone());
    }
    if let Some(rest) = name.strip_prefix("hf:") {
        return from_hub(name, rest);
    }
    let path = Path::new(name);
    if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf")) {
        if let Err(error) = outside::check_regular(path) {
            let is_there = error.kind() != std::io::ErrorKind::NotFound;
            anyhow::bail!("{name}: {}", if is_there { error.to_string() } else { "no such file".to_owned() });
        }
        let id = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_owned();
        return Ok(ModelEntry::new(&id, Source::File { path: path.to_owned() }));
    }
    refuse_other_formats(path)?;
    refuse_directory(name, path)?;
    if name.split_once(':').is_some_and(|(repo, quant)| repo.split('/').count() == 2 && !quant.is_empty()) {
        return from_hub(name, name);
    }
    let near = nearest_model(models.iter().flat_map(ModelEntry::names), name);
    let hint = near.map_or(String::new(), |id| format!(" (did you mean {id}?)"));
    anyhow::bail!("the catalogue has no model `{name}`{hint}: `penstock list` shows the models it has")
}

/// The models of the configuration and those that were made on this machine. An entry of a configuration's own file wins over a made model
/// of the same name, which wins over the built-in catalogue.
pub fn models(config: &Config, store: &Store) -> Vec<ModelEntry> {
    let mut made = store.made();
    let is_configured = |name: &str| {
        let is_adapter = config.adapters.iter().any(|adapter| adapter.answers_to(name));
        is_adapter || config.models.iter().any(|own| !own.built_in && own.names().any(|(_, own)| own == name))
    };
    made.retain(|entry| !is_configured(&entry.id));
    let is_made = |name: &str| made.iter().any(|entry| entry.id == name);
    let mut models = config.models.clone();
    models.retain(|entry| !is_made(&entry.id));
    models.iter_mut().for_each(|entry| entry.aliases.retain(|alias| !is_made(alias)));
    models.extend(made);
    let over = |adapter: &AdapterEntry| Some(store.adapter_over(adapter, base_of(config, &models, adapter)?));
    let adapters: Vec<ModelEntry> = config.adapters.iter().filter_map(over).collect();
    models.extend(adapters);
    models
}

/// The model of a list that an adapter changes: the one that it names, or the first one that the configuration serves.
pub fn base_of<'a>(config: &Config, models: &'a [ModelEntry], adapter: &AdapterEntry) -> Option<&'a ModelEntry> {
    let name = adapter.of.as_ref().or_else(|| config.server.default_models.first())?;
    find_model(models, name).or_else(|| find_model(models, name.strip_suffix(LATEST)?))
}

/// Fails with advice if `path` holds a model in safetensors format.
fn refuse_other_formats(path: &Path) -> anyhow::Result<()> {
    let is_safetensors = |path: &Path| path.extension().is_some_and(|extension| extension == "safetensors");
    let holds_some =
        || std::fs::read_dir(path).is_ok_and(|mut dir| dir.any(|entry| entry.is_ok_and(|entry| is_safetensors(&entry.path()))));
    match path.exists() && is_safetensors(path) || holds_some() {
        true => anyhow::bail!("{}: {SAFETENSORS}", path.display()),
        false => Ok(()),
    }
}

/// The most models of a directory that an error names.
const MAX_NAMED: usize = 4;

/// Fails if `path` is a directory, and names the models in it.
fn refuse_directory(name: &str, path: &Path) -> anyhow::Result<()> {
    let Ok(entries) = std::fs::read_dir(path) else { return Ok(()) };
    let is_gguf = |file: &str| Path::new(file).extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
    let is_model = |file: &String| is_gguf(file) && !is_mmproj_name(file);
    let mut files: Vec<String> = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).filter(is_model).collect();
    files.sort();
    let more = if files.len() > MAX_NAMED { format!(" and {} more", files.len() - MAX_NAMED) } else { String::new() };
    files.truncate(MAX_NAMED);
    match files.is_empty() {
        true => anyhow::bail!("{name} is a directory, and no GGUF file is in it: name a file"),
        false => anyhow::bail!("{name} is a directory: name a file in it ({}{more})", files.join(", ")),
    }
}

fn from_hub(name: &str, rest: &str) -> anyhow::Result<ModelEntry> {
    let (place, revision) = rest.split_once('@').unwrap_or((rest, "main"));
    let (place, quant) = place.split_once(':').map_or((place, None), |(place, quant)| (place, Some(quant.to_owned())));
    let mut parts = place.splitn(3, '/');
    let (Some(owner), Some(repo), file) = (parts.next(), parts.next(), parts.next()) else {
        anyhow::bail!("`{name}` is not hf:owner/repo/file.gguf, hf:owner/repo:TYPE or hf:owner/repo");
    };
    if file.is_some_and(|file| file.ends_with(".safetensors")) {
        anyhow::bail!("`{name}`: {SAFETENSORS}");
    }
    let source = Source::Hf { repo: format!("{owner}/{repo}"), file: file.map(str::to_owned), quant, revision: revision.into() };
    let entry = ModelEntry::new(name, source);
    check_entry(&entry).map_err(|fault| anyhow::anyhow!("`{name}`: {fault}"))?;
    Ok(entry)
}

/// A short description of a source, for lists and messages.
pub fn describe(source: &Source) -> String {
    match source {
        Source::Pypi { packages } => match packages.as_slice() {
            [one] => format!("pypi {}=={}", one.name, one.version),
            [first, ..] => format!("pypi {}=={} and {} more", first.name, first.version, packages.len() - 1),
            [] => "pypi".into(),
        },
        Source::Hf { repo, file: Some(file), .. } => format!("hf {repo}/{file}"),
        Source::Hf { repo, quant: Some(quant), .. } => format!("hf {repo}:{quant}"),
        Source::Hf { repo, .. } => format!("hf {repo}"),
        Source::Https { url } => url.clone(),
        Source::File { path } => path.display().to_string(),
        Source::Stored => "made here".into(),
    }
}

#[cfg(test)]
#[path = "names_tests.rs"]
mod tests;
