//! What can go wrong in an engine.

use model::ModelFault;

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// There is no such device to compute on: no device, no driver, or the build is without the backend.
    #[error("{0}")]
    NoDevice(String),
    #[error("invalid batch: {0}")]
    InvalidBatch(String),
    #[error("unsupported: {0}")]
    Unsupported(String),
    #[error("out of memory: {0}")]
    OutOfMemory(String),
    #[error("tensor {0}")]
    Tensor(String),
    /// The file that the weights are read from has changed: only loading the model again helps.
    #[error("the model's file: {0}")]
    Weights(String),
    /// The device is lost: only a new process helps.
    #[error("device fault: {0}")]
    Device(String),
}

impl EngineError {
    pub(crate) fn of_weights(fault: ModelFault) -> Self {
        Self::Weights(fault.to_string())
    }

    /// Whether the engine cannot be used any more.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Weights(_) | Self::Device(_))
    }
}
