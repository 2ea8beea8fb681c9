//! Pictures in prompts: which tokens and rows of embeddings a prompt with pictures becomes, and the thread that encodes pictures.

mod encoder_thread;
mod error;
mod facts;
mod fair_queue;
mod reader;
mod row_cache;
mod rules;
mod settings;

pub use encoder_thread::{EncoderPlace, EncoderThread};
pub use error::PictureError;
pub use facts::{EncoderFacts, RowShape};
pub use reader::{MARKER, PictureReader, PictureRows, PromptPart, items};
pub use rules::PictureRules;
pub use scheduler::{Layout, prompt_batch};

/// The most pictures of a prompt.
pub const MAX_PICTURES: usize = 100;
/// The most pixels of all pictures of a prompt. A file of a few bytes may hold many, and decoding them takes about a second per 64 million.
pub const MAX_PIXELS: u64 = 256_000_000;

#[cfg(test)]
mod tests;
