//! [`Source`]: the file that an engine reads weights from, watched while it does.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::ModelFault;
use crate::weights::Weights;
use gguf::GgufFile;

/// How often the system is asked whether the file has changed. In between, only bytes that were gone when they were read are noticed.
const PERIOD: Duration = Duration::from_secs(1);

/// The mapped file behind weights.
pub struct Source {
    file: Arc<GgufFile>,
    /// When the system was asked last.
    asked: Instant,
}

impl Source {
    pub fn of(weights: &Weights) -> Self {
        Self { file: weights.file.clone(), asked: Instant::now() }
    }

    /// Checks that what was read from the file until now is what the file held when it was opened. Call it after every use of the weights,
    /// before the result is handed out: unless the last call was more than a second ago, it costs about 30 ns.
    ///
    /// # Errors
    /// [`ModelFault::Changed`], without the file's path.
    pub fn check(&mut self) -> Result<(), ModelFault> {
        let now = Instant::now();
        if self.file.is_damaged() || now - self.asked >= PERIOD {
            self.asked = now;
            return self.verify();
        }
        Ok(())
    }

    /// As [`check`](Self::check), and always asks the system.
    pub fn verify(&self) -> Result<(), ModelFault> {
        self.file.verify_unchanged().map_err(|error| ModelFault::Changed(error.fault))
    }
}
