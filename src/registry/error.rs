//! Errors of the registry: why a request gets no model, or an operation on a model fails.

use std::time::Duration;

#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error("the model `{id}` does not exist")]
    NotFound {
        id: String,
        /// The id of a served model with a similar name.
        near: Option<String>,
    },
    #[error("the model `{0}` is still loading")]
    Loading(String),
    #[error("the model `{id}` could not be loaded: {cause}")]
    LoadFailed { id: String, cause: String },
    #[error("the model `{0}` cannot be loaded now: the models in use leave no room for it")]
    NoRoom(String),
    #[error("too many requests wait for the model `{0}`")]
    QueueFull(String),
    #[error("the model `{id}` is in use by {num_requests} requests")]
    InUse { id: String, num_requests: usize },
    #[error("the model `{0}` is not loaded")]
    NotLoaded(String),
    #[error("the model `{0}` is pinned by the configuration: it stays loaded")]
    Pinned(String),
    #[error("the model `{id}` cannot be deleted: {cause}")]
    NotDeleted { id: String, cause: String },
    #[error("the model `{id}` cannot be made: {cause}")]
    NotCreated { id: String, cause: String },
    #[error("the model `{id}` cannot be fetched: {cause}")]
    PullFailed { id: String, cause: String },
    /// A request names adapters that it cannot have.
    #[error("{0}")]
    AdapterRefused(String),
    /// The file of an adapter cannot be used.
    #[error("{0}")]
    AdapterFailed(String),
    #[error("{0}")]
    AdapterNoRoom(String),
}

/// Limits on waiting for a model: how long, and how many requests at once.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    pub wait: Duration,
    /// The most requests that wait for one model.
    pub most: usize,
}
