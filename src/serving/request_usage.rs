//! The usage of a request, readable while it runs and after it has ended.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use scheduler::Progress;

/// The usage of one generation or one text. Clones share it. It outlives the generation.
#[derive(Clone, Debug, Default)]
pub struct RequestUsage(Arc<Mutex<Vec<Arc<Progress>>>>);

impl RequestUsage {
    /// Adds a sequence: the first one, or that of a second try.
    pub(super) fn add(&self, progress: &Arc<Progress>) {
        self.sequences().push(progress.clone());
    }

    fn sequences(&self) -> MutexGuard<'_, Vec<Arc<Progress>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn first<T>(&self, of: impl FnOnce(&Progress) -> T) -> Option<T> {
        self.sequences().first().map(|progress| of(progress))
    }

    /// Number of tokens in the client's prompt.
    pub fn prompt_tokens(&self) -> u32 {
        self.first(Progress::prompt_tokens).unwrap_or(0)
    }

    /// Number of those tokens that the prefix cache held.
    pub fn cached_tokens(&self) -> u32 {
        self.first(Progress::cached_tokens).unwrap_or(0)
    }

    /// Number of those tokens that were computed so far or found in the prefix cache.
    pub fn computed_tokens(&self) -> u32 {
        self.first(Progress::computed_tokens).unwrap_or(0)
    }

    /// Number of generated tokens, over all tries.
    pub fn generated_tokens(&self) -> u32 {
        self.sequences().iter().map(|progress| progress.generated_tokens()).sum()
    }

    /// When the request entered the engine's queue. None if it needs no engine.
    pub fn arrived(&self) -> Option<Instant> {
        self.first(Progress::arrived)
    }

    /// When the request began to run.
    pub fn admitted(&self) -> Option<Instant> {
        self.first(Progress::admitted).flatten()
    }

    /// When the prompt was computed.
    pub fn prefilled(&self) -> Option<Instant> {
        self.first(Progress::prefilled).flatten()
    }

    /// The time of the latest token, or of the end.
    pub fn last(&self) -> Option<Instant> {
        self.sequences().iter().rev().find_map(|progress| progress.last())
    }
}
