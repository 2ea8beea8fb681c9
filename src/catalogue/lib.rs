//! Which models there are: their names, where their files come from, and which of them are on disk.

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
