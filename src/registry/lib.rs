//! Which models this process serves, and which of them are loaded.
//!
//! `registry.rs` finds a model, loads it and leases it to a request. A `Slot` holds what is loaded, and `Room` decides which model goes
//! when memory is short. `keeper.rs` unloads idle models and follows the store and the configuration. `operate.rs` is for operators.

mod base;
mod bell;
mod bytes;
mod delete;
mod descriptions;
mod error;
mod events;
mod facts;
mod fault;
mod keep;
mod keeper;
mod load;
mod operate;
mod options;
mod pull;
mod pulls;
mod registry;
mod room;
mod served;
mod slot;
mod usage;

#[cfg(test)]
mod tests;

pub use base::{Base, Loaded};
pub use bytes::Bytes;
pub use descriptions::Described;
pub use error::RegistryError;
pub use events::{Follower, ModelEvent, State, What};
pub use facts::ModelFacts;
pub use fault::{EXIT_DEVICE_LOST, EXIT_STUCK, closing};
pub use operate::ModelStatus;
pub use options::{backend, default_sampling, engine_options};
pub use pull::{Pull, PullState, Waiting};
pub use registry::{Loader, ModelInfo, Registry};
pub use room::Room;
pub use served::LATEST;
pub use usage::Keep;
