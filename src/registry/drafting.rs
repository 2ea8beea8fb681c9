//! Decides how the answers of a model are drafted.

use config::{Config, Drafts, ModelEntry};
use engine::{BackendKind, Device, EngineOptions};
use serving::ModelFile;

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
        let asked = entry.drafts.unwrap_or(config.engine.drafts);
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
