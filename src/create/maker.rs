//! [`Maker`]: follows a recipe and puts the model into the store.

use std::path::Path;

use catalogue::{ADAPTER_FILE, LATEST, MMPROJ, Manifest, NewFile, PEFT_FILES, Store, models, peft_name, stored_adapter};
use config::{Config, Context, ModelEntry, StoredVariant, check_made_name, find_model};
use gguf::GgufFile;
use quantize::{FILE_TYPES, FileType, Options, QuantizeError};
use serde_json::Map;

use super::error::CreateError;
use super::recipe::{AdapterOrigin, Origin, Recipe, TemplateText};

/// The longest chat template [bytes].
const MAX_TEMPLATE: u64 = 256 << 10;

/// Makes models in the store of a configuration.
pub struct Maker<'a> {
    pub config: &'a Config,
    pub store: &'a Store,
}

type Outcome<T> = Result<T, CreateError>;

fn refused<T>(what: impl Into<String>) -> Outcome<T> {
    Err(CreateError::Refused(what.into()))
}

/// The id of a made model: its name without `:latest`.
///
/// # Errors
/// The name has another form, or would be taken for something else.
pub fn made_id(name: &str) -> Outcome<String> {
    let id = name.strip_suffix(LATEST).unwrap_or(name);
    check_made_name(id).map_err(CreateError::Refused)?;
    Ok(id.to_owned())
}

/// The parts of a model before the changes.
struct Base {
    files: Vec<NewFile>,
    variant: StoredVariant,
    template: Option<TemplateText>,
}

impl Maker<'_> {
    /// Follows a recipe. `tell` gets each stage. Blocks, for minutes if files are hashed or quantised.
    ///
    /// # Errors
    /// The recipe is wrong, its origin is missing, or the name belongs to another model. Nothing has changed then.
    pub fn make(&self, name: &str, recipe: Recipe, tell: &dyn Fn(&str)) -> Outcome<Manifest> {
        let id = self.free_id(name)?;
        let Recipe { origin, adapter, changes, quantize } = recipe;
        let kind = quantize.as_deref().map(file_type).transpose()?;
        let Base { mut files, mut variant, mut template } = match origin {
            Origin::Model(from) => self.of_model(&from, &id)?,
            Origin::File(path) => {
                tell("reading model metadata");
                check_weights(&path)?;
                Base { files: Store::files_at(&path)?, variant: StoredVariant::default(), template: None }
            }
            Origin::Blobs(blobs) => {
                tell("parsing GGUF");
                Base { files: self.of_blobs(&blobs)?, variant: StoredVariant::default(), template: None }
            }
        };
        if let Some(origin) = adapter {
            if variant.adapter.is_some() {
                return refused(
                    "the model to start from has an adapter already, and a model has one: start from the model that it changes",
                );
            }
            tell("reading the adapter");
            let adapter = self.adapter_files(origin)?;
            variant.adapter = Some(stored_adapter(&adapter, 1.0));
            files.extend(adapter);
        }
        let scratch = self.store.scratch(&id).map_err(|error| CreateError::Disk(error.to_string()))?;
        let _unfinished = Scratch(&scratch);
        if let (Some(kind), [first, ..]) = (kind, files.as_slice()) {
            let weights = quantised(&first.path, kind, &scratch, tell)?;
            let is_kept = |file: &NewFile| {
                let of_adapter = variant.adapter.iter().flat_map(|adapter| &adapter.files);
                file.name == MMPROJ || of_adapter.into_iter().any(|stored| stored.name == file.name)
            };
            files = std::iter::once(weights).chain(files.into_iter().filter(is_kept)).collect();
        }
        template = changes.apply(&mut variant).or(template);
        if let Some(note) = self.context_note(&files, &variant) {
            tell(&note);
        }
        tell("writing manifest");
        let template = template.as_ref().map(|text| (text.jinja.as_str(), text.source.clone()));
        Ok(self.store.put(&id, &files, variant, template)?)
    }

    /// Gives a model a second name, with settings of its own from then on.
    ///
    /// # Errors
    /// As for [`Maker::make`].
    pub fn copy(&self, from: &str, to: &str) -> Outcome<Manifest> {
        self.make(to, Recipe::copy_of(from), &|_| {})
    }

    /// What to say about a context that is longer than what the weights are served with.
    fn context_note(&self, files: &[NewFile], variant: &StoredVariant) -> Option<String> {
        let asked = variant.context()?;
        let trained = GgufFile::open(&files.first()?.path).ok()?.context_length();
        let served = match self.config.engine.context {
            Context::Tokens(tokens) => Some((tokens, "that the server is set to (--context)")),
            Context::Auto => None,
        };
        let (most, why) = trained.map(|most| (most, "that the model was made for")).into_iter().chain(served).min()?;
        (asked > most).then(|| format!("num_ctx is {asked}, but the context has at most the {most} tokens {why}"))
    }

    /// The id for a name that a made model may have.
    fn free_id(&self, name: &str) -> Outcome<String> {
        let id = made_id(name)?;
        if self.config.models.iter().any(|entry| !entry.built_in && entry.names().any(|(_, name)| name == id)) {
            return refused(format!("the configuration has a model with the name `{id}`: choose another"));
        }
        self.store.check_replaceable(&id)?;
        Ok(id)
    }

    /// The entry of a model that a recipe names.
    fn entry(&self, name: &str) -> Option<ModelEntry> {
        let models = models(self.config, self.store);
        let known = find_model(&models, name).or_else(|| find_model(&models, name.strip_suffix(LATEST)?));
        // Models of a hub are in the store alone.
        let stored = || self.store.list().into_iter().find(|manifest| manifest.id == name).map(|manifest| self.store.entry(&manifest));
        known.cloned().or_else(stored)
    }

    fn of_model(&self, name: &str, id: &str) -> Outcome<Base> {
        let Some(entry) = self.entry(name) else {
            return match name.strip_suffix(LATEST).unwrap_or(name) == id {
                _ if name.starts_with("hf:") => Err(CreateError::NotOnDisk(name.to_owned())),
                true => refused(format!("`{id}` would be made from itself, and it does not exist yet: name another model to start from")),
                false => Err(CreateError::NotFound(name.chars().take(100).collect::<String>().escape_debug().to_string())),
            };
        };
        if self.store.path(&entry).is_none() {
            return Err(CreateError::NotOnDisk(entry.stored_as().to_owned()));
        }
        let template = entry.chat_template.as_deref().map(|path| template_of(path, &entry)).transpose()?;
        let (files, mut variant) = (self.store.files_of(&entry)?, inherited(&entry));
        variant.adapter = entry.adapter.as_ref().map(|adapter| stored_adapter(&files, adapter.scale));
        Ok(Base { files, variant, template })
    }

    /// The files of an adapter, which are checked as far as that is possible without its model.
    fn adapter_files(&self, origin: AdapterOrigin) -> Outcome<Vec<NewFile>> {
        let files = match origin {
            AdapterOrigin::Path(path) => catalogue::adapter_at(&path)?,
            AdapterOrigin::Blobs(blobs) => {
                blobs.iter().map(|(name, digest)| self.adapter_blob(name, digest)).collect::<Outcome<Vec<NewFile>>>()?
            }
        };
        let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
        let is_whole = match names[..] {
            [ADAPTER_FILE] => true,
            _ => names.len() == PEFT_FILES.len() && PEFT_FILES.iter().all(|name| peft_name(name).is_some_and(|due| names.contains(&&*due))),
        };
        if !is_whole {
            return refused(format!("an adapter is one GGUF file, or the files {}", PEFT_FILES.join(" and ")));
        }
        if let [file] = &files[..] {
            check_adapter(&file.path)?;
        }
        Ok(files)
    }

    /// An uploaded file of an adapter.
    fn adapter_blob(&self, name: &str, digest: &str) -> Outcome<NewFile> {
        let Some(path) = self.store.blob(digest) else {
            return refused(format!("the blob sha256:{digest} of `{}` does not exist: upload it to /api/blobs first", shown(name)));
        };
        let stored = match name.to_ascii_lowercase().ends_with(".gguf") {
            true => Some(ADAPTER_FILE.to_owned()),
            false => peft_name(name.rsplit('/').next().unwrap_or(name)),
        };
        let Some(stored) = stored else {
            return refused(format!("`{}` is no file of an adapter: expected a GGUF file, or {}", shown(name), PEFT_FILES.join(" and ")));
        };
        let size = path.metadata().map_err(|error| CreateError::Disk(error.to_string()))?.len();
        Ok(NewFile { name: stored, sha256: digest.to_owned(), size, moves: false, path })
    }

    /// The files of uploads.
    fn of_blobs(&self, blobs: &[(String, String)]) -> Outcome<Vec<NewFile>> {
        let (mut files, mut mmproj) = (Vec::new(), None);
        for (name, digest) in blobs {
            let is_plain = !name.starts_with('/') && name.split('/').all(|part| !matches!(part, "" | "." | ".."));
            if !is_plain {
                return refused(format!("the file name `{}` leads out of the model: name the file without folders", shown(name)));
            }
            if !name.to_ascii_lowercase().ends_with(".gguf") {
                return refused(format!(
                    "`{}` is not a GGUF file, which models are made of: `penstock convert` makes one of a checkpoint",
                    shown(name)
                ));
            }
            let Some(path) = self.store.blob(digest) else {
                return refused(format!("the blob sha256:{digest} of `{}` does not exist: upload it to /api/blobs first", shown(name)));
            };
            let size = path.metadata().map_err(|error| CreateError::Disk(error.to_string()))?.len();
            let file = NewFile { name: String::new(), sha256: digest.clone(), size, moves: false, path };
            match GgufFile::open(&file.path).is_ok_and(|opened| opened.architecture() == Some("clip")) {
                true if mmproj.is_some() => return refused("two of the files are picture encoders (mmproj): name one"),
                true => mmproj = Some(NewFile { name: MMPROJ.to_owned(), ..file }),
                false => files.push((gguf::PartName::parse(Path::new(name)), file)),
            }
        }
        let count = files.len();
        files.sort_by_key(|(part, _)| part.as_ref().map_or(0, |part| part.no));
        for (at, (part, file)) in files.iter_mut().enumerate() {
            match (count, part) {
                (1, None) => file.name = catalogue::MODEL.to_owned(),
                (_, Some(part)) if part.count == count && part.no == at + 1 => {
                    file.name = format!("model-{:05}-of-{count:05}.gguf", part.no)
                }
                _ => return refused("expected one GGUF file, or all parts of one (NAME-00001-of-00002.gguf and so on)"),
            }
        }
        let Some((_, first)) = files.first() else { return refused("no file of weights is named") };
        if count == 1 {
            check_weights(&first.path)?;
        }
        Ok(files.into_iter().map(|(_, file)| file).chain(mmproj).collect())
    }
}

fn shown(name: &str) -> String {
    name.chars().take(100).collect::<String>().escape_debug().to_string()
}

/// The settings that a made model begins with.
fn inherited(entry: &ModelEntry) -> StoredVariant {
    let from = Some(entry.id.clone());
    if let Some(made) = &entry.made {
        return StoredVariant { from, template: None, ..StoredVariant::clone(made) };
    }
    let mut parameters = Map::new();
    if let Some(count) = entry.max_tokens {
        parameters.insert("num_predict".to_owned(), count.into());
    }
    StoredVariant {
        from,
        system: entry.system.clone(),
        parameters,
        base: entry.base,
        recommended: entry.sampling,
        reasoning_effort: entry.reasoning_effort.clone(),
        variables: entry.chat_template_kwargs.clone().into_iter().collect(),
        ..StoredVariant::default()
    }
}

/// The template that replaces that of the model's file.
fn template_of(path: &Path, entry: &ModelEntry) -> Outcome<TemplateText> {
    let disk = |error: std::io::Error| CreateError::Disk(format!("{}: {error}", path.display()));
    let jinja = outside::read_text(path, MAX_TEMPLATE).map_err(disk)?;
    let source =
        entry.made.as_ref().and_then(|made| made.template.as_ref()).map_or_else(|| jinja.clone(), |template| template.source.clone());
    Ok(TemplateText { source, jinja })
}

/// Checks that a file is a model in the GGUF format, not an adapter or a projector.
fn check_weights(path: &Path) -> Outcome<()> {
    let file = GgufFile::open(path).map_err(|error| CreateError::Refused(without_path(&error.to_string(), path)))?;
    let is = |key: &str, value: &str| file.get_str(key) == Some(value);
    if is("general.type", "adapter") {
        return refused("the file is an adapter: name its model to start from, and the file in `adapters` (or ADAPTER)");
    }
    if is("general.architecture", "clip") || is("general.type", "mmproj") {
        return refused("the file is a picture encoder (mmproj): name its model, beside which it is found");
    }
    Ok(())
}

/// Checks that a GGUF file is an adapter.
pub(super) fn check_adapter(path: &Path) -> Outcome<()> {
    let file = GgufFile::open(path).map_err(|error| CreateError::Refused(without_path(&error.to_string(), path)))?;
    match file.get_str("general.type") == Some("adapter") || file.architecture() == Some("controlvector") {
        true => Ok(()),
        false => refused("the adapter's file holds no adapter: its general.type is not `adapter`"),
    }
}

/// An error's text without the path of this machine that it begins with.
fn without_path(text: &str, path: &Path) -> String {
    text.replace(&format!("{}: ", path.display()), "the GGUF file is not usable: ").replace(&path.display().to_string(), "the file")
}

fn file_type(name: &str) -> Outcome<&'static FileType> {
    let names = || FILE_TYPES.iter().map(|kind| kind.name).collect::<Vec<_>>().join(", ");
    FileType::by_name(name)
        .ok_or_else(|| CreateError::Refused(format!("quantize: `{}` is no file type: expected one of {}", shown(name), names())))
}

/// A file in the making, which is removed unless it was moved to its place.
struct Scratch<'a>(&'a Path);

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.0);
    }
}

/// Writes the weights in another file type.
fn quantised(source: &Path, kind: &FileType, out: &Path, tell: &dyn Fn(&str)) -> Outcome<NewFile> {
    let unusable = |error: &dyn std::fmt::Display| CreateError::Refused(without_path(&error.to_string(), source));
    let file = GgufFile::open(source).map_err(|error| unusable(&error))?;
    tell(&format!("quantizing the model to {}", kind.name));
    let options = Options { force: true, ..Options::default() };
    quantize::quantize(&file, kind, out, &options, &mut |_| {}).map_err(|error| match error {
        QuantizeError::Write { .. } => CreateError::Disk(error.to_string()),
        other => unusable(&other),
    })?;
    let mut files = Store::weights_at(out)?;
    let Some(file) = files.pop() else { return refused("nothing was written") };
    Ok(NewFile { name: catalogue::MODEL.to_owned(), moves: true, ..file })
}

#[cfg(test)]
#[path = "maker_tests.rs"]
mod tests;
