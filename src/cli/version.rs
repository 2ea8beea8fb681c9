//! The text of `penstock --version`.

/// The version, and the commit, target and features of the build (`build/version.rs`).
pub const LONG: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit:   ",
    env!("PENSTOCK_COMMIT"),
    "\ntarget:   ",
    env!("PENSTOCK_TARGET"),
    "\nfeatures: ",
    env!("PENSTOCK_FEATURES"),
);
