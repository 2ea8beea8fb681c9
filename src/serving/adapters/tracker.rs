//! Which adapters the sequences in an engine or in its queue use, for metrics.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::active::ActiveAdapter;
use scheduler::{AdapterRequest, Progress};

/// The names of a sequence's adapters, and whether it still runs.
type Tracked = (Vec<Arc<str>>, Weak<Progress>);

/// The sequences with adapters.
static TRACKED: Mutex<Vec<Tracked>> = Mutex::new(Vec::new());

/// Names of adapters, in alphabetical order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdapterTraffic {
    /// Those of running sequences.
    pub running: Vec<String>,
    /// Those of waiting sequences, unless a running one has them too.
    pub waiting: Vec<String>,
}

/// The names of those of a model's adapters that a sequence has.
pub(crate) fn names(of_model: &[ActiveAdapter], of_sequence: &[AdapterRequest]) -> Vec<Arc<str>> {
    let is_used = |active: &&ActiveAdapter| of_sequence.iter().any(|asked| asked.adapter.id == active.held.host.id);
    of_model.iter().filter(is_used).map(|active| active.name.clone()).collect()
}

/// Counts a sequence until its request has ended.
pub(crate) fn track(names: Vec<Arc<str>>, progress: &Arc<Progress>) {
    if names.is_empty() {
        return;
    }
    let mut tracked = TRACKED.lock().unwrap_or_else(PoisonError::into_inner);
    if tracked.len() == tracked.capacity() {
        // Before it grows, so that ended sequences cost no more than running ones.
        tracked.retain(|(_, progress)| progress.strong_count() > 0);
    }
    tracked.push((names, Arc::downgrade(progress)));
}

/// The adapters in use now.
pub fn traffic() -> AdapterTraffic {
    let mut runs: BTreeMap<Arc<str>, bool> = BTreeMap::new();
    for (names, progress) in TRACKED.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        let Some(progress) = progress.upgrade() else { continue };
        let is_running = progress.admitted().is_some();
        names.iter().for_each(|name| *runs.entry(name.clone()).or_default() |= is_running);
    }
    let of = |running: bool| runs.iter().filter(|(_, is)| **is == running).map(|(name, _)| name.to_string()).collect();
    AdapterTraffic { running: of(true), waiting: of(false) }
}
