//! Classifies models by their use, so that lists begin with the models that chat: many clients take the first one.

use std::sync::Arc;

use super::base::Base;
use super::descriptions::DescribedFile;
use super::registry::{ModelInfo, Registry, info_of};
use config::ModelEntry;

/// The use of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelKind {
    /// Answers conversations.
    Chat,
    /// Continues texts: a base model, or one without a chat template.
    Completion,
    /// Turns texts into vectors, or ranks them.
    Embedding,
}

impl ModelKind {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Completion => "completion",
            Self::Embedding => "embedding",
        }
    }
}

/// A model of the list.
#[derive(Clone, Debug)]
pub struct ListedModel {
    pub info: ModelInfo,
    /// `None` if the model's file is not on disk, or cannot be read.
    pub kind: Option<ModelKind>,
    /// Whether a picture encoder belongs to the model.
    pub sees_pictures: bool,
    /// What its file says of itself. `None` if it is not on disk, or cannot be read.
    pub file: Option<Arc<DescribedFile>>,
}

/// The place of a kind in lists.
fn place(kind: Option<ModelKind>) -> u8 {
    match kind {
        Some(ModelKind::Chat) => 0,
        None => 1,
        Some(ModelKind::Completion) => 2,
        Some(ModelKind::Embedding) => 3,
    }
}

impl Registry {
    /// The served models, those that chat first and otherwise in their order. Reads the heads of files that were not read before. Blocks.
    pub fn offered(&self) -> Vec<ListedModel> {
        let served = self.served();
        let variants = served.bases.iter().flat_map(|base| base.variants.iter().map(move |variant| (base, variant)));
        let mut all: Vec<ListedModel> = variants.map(|(base, variant)| self.listed(base, variant)).collect();
        all.sort_by_key(|offered| place(offered.kind));
        all
    }

    /// A served model by id or alias. Blocks.
    pub fn offered_as(&self, name: &str) -> Option<ListedModel> {
        let served = self.served();
        let (base, index) = served.find(name)?;
        let variant = &base.variants[index];
        Some(self.listed(base, variant))
    }

    fn listed(&self, base: &Base, variant: &ModelEntry) -> ListedModel {
        let path = self.store.path(&base.entry);
        let file = path.as_ref().and_then(|path| self.descriptions.of(path, variant.chat_template.as_deref()).ok());
        let kind = kind_of(variant, file.as_deref());
        let shape = file.as_ref().and_then(|file| file.description.row_shape.as_ref());
        let has_encoder = || path.and_then(|path| self.encoder_of(base, &path, shape)).is_some();
        ListedModel { info: info_of(base, variant), kind, sees_pictures: kind == Some(ModelKind::Chat) && has_encoder(), file }
    }

    /// The use of a served model. Blocks.
    pub fn kind(&self, name: &str) -> Option<ModelKind> {
        self.offered_as(name)?.kind
    }

    /// Sorts by the ids of served models, as [`Registry::offered`] does. Blocks.
    pub fn sort<T>(&self, all: &mut [T], id: impl Fn(&T) -> &str) {
        all.sort_by_cached_key(|one| place(self.kind(id(one))));
    }
}

fn kind_of(variant: &ModelEntry, file: Option<&DescribedFile>) -> Option<ModelKind> {
    let only_continues = variant.only_continues();
    match file {
        Some(file) if file.description.embeds => Some(ModelKind::Embedding),
        Some(file) if only_continues || file.description.template.is_none() => Some(ModelKind::Completion),
        Some(_) => Some(ModelKind::Chat),
        None => only_continues.then_some(ModelKind::Completion),
    }
}
