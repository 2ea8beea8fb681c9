//! The configuration, validated once into typed sections. Each layer overrides the previous ones: built-in defaults and catalogue <
//! `./config/*.toml` in the order of their names < `--config FILE` < environment (`PENSTOCK__SERVER__PORT`) < flags.
//!
//! `./config/default.toml`, `catalogue.toml` and `example.toml` are not read. The first two are built into the binary, and the third is
//! documentation. `[[models]]` are merged by id.

mod adapter_layers;
mod adapters;
mod auth;
mod cache;
mod cache_type;
mod check_entry;
mod check_name;
mod context;
mod drafts;
mod entry;
mod error;
mod layers;
mod log;
mod misnamed;
mod mmproj;
mod models;
mod named_adapter;
mod nearest;
mod overrides;
mod parameters;
mod reach;
mod resident;
mod sampling;
mod settings;
mod source;
mod sources;
mod storage;
mod stored_variant;
#[cfg(test)]
mod tests;
mod traces;
mod validate;

pub use adapters::{AdapterEntry, AdapterFlag, check_scale};
pub use auth::{Auth, RequireKeys};
pub use cache::{Cache, DiskSpace};
pub use cache_type::CacheType;
pub use check_entry::{check_entry, check_made_name, check_url};
pub use context::Context;
pub use drafts::Drafts;
pub use entry::{ModelEntry, find_model};
pub use error::ConfigError;
pub use log::{LogFormat, log_filter};
pub use misnamed::misnamed_variables;
pub use mmproj::{Mmproj, MmprojFile};
pub use named_adapter::NamedAdapter;
pub use nearest::nearest_model;
pub use overrides::Overrides;
pub use parameters::{parameter, without_effect};
pub use resident::Resident;
pub use settings::{Backend, Config, Engine, Limits, Server, UnknownFields};
pub use source::{PypiPackage, Source};
pub use sources::ConfigSources;
pub use storage::Storage;
pub use stored_variant::{ExampleMessage, ExampleRole, MAX_TEXT, StoredAdapter, StoredFile, StoredTemplate, StoredVariant};
pub use traces::Traces;
