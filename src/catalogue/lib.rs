//! The models that exist: their names, the sources of their files, and the store on disk.

mod adapter_files;
mod beside;
mod blobs;
mod download;
mod hub_adapters;
mod made;
mod manifest;
mod names;
mod new_file;
mod store;
#[cfg(test)]
mod test_server;
#[cfg(test)]
mod tests;
#[doc(hidden)]
pub mod untrusted;

pub use adapter_files::{ADAPTER_FILE, PEFT_FILES, adapter_at, peft_name, stored_adapter};
pub use beside::{MmprojBeside, mmproj_beside};
pub use blobs::{NewBlob, blob_digest};
pub use download::{HubModel, HubRepository, MMPROJ, Meter, Progress, PullError, Tools, models_of_hub, search_hub, sha256_of};
pub use hub_adapters::{HubAdapter, PulledAdapter};
pub use manifest::{MODEL, Manifest, StoredMmproj};
pub use names::{LATEST, base_of, describe, models, resolve, resolve_among};
pub use new_file::NewFile;
pub use store::{Presence, Store};
