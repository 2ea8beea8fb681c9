//! The models that exist: their names, the sources of their files, and the store on disk.

mod download;
mod manifest;
mod names;
mod store;
#[cfg(test)]
mod test_server;
#[cfg(test)]
mod tests;
#[doc(hidden)]
pub mod untrusted;

pub use download::{Meter, Progress, PullError, Tools};
pub use names::{describe, resolve};
pub use store::{Presence, Store};
