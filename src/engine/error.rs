//! What can go wrong in an engine.

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
    /// The device is lost: only a new process helps.
    #[error("device fault: {0}")]
    Device(String),
}
