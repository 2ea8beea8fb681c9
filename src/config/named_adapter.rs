//! [`NamedAdapter`]: what a name adds to the weights of its model.

use std::path::PathBuf;

/// The adapter of a name.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedAdapter {
    pub path: PathBuf,
    pub scale: f32,
}
