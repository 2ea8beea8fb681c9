//! Decides how the answers of a model are drafted.

use config::{Config, Drafts, ModelEntry};
use engine::{BackendKind, Device};
use serving::ModelFile;

/// How the answers of a model are drafted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drafting {
    /// Whether they are.
    pub is_on: bool,
    /// Whether the model's draft head guesses, too.
    pub with_head: bool,
}

impl Drafting {
    /// What the settings ask for and what the model can have on this device. The log says what it cannot have.
    pub fn of(config: &Config, entry: &ModelEntry, file: &ModelFile, device: &dyn Device) -> Self {
        let (id, on_cpu) = (&entry.id, device.place().0 == BackendKind::Cpu);
        let asked = entry.drafts.unwrap_or(config.engine.drafts);
        let is_on = match asked {
            Drafts::Auto => on_cpu,
            Drafts::Ngram | Drafts::Heads => true,
            Drafts::Off => false,
        };
        if is_on && file.is_recurrent() {
            tracing::info!("{id}: answers are not drafted, because a recurrent state cannot go back behind a wrong draft");
            return Self { is_on, with_head: false };
        }
        let with_head = asked == Drafts::Heads && on_cpu && file.has_draft_head();
        if asked == Drafts::Heads && !with_head {
            let why = if on_cpu { "its file has no draft head" } else { "draft heads run on the CPU alone so far" };
            tracing::info!("{id}: answers are drafted from their context alone, because {why}");
        }
        Self { is_on, with_head }
    }
}
