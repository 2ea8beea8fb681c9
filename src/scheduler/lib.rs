//! The engine thread: continuous batching over token ids and rows of embeddings. It never sees text.
//!
//! A sequence is handed in once, through [`Handle::enqueue`]. Its tokens come back through its [`EventStream`]. In between, the engine
//! thread repeats one step (`step.rs`): schedule, submit, collect, commit. `plan.rs` decides which sequences run and with how many rows,
//! the engine computes the batch, and `commit.rs` hands the results to the sequences.

mod adapters;
mod batch;
mod block_key;
mod block_manager;
mod cache_size;
mod channel;
mod checkpoints;
mod client;
mod commit;
mod disk_tier;
mod drafts;
mod engine_fault;
mod engine_state;
mod engine_thread;
mod event;
#[cfg(test)]
mod fairness_tests;
#[cfg(test)]
mod fake;
mod guesser;
mod handle;
mod inbox;
mod items;
mod loading;
mod loops;
mod lru;
mod mailbox;
mod mask_threads;
mod masks;
mod new_sequence;
mod options;
mod plan;
mod prefix_cache;
mod progress;
mod queue_permits;
#[cfg(test)]
mod random;
mod replica;
#[cfg(test)]
mod replicas_tests;
mod routing;
#[cfg(test)]
mod row_tests;
mod running;
mod sequence;
mod sequence_cache;
mod sequences;
mod shared;
mod shared_device;
#[cfg(test)]
mod shared_device_tests;
mod state_slots;
mod step;
mod step_masks;
mod survivors;
mod tenant_accounts;
#[cfg(test)]
mod tenants_tests;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod time_slicing;
mod timeline;
mod tokens;
mod unsaved;
mod waiting;
mod watchdog;

pub use adapters::{AdapterRequest, HostAdapter};
pub use batch::prompt_batch;
pub use client::{Client, DEFAULT_PRIORITY};
pub use disk_tier::SavedPrefixes;
pub use drafts::draft_model::DraftEngine;
pub use drafts::{DraftOptions, KnownAnswer};
pub use engine::Pooling;
pub use engine_fault::EngineFault;
pub use event::{Event, FinishReason};
pub use guesser::Engines;
pub use handle::{EnqueueError, Handle, RequestHandle};
pub use items::{Items, Layout, RowRun};
pub use mailbox::deliver_events;
pub use new_sequence::{NewSequence, SequenceGroup};
pub use options::SchedulerOptions;
pub use progress::{DraftCounts, Progress};
pub use replica::{CacheBytes, DeviceShare, EventStream, ReplicaParts, ReplicaStatus};
pub use shared_device::{MemoryReservation, SharedDevice};
pub use watchdog::Watchdog;
