//! [`Survivors`]: which engines of a model are left. The loss of the last one is reported, because only a new process cures it.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::engine_fault::EngineFault;

/// The engines of a model.
#[derive(Debug)]
pub struct Survivors {
    /// The model's name in the log.
    name: String,
    num_engines: usize,
    /// Engines that have failed, each with the fault that only a new process cures, if it was one.
    failed: Mutex<BTreeMap<usize, Option<EngineFault>>>,
}

impl Survivors {
    pub fn new(name: &str, num_engines: usize) -> Self {
        Self { name: name.to_owned(), num_engines, failed: Mutex::default() }
    }

    /// Records that an engine has failed. Returns a fault once: when the last engine has failed, and any of them by a fault that only a new
    /// process cures.
    pub fn fail(&self, number: usize, fault: Option<EngineFault>) -> Option<EngineFault> {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if failed.contains_key(&number) {
            return None;
        }
        failed.insert(number, fault);
        let left = self.num_engines - failed.len();
        if left > 0 {
            tracing::error!("{}: replica {number} of {} has left, and {left} serve on", self.name, self.num_engines);
            return None;
        }
        fault.or_else(|| failed.values().copied().flatten().next())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_reported_once_when_no_engine_is_left() {
        let lost = Some(EngineFault::DeviceLost);
        let alone = Survivors::new("m", 1);
        assert_eq!((alone.fail(0, lost), alone.fail(0, lost)), (lost, None));
        assert_eq!(Survivors::new("m", 1).fail(0, None), None, "a panic is cured by loading the model again");
        let three = Survivors::new("m", 3);
        assert_eq!([three.fail(1, Some(EngineFault::Stuck)), three.fail(1, lost), three.fail(0, None)], [None, None, None]);
        assert_eq!(three.fail(2, None), Some(EngineFault::Stuck), "a panic of the last, when another's device is lost");
    }
}
