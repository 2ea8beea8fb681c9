//! Describes picture encoders as data: `families.rs` has one row per family, and [`VisionWeights`] is an open mmproj file.
//!
//! An encoder is a tower, whose layers are those of a model without a vocabulary, and a projector, a list of [`Step`]s.

mod families;
mod family;
mod load;
mod read;
mod spec;
#[cfg(test)]
mod tests;

pub use families::FAMILIES;
pub use family::{ClassRow, Family, Filter, Places, Rotation, Step};
pub use load::VisionWeights;
pub use spec::{Pixels, VisionSpec, Windows};
