//! Facts about models on disk, loaded or not.

use std::path::Path;
use std::sync::Arc;

use super::base::{Base, unix_seconds};
use super::descriptions::DescribedFile;
use super::error::RegistryError;
use super::mmproj::{PictureEncoder, mmproj};
use super::options::default_sampling;
use super::registry::Registry;
use config::{Context, ModelEntry, NamedAdapter, Source, StoredVariant};
use logits::SamplingChoice;
use serving::{Capabilities, RowShape};

/// A model on disk.
#[derive(Clone)]
pub struct ModelFacts {
    pub id: String,
    /// The model that it is a variant of.
    pub parent: Option<String>,
    /// When the file was written, or the model was made [Unix seconds].
    pub modified: u64,
    /// The sha256 if the model is in the store, or else the digest of the beginnings of its files.
    pub digest: String,
    pub file: Arc<DescribedFile>,
    /// The longest context served, or that the model was made with [tokens]. `None` if it is decided when the model is loaded.
    pub context: Option<usize>,
    /// The sampling values for requests that do not choose.
    pub sampling: SamplingChoice,
    /// The system message for conversations without one.
    pub system: Option<String>,
    /// The settings of a model that was made on this machine.
    pub made: Option<Arc<StoredVariant>>,
    /// What the name adds to the weights.
    pub adapter: Option<NamedAdapter>,
    /// The model's picture encoder.
    pub encoder: Option<PictureEncoder>,
}

impl ModelFacts {
    /// The model's capabilities. Blocks: the first call for a file reads its vocabulary.
    pub fn abilities(&self) -> anyhow::Result<Capabilities> {
        let of_file = self.file.abilities()?;
        Ok(Capabilities { vision: of_file.completion && self.encoder.is_some(), ..of_file })
    }
}

impl Registry {
    /// Every served model that is on disk and whose id `shows` accepts, in the order of [`Registry::offered`]. Files that cannot be read
    /// are left out and logged. Blocks.
    pub fn on_disk(&self, shows: impl Fn(&str) -> bool) -> Vec<ModelFacts> {
        let served = self.served();
        let variants = served.bases.iter().flat_map(|base| base.variants.iter().map(move |variant| (base, variant)));
        let shown = variants.filter(|(_, variant)| shows(&variant.id));
        let read = |(base, variant): (&Arc<Base>, &ModelEntry)| match self.facts_of(base, variant) {
            Ok(None) if variant.source != Source::Stored => None,
            Ok(Some(facts)) => Some(facts),
            _ => self.facts(&variant.id).ok(),
        };
        let mut all: Vec<_> = shown.filter_map(read).collect();
        self.sort(&mut all, |facts| &facts.id);
        all
    }

    /// The facts about a served model. Blocks.
    ///
    /// # Errors
    /// The model is unknown or not on disk, or its file cannot be read.
    pub fn facts(&self, name: &str) -> Result<ModelFacts, RegistryError> {
        self.read(name, |facts| Ok(facts.clone()))
    }

    /// Reads the files of a served model with `read`. If another model takes its place meanwhile, reads that one. Blocks.
    ///
    /// # Errors
    /// As for [`Registry::facts`]. The log has the cause.
    pub fn read<T>(&self, name: &str, read: impl Fn(&ModelFacts) -> anyhow::Result<T>) -> Result<T, RegistryError> {
        let (mut base, mut index) = self.find(name)?;
        loop {
            let variant = &base.variants[index];
            let got = self.facts_of(&base, variant).and_then(|facts| facts.as_ref().map(&read).transpose());
            if let Ok(Some(value)) = got {
                return Ok(value);
            }
            if variant.source == Source::Stored {
                self.follow_store();
            }
            match (self.find(name), got) {
                (Ok((next, at)), _) if !Arc::ptr_eq(&next, &base) => (base, index) = (next, at),
                (_, Ok(_)) => return Err(self.not_found(name)),
                (_, Err(error)) => {
                    let (id, cause) = (variant.id.clone(), format!("{error:#}"));
                    tracing::warn!("the model `{id}` could not be described: {}", cause.escape_debug());
                    return Err(RegistryError::LoadFailed { id, cause });
                }
            }
        }
    }

    /// `None` if the model is not on disk.
    fn facts_of(&self, base: &Base, variant: &ModelEntry) -> anyhow::Result<Option<ModelFacts>> {
        let Some(path) = self.store.path(&base.entry) else { return Ok(None) };
        let file = self.descriptions.of(&path, variant.chat_template.as_deref())?;
        let of_file = file.description.sampling;
        let sampling = match variant.of {
            Some(_) => variant.sampling.or(default_sampling(&base.entry, of_file)),
            None => default_sampling(variant, of_file),
        };
        let loaded = base.slot.peek().map(|loaded| loaded.context);
        let served = loaded.or_else(|| match base.entry.context.unwrap_or(self.settings().engine.context) {
            Context::Tokens(tokens) => Some(tokens),
            Context::Auto => None,
        });
        let of_name = variant.made.as_ref().and_then(|made| made.context());
        let context = served.into_iter().chain(of_name).min();
        let manifest = self.store.find(if variant.source == Source::Stored { variant } else { &base.entry });
        let made_at = manifest.as_ref().filter(|manifest| manifest.made.is_some()).map(|manifest| manifest.date);
        let stored = manifest.map(|manifest| manifest.whole_digest());
        let of_file_at = || path.metadata().and_then(|meta| meta.modified()).map_or(base.created, unix_seconds);
        Ok(Some(ModelFacts {
            id: variant.id.clone(),
            parent: variant.parent().map(str::to_owned),
            modified: made_at.unwrap_or_else(of_file_at),
            digest: stored.unwrap_or_else(|| file.description.digest.clone()),
            context,
            sampling,
            system: variant.system.clone(),
            made: variant.made.clone(),
            adapter: variant.adapter.clone(),
            encoder: self.encoder_of(base, &path, file.description.row_shape.as_ref()),
            file,
        }))
    }

    /// The picture encoder of a model whose file is `path`. What is wrong with the setting is reported when the model is loaded.
    pub(super) fn encoder_of(&self, base: &Base, path: &Path, shape: Option<&RowShape>) -> Option<PictureEncoder> {
        mmproj(&self.settings(), &base.entry, path, shape?).ok()?.encoder
    }
}
