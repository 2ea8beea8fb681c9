//! Finds the picture encoder of a model: the one that its entry names, or one beside its file.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::SystemTime;

use anyhow::{Context, bail};

use catalogue::{MmprojBeside, Store, mmproj_beside};
use config::{Config, Mmproj, ModelEntry};
use serving::{EncoderFacts, RowShape};

/// A picture encoder that fits a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PictureEncoder {
    pub path: PathBuf,
    pub facts: EncoderFacts,
}

/// The outcome of a search.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FoundEncoder {
    pub encoder: Option<PictureEncoder>,
    /// What users should know: files that were left out, with the reason.
    pub notes: Vec<String>,
}

/// Finds the picture encoder of a model whose file is `path`. `shape`: the rows that the model takes.
///
/// # Errors
/// The entry or the flag `--mmproj` names a file that is missing, malformed, or another model's: both widths are named.
pub fn mmproj(config: &Config, entry: &ModelEntry, path: &Path, shape: &RowShape) -> anyhow::Result<FoundEncoder> {
    let named = match &entry.mmproj {
        None => return Ok(beside(path, shape)),
        Some(Mmproj::None) => return Ok(FoundEncoder::default()),
        Some(named) => named.path().map(Path::to_owned).or_else(|| Store::new(&config.server.models_dir).mmproj(entry)),
    };
    let of_entry = || format!("mmproj of the model `{}`", entry.id);
    let fetch = || format!("the {} is not on disk: `penstock pull {}` fetches it", of_entry(), entry.stored_as());
    match named {
        // Models that were fetched before the catalogue named their encoders stay usable.
        None if entry.built_in => Ok(FoundEncoder { encoder: None, notes: vec![format!("{}; until then, pictures are refused", fetch())] }),
        None => bail!(fetch()),
        Some(file) => match (fitting(&file, shape), entry.built_in) {
            (Err(error), true) => Ok(FoundEncoder { encoder: None, notes: vec![format!("{error:#}")] }),
            (encoder, _) => Ok(FoundEncoder { encoder: Some(encoder.with_context(of_entry)?), notes: Vec::new() }),
        },
    }
}

/// A file, its length, and when it was written.
type Key = (PathBuf, u64, Option<SystemTime>);

/// What files hold, or what is wrong with them, so that lists of models open none twice.
static KNOWN: LazyLock<Mutex<HashMap<Key, Result<EncoderFacts, String>>>> = LazyLock::new(Mutex::default);
/// The most files whose facts are kept.
const MOST_KNOWN: usize = 256;

fn facts(path: &Path) -> anyhow::Result<EncoderFacts> {
    outside::check_regular(path).with_context(|| path.display().to_string())?;
    let meta = path.metadata().with_context(|| path.display().to_string())?;
    let key = (path.to_owned(), meta.len(), meta.modified().ok());
    let lock = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = lock().get(&key) {
        return known.clone().map_err(anyhow::Error::msg);
    }
    let read = EncoderFacts::read(path).map_err(|error| format!("{error:#}"));
    let mut all = lock();
    if all.len() >= MOST_KNOWN {
        all.clear();
    }
    all.insert(key, read.clone());
    read.map_err(anyhow::Error::msg)
}

/// The encoder in a file, if it fits the model.
fn fitting(path: &Path, shape: &RowShape) -> anyhow::Result<PictureEncoder> {
    let facts = facts(path)?;
    facts.check(shape).map_err(|fault| anyhow::anyhow!("{}: {fault}: take the mmproj of this model", path.display()))?;
    Ok(PictureEncoder { path: path.to_owned(), facts })
}

/// The encoder beside a model's file: the one that is named after the model, or else the only one that fits.
fn beside(model: &Path, shape: &RowShape) -> FoundEncoder {
    let MmprojBeside { named, others } = mmproj_beside(model);
    let mut found = FoundEncoder::default();
    for paths in [named, others] {
        let mut fit = Vec::new();
        for path in paths {
            match fitting(&path, shape) {
                Ok(encoder) => fit.push(encoder),
                Err(error) => found.notes.push(format!("left out beside the model: {error:#}")),
            }
        }
        match fit.len() {
            0 => {}
            1 => return FoundEncoder { encoder: fit.pop(), notes: Vec::new() },
            count => {
                let names: Vec<_> = fit.iter().map(|one| one.path.file_name().unwrap_or_default().to_string_lossy()).collect();
                let names = names.join(", ");
                found.notes.push(format!("{count} picture encoders beside the model fit it ({names}): name one with `mmproj` or --mmproj"));
                return found;
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::{ConfigSources, Overrides, Source};
    use fixtures::vision::{VisionModel, vision_models};

    struct Scene {
        dir: tempfile::TempDir,
        config: Config,
    }

    fn family(name: &str) -> VisionModel {
        vision_models().into_iter().find(|model| model.name == name).unwrap()
    }

    impl Scene {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let env = vec![("PENSTOCK__SERVER__MODELS_DIR".into(), dir.path().join("store").display().to_string())];
            let config = Config::load_from(&ConfigSources { env, ..Default::default() }, &Overrides::default()).unwrap();
            Self { dir, config }
        }

        fn encoder(&self, name: &str, of: &str) -> PathBuf {
            let path = self.dir.path().join(name);
            family(of).encoder().write(&path).unwrap();
            path
        }

        /// The search for an entry with this setting, beside `m.gguf`.
        fn find(&self, named: Option<&str>) -> anyhow::Result<FoundEncoder> {
            self.find_for(named, &shape("gemma3"))
        }

        fn find_for(&self, named: Option<&str>, shape: &RowShape) -> anyhow::Result<FoundEncoder> {
            let path = self.dir.path().join("m.gguf");
            let setting = named.map(|text| text.parse().unwrap_or_else(|fault| match fault {}));
            let entry = ModelEntry { mmproj: setting, ..ModelEntry::new("m", Source::File { path: path.clone() }) };
            mmproj(&self.config, &entry, &path, shape)
        }

        fn name(&self, found: &FoundEncoder) -> Option<String> {
            found.encoder.as_ref().map(|one| one.path.file_name().unwrap().to_str().unwrap().to_owned())
        }
    }

    /// The rows that a family's tiny language model takes.
    fn shape(name: &str) -> RowShape {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.gguf");
        family(name).language_model().write(&path).unwrap();
        serving::ModelFile::open(&path, gguf::Backing::Mapped).unwrap().row_shape()
    }

    #[test]
    fn every_family_fits_its_own_language_model() {
        let dir = tempfile::tempdir().unwrap();
        for model in vision_models() {
            let path = dir.path().join("mmproj.gguf");
            model.encoder().write(&path).unwrap();
            let encoder = fitting(&path, &shape(&model.name)).unwrap();
            let most = model.cases.iter().flat_map(|case| &case.chunks).filter_map(|chunk| match chunk {
                fixtures::vision::Chunk::Picture(rows) => Some(rows.rows),
                fixtures::vision::Chunk::Tokens { .. } => None,
            });
            assert!(encoder.facts.most_rows >= most.max().unwrap(), "{}: {:?}", model.name, encoder.facts);
            assert_eq!(encoder.facts.bytes, path.metadata().unwrap().len());
        }
    }

    #[test]
    fn the_one_named_after_the_model_comes_before_the_only_other_one() {
        let scene = Scene::new();
        let found = scene.find(None).unwrap();
        assert_eq!(found, FoundEncoder::default(), "nothing is there");
        scene.encoder("mmproj-f16.gguf", "gemma3");
        let found = scene.find(None).unwrap();
        assert_eq!((scene.name(&found).as_deref(), found.notes.len()), (Some("mmproj-f16.gguf"), 0));
        assert_eq!(found.encoder.unwrap().facts.family, "gemma3");
        scene.encoder("mmproj-f32.gguf", "gemma3");
        let found = scene.find(None).unwrap();
        assert!(found.encoder.is_none() && found.notes.len() == 1, "{found:?}");
        assert!(found.notes[0].contains("2 picture encoders") && found.notes[0].contains("`mmproj` or --mmproj"), "{:?}", found.notes);
        scene.encoder("mmproj-m.gguf", "gemma3");
        assert_eq!(scene.name(&scene.find(None).unwrap()).as_deref(), Some("mmproj-m.gguf"));
        assert_eq!(scene.find(Some("none")).unwrap(), FoundEncoder::default());
        let other = scene.dir.path().join("mmproj-f32.gguf");
        assert_eq!(scene.name(&scene.find(other.to_str()).unwrap()).as_deref(), Some("mmproj-f32.gguf"), "the setting wins");
    }

    #[test]
    fn what_does_not_fit_is_left_out_beside_a_model_and_an_error_in_a_setting() {
        let scene = Scene::new();
        let qwen = scene.encoder("mmproj-m.gguf", "qwen2vl");
        std::fs::write(scene.dir.path().join("mmproj-bad.gguf"), b"GGUF").unwrap();
        let found = scene.find(None).unwrap();
        assert!(found.encoder.is_none() && found.notes.len() == 2, "{found:?}");
        assert!(found.notes[0].contains("architecture qwen2vl (qwen2vl_merger), and the model is gemma3"), "{:?}", found.notes);
        scene.encoder("mmproj-f16.gguf", "gemma3");
        assert_eq!(scene.name(&scene.find(None).unwrap()).as_deref(), Some("mmproj-f16.gguf"), "the next one that fits");
        let error = |path: &Path, shape: &RowShape| format!("{:#}", scene.find_for(path.to_str(), shape).unwrap_err());
        let text = error(&qwen, &RowShape { width: 77, slices: 3, ..shape("qwen2vl") });
        assert!(text.contains("mmproj of the model `m`") && text.contains("mmproj-m.gguf: its rows have "), "{text}");
        assert!(text.contains("those of the model have 77 and 3 further slices: take the mmproj of this model"), "{text}");
        assert!(error(&scene.dir.path().join("mmproj-bad.gguf"), &shape("gemma3")).contains("mmproj-bad.gguf"));
        assert!(error(&scene.dir.path().join("gone.gguf"), &shape("gemma3")).contains("gone.gguf: "));
    }

    #[test]
    fn one_that_is_still_to_be_fetched_is_an_error_unless_the_catalogue_names_it() {
        let scene = Scene::new();
        let url: Result<Mmproj, _> = "https://x/p.gguf".parse();
        let source = Source::Https { url: "https://x/m.gguf".into() };
        let entry = ModelEntry { mmproj: url.ok(), ..ModelEntry::new("m", source) };
        let find = |entry: &ModelEntry| mmproj(&scene.config, entry, &scene.dir.path().join("m.gguf"), &shape("gemma3"));
        let error = find(&entry).unwrap_err().to_string();
        assert!(error.contains("`penstock pull m` fetches it"), "{error}");
        let found = find(&ModelEntry { built_in: true, ..entry }).unwrap();
        assert!(found.encoder.is_none() && found.notes[0].contains("`penstock pull m` fetches it"), "{found:?}");
    }
}
