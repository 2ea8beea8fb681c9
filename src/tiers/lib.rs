//! The tiers of a prefix cache below an engine's pool: so far files, which outlive the process.
//!
//! A file holds the bytes of one KV block of one cache group, or of one recurrent state. Its name is the hash of its *identity*: everything
//! that the bytes depend on, up to the block's last token. The identity stands in the file and is compared with what is asked for, and a
//! checksum covers the whole file, so a file is either exactly what was written for these tokens or it is not used.
//!
//! # Invariants
//! - No caller waits for a disk, except at [`Store::of`]: two threads write and read, and their queues are bounded.
//! - A file appears whole or not at all. Processes may share a folder.
//! - A disk that is full, read-only or gone costs the cache and one warning, and no request.

mod file;
mod folder;
mod key;
mod secret;
mod store;

pub use file::Wanted;
pub use key::{Identity, Key, Part, Root, root};
pub use secret::secret;
pub use store::{Loaded, Store};
