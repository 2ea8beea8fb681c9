//! The metrics of a model's replicas.

use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use prometheus::{IntGaugeVec, Opts};

use super::registry::registered;

const KINDS: [&str; 2] = ["configured", "live"];

/// Sets for each replica of the loaded models whether it serves. The series of other models end.
pub fn set_replicas<'a>(models: impl Iterator<Item = (&'a str, Vec<bool>)>) {
    static COUNTS: LazyLock<IntGaugeVec> = LazyLock::new(|| {
        let opts = Opts::new("penstock_replicas", "Replicas of a loaded model; configured: all of them, live: those that serve");
        registered(IntGaugeVec::new(opts, &["model_name", "kind"]))
    });
    static UP: LazyLock<IntGaugeVec> = LazyLock::new(|| {
        let opts = Opts::new("penstock_replica_up", "1 if the replica of a loaded model serves, 0 if it has left");
        registered(IntGaugeVec::new(opts, &["model_name", "replica"]))
    });
    /// The models that have series, with the number of their replicas.
    static KNOWN: Mutex<BTreeMap<String, usize>> = Mutex::new(BTreeMap::new());
    // A label that has no series is an error, and there is nothing to do about it.
    let end = |name: &str, index: usize| drop(UP.remove_label_values(&[name, &index.to_string()]));
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    // Series are not reset, because another thread may collect them meanwhile.
    let mut gone = std::mem::take(&mut *known);
    for (name, serves) in models {
        let before = gone.remove(name).unwrap_or(0);
        (serves.len()..before).for_each(|index| end(name, index));
        known.insert(name.to_owned(), serves.len());
        let live = serves.iter().filter(|serves| **serves).count();
        KINDS.iter().zip([serves.len(), live]).for_each(|(kind, count)| COUNTS.with_label_values(&[name, kind]).set(count as i64));
        for (index, serves) in serves.into_iter().enumerate() {
            UP.with_label_values(&[name, &index.to_string()]).set(i64::from(serves));
        }
    }
    for (name, count) in gone {
        KINDS.iter().for_each(|kind| drop(COUNTS.remove_label_values(&[name.as_str(), kind])));
        (0..count).for_each(|index| end(&name, index));
    }
}
