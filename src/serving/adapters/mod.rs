//! Adapters of requests: what a name or a request adds to a base model's weights, and where its changes begin in a prompt.

mod active;
mod base_weights;
mod stamp;
mod store;
mod tracker;

pub(crate) use active::TextRun;
pub use active::{ActiveAdapter, AdapterChoice, AdapterFault, HeldAdapter};
pub use base_weights::BaseWeights;
pub use store::AdapterStore;
pub use tracker::{AdapterTraffic, traffic};
pub(super) use tracker::{names as adapter_names, track};

/// The most adapters of one request.
pub const MAX_ADAPTERS: usize = 8;
