//! Pictures, from a client's bytes to what a vision model's encoder reads.
//!
//! [`decode`] turns bytes into [`Rgb`] within limits that are checked before pixels are allocated. [`resize`] is Pillow's, byte for byte.
//! [`PictureSettings::plan`] says from a picture's size alone which tiles the encoder gets, how many rows of embeddings they become and
//! which text stands around them; [`PicturePlan::prepare`] then makes the tiles.

mod content;
mod decode;
mod decode_error;
mod family;
mod format;
mod layout;
mod most_rows;
mod pixels;
mod plan;
mod resize;
mod rgb;
mod settings;
mod settings_check;
mod sniff;
mod structure;

pub use content::chunk_source;
pub use decode::{DecodeLimits, PictureHeader, decode, read_header};
pub use decode_error::DecodeError;
pub use family::Family;
pub use format::Format;
pub use layout::LayoutError;
pub use plan::{PickedRow, PicturePlan, PlanChunk, RowOrder, RowsChunk, Tile};
pub use resize::{Filter, resize};
pub use rgb::Rgb;
pub use settings::{Cutting, Markers, PictureSettings};

#[cfg(test)]
mod decode_tests;
#[cfg(test)]
mod layout_tests;
#[cfg(test)]
mod resize_tests;
#[cfg(test)]
mod test_picture;
