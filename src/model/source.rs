//! [`Source`]: the file that an engine reads weights from, watched for changes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::ModelFault;
use crate::weights::Weights;
use gguf::GgufFile;

/// The interval at which the system is asked whether the file has changed. In between, only bytes that were missing when they were read are
/// noticed.
const PERIOD: Duration = Duration::from_secs(1);

/// The mapped file that holds the weights.
pub struct Source {
    file: Arc<GgufFile>,
    /// When the system was last asked.
    asked: Instant,
}

impl Source {
    pub fn of(weights: &Weights) -> Self {
        Self { file: weights.file.clone(), asked: Instant::now() }
    }

    /// Checks that everything read from the file so far is what the file held when it was opened. Call this after every use of the weights,
    /// before the result is returned. Costs about 30 ns if the last call was less than a second ago.
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

    /// Runs [`check`](Self::check), and always asks the system.
    pub fn verify(&self) -> Result<(), ModelFault> {
        self.file.verify_unchanged().map_err(|error| ModelFault::Changed(error.fault))
    }
}
