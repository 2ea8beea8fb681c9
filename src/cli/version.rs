//! What `penstock --version` tells of the build.

/// The version, then what the binary was built from (`build/version.rs`).
pub const LONG: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit:   ",
    env!("PENSTOCK_COMMIT"),
    "\ntarget:   ",
    env!("PENSTOCK_TARGET"),
    "\nfeatures: ",
    env!("PENSTOCK_FEATURES"),
);
