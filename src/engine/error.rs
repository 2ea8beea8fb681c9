//! [`EngineError`]: what can go wrong in an engine.

use model::ModelFault;

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// No such device: no device or driver on this machine, or a build without the backend.
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
    /// The draft head of the model's file is not one that can run.
    #[error("the draft head: {0}")]
    DraftHead(String),
    /// An adapter that does not fit the model.
    #[error("the adapter: {0}")]
    Adapter(String),
    /// The weights' file has changed. The model must be loaded again.
    #[error("the model's file: {0}")]
    Weights(String),
    /// The device is lost. The process must be restarted.
    #[error("device fault: {0}")]
    Device(String),
}

impl EngineError {
    pub(crate) fn of_weights(fault: ModelFault) -> Self {
        Self::Weights(fault.to_string())
    }

    /// Whether the engine can no longer be used.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Weights(_) | Self::Device(_))
    }
}
