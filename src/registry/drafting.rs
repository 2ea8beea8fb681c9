//! Decides how the answers of a model are drafted.

use anyhow::Context;

use catalogue::{Store, resolve};
use config::{Config, Drafts, ModelEntry};
use engine::{BackendKind, Device, EngineOptions};
use gguf::Backing;
use serving::{DraftFile, ModelFile};

/// The most drafts of a step of a model with recurrent state, which keeps a state for each.
const DRAFT_STATES: usize = 8;

/// How the answers of a model are drafted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drafting {
    /// Whether they are.
    pub is_on: bool,
    /// Recurrent states that a step keeps to go back behind wrong drafts.
    pub states: usize,
    /// Whether the model's draft head guesses, too.
    pub with_head: bool,
}

impl Drafting {
    /// An engine's options with what drafts need.
    pub fn apply(self, options: EngineOptions) -> EngineOptions {
        EngineOptions { draft_states: self.states, draft_head: self.with_head, ..options }
    }

    /// What the settings ask for and what the model can have on this device. The log says what it cannot have.
    pub fn of(config: &Config, entry: &ModelEntry, file: &ModelFile, device: &dyn Device) -> Self {
        let (id, on_cpu) = (&entry.id, device.place().0 == BackendKind::Cpu);
        // A draft model takes the place of a head.
        let default = if entry.draft.is_some() { Drafts::Ngram } else { config.engine.drafts };
        let asked = entry.drafts.unwrap_or(default);
        let is_on = match asked {
            Drafts::Auto => on_cpu,
            Drafts::Ngram | Drafts::Heads => true,
            Drafts::Off => false,
        };
        if is_on && file.is_recurrent() && !on_cpu {
            tracing::info!("{id}: answers are not drafted, because recurrent states go back behind wrong drafts on the CPU alone so far");
            return Self { is_on: false, states: 0, with_head: false };
        }
        let states = if is_on && file.is_recurrent() { DRAFT_STATES } else { 0 };
        let with_head = asked == Drafts::Heads && on_cpu && file.has_draft_head();
        if asked == Drafts::Heads && !with_head {
            let why = if on_cpu { "its file has no draft head" } else { "draft heads run on the CPU alone so far" };
            tracing::info!("{id}: answers are drafted from their context alone, because {why}");
        }
        Self { is_on, states, with_head }
    }
}

/// The entry of the draft model that an entry names. None if it names none, or if its answers are not drafted.
///
/// # Errors
/// The draft model is unknown.
pub fn draft_entry(config: &Config, entry: &ModelEntry) -> anyhow::Result<Option<ModelEntry>> {
    let Some(name) = entry.draft.as_deref().filter(|_| entry.drafts != Some(Drafts::Off)) else { return Ok(None) };
    resolve(config, name).with_context(|| format!("draft of the model `{}`", entry.id)).map(Some)
}

/// Opens the draft model that an entry names, for the model in `target`. None if it names none, or if its answers are not drafted.
///
/// # Errors
/// The draft model is unknown or not on disk, or it cannot draft the answers of this model.
pub fn draft_model(config: &Config, entry: &ModelEntry, target: &ModelFile) -> anyhow::Result<Option<DraftFile>> {
    let Some(draft) = draft_entry(config, entry)? else { return Ok(None) };
    let of_entry = || format!("draft of the model `{}`", entry.id);
    let store = Store::new(&config.server.models_dir);
    let path = store.path(&draft).with_context(|| format!("{}: `{}`: {}", of_entry(), draft.id, store.why_missing(&draft)))?;
    let backing = if config.engine.mmap { Backing::Mapped } else { Backing::Private };
    DraftFile::open(&path, backing, target).with_context(of_entry).map(Some)
}

/// The memory that the draft model of an entry takes beside a target with these options, by the backend [bytes].
///
/// # Errors
/// Those of [`draft_model`].
pub fn draft_bytes(
    config: &Config,
    entry: &ModelEntry,
    target: &ModelFile,
    options: &EngineOptions,
) -> anyhow::Result<impl Fn(BackendKind) -> u64 + use<>> {
    let on_cpu = || engine::device(BackendKind::Cpu, 0).context("the CPU");
    let need = draft_model(config, entry, target)?.map(|draft| draft.need(&*on_cpu()?, options)).transpose()?;
    let bytes = need.map_or(0, |need| need.total());
    Ok(move |kind| if kind == BackendKind::Cpu { bytes } else { 0 })
}
