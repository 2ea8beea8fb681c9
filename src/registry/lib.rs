//! The models that this process serves, and their loading and unloading.
//!
//! `registry.rs` finds a model, loads the model and leases it to a request. A `LoadSlot` holds a loaded base model, and `LoadAdmission`
//! decides which model is unloaded when memory is short. `janitor.rs` unloads idle models and follows the store and the configuration.
//! `operators.rs` has the operators' view.

mod adapter_settings;
mod adapters;
mod base;
mod catalogue_search;
mod creation;
mod delete;
mod descriptions;
mod drafting;
mod error;
mod events;
mod exit_on_fault;
mod janitor;
mod keep_alive;
mod kinds;
mod load;
mod load_admission;
mod load_slot;
mod mmproj;
mod model_facts;
mod model_memory;
mod notifier;
mod operators;
mod options;
mod pull;
mod pulls;
mod registry;
mod replica_devices;
mod served_models;
mod usage;

#[cfg(test)]
mod tests;

pub use adapter_settings::{AdapterAsk, AdapterRef, ServedAdapter};
pub use base::{Base, Loaded};
pub use catalogue::{LATEST, NewBlob, PullError, blob_digest};
pub use catalogue_search::{Found, FoundIn, FoundModel, estimated_memory};
pub use creation::CreateStage;
pub use descriptions::DescribedFile;
pub use drafting::draft_bytes;
pub use error::RegistryError;
pub use events::{ModelEvent, ModelEventKind, ModelEventStream, ModelState};
pub use exit_on_fault::{EXIT_DEVICE_LOST, EXIT_STUCK, closing};
pub use kinds::{ListedModel, ModelKind};
pub use load_admission::LoadAdmission;
pub use mmproj::{FoundEncoder, PictureEncoder, mmproj};
pub use model_facts::ModelFacts;
pub use model_memory::ModelMemory;
pub use operators::ModelStatus;
pub use options::{backend, cache_type, default_sampling, engine_options};
pub use pull::{Pull, PullState, Waiting};
pub use registry::{Loader, ModelInfo, Registry};
pub use usage::KeepAlive;
