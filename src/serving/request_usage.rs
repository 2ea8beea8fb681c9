//! What a request has cost so far, for those who look on while it runs or after it has ended.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use scheduler::Progress;

/// The account of one generation or one text. Clones share it. It outlives what it tells of.
#[derive(Clone, Debug, Default)]
pub struct RequestUsage(Arc<Mutex<Vec<Arc<Progress>>>>);

impl RequestUsage {
    /// Adds a sequence: the first one, or the one of a second try.
    pub(super) fn add(&self, progress: &Arc<Progress>) {
        self.sequences().push(progress.clone());
    }

    fn sequences(&self) -> MutexGuard<'_, Vec<Arc<Progress>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn first<T>(&self, of: impl FnOnce(&Progress) -> T) -> Option<T> {
        self.sequences().first().map(|progress| of(progress))
    }

    /// Tokens of the prompt that the client sent.
    pub fn prompt_tokens(&self) -> u32 {
        self.first(Progress::prompt_tokens).unwrap_or(0)
    }

    /// Tokens of that prompt that the prefix cache held.
    pub fn cached_tokens(&self) -> u32 {
        self.first(Progress::cached_tokens).unwrap_or(0)
    }

    /// Tokens of that prompt that the engine has read so far, or found in the prefix cache.
    pub fn computed_tokens(&self) -> u32 {
        self.first(Progress::computed_tokens).unwrap_or(0)
    }

    /// Tokens of all tries.
    pub fn generated_tokens(&self) -> u32 {
        self.sequences().iter().map(|progress| progress.generated_tokens()).sum()
    }

    /// When the engine's queue took it. None: it needs no engine.
    pub fn arrived(&self) -> Option<Instant> {
        self.first(Progress::arrived)
    }

    /// When it began to run.
    pub fn admitted(&self) -> Option<Instant> {
        self.first(Progress::admitted).flatten()
    }

    /// When its prompt was computed.
    pub fn prefilled(&self) -> Option<Instant> {
        self.first(Progress::prefilled).flatten()
    }

    /// When its latest token came, or its end.
    pub fn last(&self) -> Option<Instant> {
        self.sequences().iter().rev().find_map(|progress| progress.last())
    }
}
