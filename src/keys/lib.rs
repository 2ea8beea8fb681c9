//! API keys: the file that holds them, whom they belong to, what they allow and what they have used.
//!
//! A key is 256 random bits. Files hold its SHA-256 only. A slow password hash would add nothing: it protects secrets that can be
//! guessed, and nobody guesses 256 bits. So a request costs one hash.

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
