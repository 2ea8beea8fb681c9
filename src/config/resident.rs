//! [`Resident`]: the setting `engine.resident`.

use serde::{Deserialize, Serialize};

/// Whether decode steps run in loops on the GPU, without waiting for the host. The answers are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Resident {
    /// Where a step is as fast in a loop as from an idle host, by a measurement when the model is loaded.
    Auto,
    On,
    Off,
}
