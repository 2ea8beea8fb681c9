//! API keys: their file, their tenants, their limits and their usage.
//!
//! A key is 256 random bits, and files hold only its SHA-256. A slow password hash would add nothing, because it protects secrets that can
//! be guessed, and 256 random bits cannot. So a request costs one hash.

mod bucket;
mod digest;
mod entry;
mod file;
mod key;
mod ring;
mod version;

pub use digest::{Digest, new_secret};
pub use entry::KeyEntry;
pub use file::{KeyFile, KeyFileError};
pub use key::{InFlight, Key, Limit, Limits, Rate, Refusal};
pub use ring::Ring;
pub use version::Version;
