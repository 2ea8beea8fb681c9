//! Finds the models in Ollama's own folder: manifests that name blobs by their digests.

use std::path::{Path, PathBuf};

use catalogue::{ADAPTER_FILE, MMPROJ, MODEL, Manifest, NewFile, blob_digest, sha256_of, stored_adapter};
use config::{ExampleMessage, StoredVariant};
use gguf::GgufFile;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::error::CreateError;
use super::maker::{Maker, check_adapter, made_id};
use super::recipe::{Changes, TemplateText};

/// Far above any real manifest and any text of a model [bytes].
const MAX_TEXT: u64 = 4 << 20;
/// The most manifests that are read.
const MOST: usize = 10_000;
/// The registry and the namespace that names leave out.
const REGISTRY: &str = "registry.ollama.ai/";
const LIBRARY: &str = "library/";

/// A folder of Ollama's models.
pub struct OllamaFolder {
    root: PathBuf,
}

/// A model in the folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderModel {
    /// The name by which Ollama lists the model, without `:latest`.
    pub name: String,
    manifest: PathBuf,
}

#[derive(Deserialize)]
struct OllamaManifest {
    #[serde(default)]
    layers: Vec<Layer>,
}

#[derive(Deserialize)]
struct Layer {
    #[serde(rename = "mediaType")]
    media_type: String,
    digest: String,
    size: u64,
}

/// The folder that Ollama uses for this user: the variable `OLLAMA_MODELS`, or `~/.ollama/models`, or that of the system's service.
pub fn default_folder() -> Option<PathBuf> {
    if let Some(folder) = std::env::var_os("OLLAMA_MODELS").filter(|folder| !folder.is_empty()) {
        return Some(folder.into());
    }
    let own = std::env::home_dir().map(|home| home.join(".ollama/models"));
    let of_service = PathBuf::from("/usr/share/ollama/.ollama/models");
    own.clone()
        .filter(|own| own.join("manifests").is_dir())
        .or_else(|| Some(of_service).filter(|dir| dir.join("manifests").is_dir()))
        .or(own)
}

type Outcome<T> = Result<T, CreateError>;

fn refused<T>(what: impl Into<String>) -> Outcome<T> {
    Err(CreateError::Refused(what.into()))
}

impl OllamaFolder {
    /// # Errors
    /// The folder has no manifests.
    pub fn open(root: &Path) -> Outcome<Self> {
        match root.join("manifests").is_dir() {
            true => Ok(Self { root: root.to_owned() }),
            false => refused(format!("{}: no folder of Ollama's models: it has no folder `manifests`", root.display())),
        }
    }

    /// All models, by name.
    pub fn list(&self) -> Vec<FolderModel> {
        let mut found = Vec::new();
        walk(&self.root.join("manifests"), &mut Vec::new(), &mut found);
        found.sort_by(|one: &FolderModel, other| one.name.cmp(&other.name));
        found
    }

    fn blob(&self, digest: &str) -> Outcome<PathBuf> {
        let digits = blob_digest(digest).map_err(CreateError::Refused)?;
        let blobs = self.root.join("blobs");
        // Older versions wrote a colon.
        let found = ["-", ":"].map(|sign| blobs.join(format!("sha256{sign}{digits}"))).into_iter().find(|path| path.is_file());
        found.ok_or_else(|| CreateError::Refused(format!("the blob sha256:{digits} is missing: `ollama pull` fetches it again")))
    }

    /// A layer's blob, whose size and digest are right, as a file of a stored model.
    fn file(&self, layer: &Layer, name: &str) -> Outcome<NewFile> {
        let (path, sha256) = (self.blob(&layer.digest)?, blob_digest(&layer.digest).map_err(CreateError::Refused)?);
        let size = path.metadata().map_err(|error| CreateError::Disk(format!("{}: {error}", path.display())))?.len();
        if size != layer.size {
            return refused(format!("the blob sha256:{sha256} has {size} bytes, expected {}: `ollama pull` fetches it again", layer.size));
        }
        check_digest(&path, &sha256)?;
        Ok(NewFile { path, name: name.to_owned(), sha256, size, moves: false })
    }

    fn text(&self, layer: &Layer) -> Outcome<String> {
        let path = self.blob(&layer.digest)?;
        let text = outside::read_text(&path, MAX_TEXT).map_err(|error| CreateError::Disk(format!("{}: {error}", path.display())))?;
        let digits = blob_digest(&layer.digest).map_err(CreateError::Refused)?;
        check_digest(&path, &digits)?;
        Ok(text)
    }

    fn layers(&self, model: &FolderModel) -> Outcome<Vec<Layer>> {
        let broken = |error: String| CreateError::Refused(format!("its manifest cannot be read: {error}"));
        let bytes = outside::read_regular(&model.manifest, MAX_TEXT).map_err(|error| broken(error.to_string()))?;
        let manifest: OllamaManifest = serde_json::from_slice(&bytes).map_err(|error| broken(error.to_string()))?;
        Ok(manifest.layers)
    }
}

/// Collects the manifests below a folder: `HOST/NAMESPACE/NAME/TAG`.
fn walk(dir: &Path, path: &mut Vec<String>, found: &mut Vec<FolderModel>) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let Some(name) = entry.file_name().to_str().filter(|name| !name.starts_with('.')).map(str::to_owned) else { continue };
        let place = entry.path();
        if path.len() < 3 && place.is_dir() {
            path.push(name);
            walk(&place, path, found);
            path.pop();
        } else if path.len() == 3 && place.is_file() && found.len() < MOST {
            let whole = format!("{}/{}/{}:{name}", path[0], path[1], path[2]);
            let short = whole.strip_prefix(REGISTRY).map(|rest| rest.strip_prefix(LIBRARY).unwrap_or(rest)).unwrap_or(&whole);
            found.push(FolderModel { name: short.strip_suffix(catalogue::LATEST).unwrap_or(short).to_owned(), manifest: place });
        }
    }
}

fn check_digest(path: &Path, due: &str) -> Outcome<()> {
    let found = sha256_of(path).map_err(|error| CreateError::Disk(format!("{}: {error}", path.display())))?;
    match found == due {
        true => Ok(()),
        false => refused(format!("the blob sha256:{due} is damaged, its digest is sha256:{found}: `ollama pull` fetches it again")),
    }
}

impl Maker<'_> {
    /// Takes a model over from Ollama's folder: its weights by a link, and its settings. `tell` gets notes. Blocks.
    ///
    /// # Errors
    /// A blob is missing or damaged, the model has parts that are not supported, or the name belongs to a model that was fetched.
    pub fn import(&self, folder: &OllamaFolder, model: &FolderModel, tell: &dyn Fn(&str)) -> Outcome<Manifest> {
        let id = made_id(&model.name)?;
        self.store.check_replaceable(&id)?;
        let (mut weights, mut mmproj, mut adapter, mut changes, mut go_template) = (None, None, None, Changes::default(), None);
        for layer in folder.layers(model)? {
            let kind = layer.media_type.rsplit('.').next().unwrap_or_default();
            match kind {
                "model" if weights.is_some() => return refused("it has more than one file of weights, which is not supported"),
                "model" => weights = Some(layer),
                "template" | "prompt" => go_template = Some(folder.text(&layer)?),
                "system" => changes.system = Some(folder.text(&layer)?),
                "license" => changes.licences.get_or_insert_default().push(folder.text(&layer)?),
                "params" => parameters(&folder.text(&layer)?, &mut changes, tell)?,
                "messages" => {
                    let messages: Vec<ExampleMessage> = serde_json::from_str(&folder.text(&layer)?)
                        .map_err(|error| CreateError::Refused(format!("its messages cannot be read: {error}")))?;
                    changes.messages = Some(messages);
                }
                "adapter" if adapter.is_some() => return refused("it has more than one adapter, which is not supported"),
                "adapter" => adapter = Some(layer),
                "projector" => mmproj = Some(layer),
                other => tell(&format!("its part `{}` is left out", other.chars().take(40).collect::<String>().escape_debug())),
            }
        }
        let Some(layer) = weights else { return refused("it has no file of weights, for example because it runs in Ollama's cloud") };
        let weights = folder.file(&layer, MODEL)?;
        let file = GgufFile::open(&weights.path).map_err(|error| CreateError::Refused(error.to_string()))?;
        let mmproj = mmproj.map(|layer| folder.file(&layer, MMPROJ)).transpose()?;
        changes.template = template(&file, go_template.as_deref(), tell)?;
        let mut variant = StoredVariant::default();
        let text = changes.apply(&mut variant);
        let adapter = adapter.map(|layer| folder.file(&layer, ADAPTER_FILE)).transpose()?;
        if let Some(file) = &adapter {
            check_adapter(&file.path)?;
            variant.adapter = Some(stored_adapter(std::slice::from_ref(file), 1.0));
        }
        let files: Vec<NewFile> = std::iter::once(weights).chain(mmproj).chain(adapter).collect();
        Ok(self.store.put(&id, &files, variant, text.as_ref().map(|text| (text.jinja.as_str(), text.source.clone())))?)
    }
}

fn parameters(text: &str, changes: &mut Changes, tell: &dyn Fn(&str)) -> Outcome<()> {
    let parameters: Map<String, Value> =
        serde_json::from_str(text).map_err(|error| CreateError::Refused(format!("its parameters cannot be read: {error}")))?;
    for (name, value) in &parameters {
        // A model is worth more than a parameter of it.
        if let Err(what) = changes.set_parameter(name, value) {
            tell(&format!("a parameter is left out: {what}"));
        }
    }
    Ok(())
}

/// The template of an imported model. The one in Jinja that the model's makers wrote into the file comes first.
fn template(file: &GgufFile, go: Option<&str>, tell: &dyn Fn(&str)) -> Outcome<Option<TemplateText>> {
    let Some(go) = go.filter(|_| file.get_str("tokenizer.chat_template").is_none()) else { return Ok(None) };
    match TemplateText::new(go) {
        Ok(text) => Ok(Some(text)),
        Err(what) => {
            tell(&format!("its template cannot be translated, so that it only continues texts: {what}"));
            Ok(None)
        }
    }
}

#[cfg(test)]
#[path = "ollama_folder_tests.rs"]
mod tests;
