//! A served model: from a validated request to a stream of pieces, embeddings, scores of pairs, and texts as token ids.

mod account;
mod again;
mod cut;
mod defaults;
mod describe;
mod detokenizer;
pub mod embedding;
mod error;
#[cfg(feature = "faults")]
mod faults;
mod generation;
mod judge;
mod load;
mod model;
mod name_defaults;
mod options;
mod output;
mod own_template;
mod pair_template;
mod permitted;
mod prompt;
pub mod rank;
mod repeats;
mod request;
pub mod score;
mod text;
mod thinking_budget;
mod tokens;
mod transcript;

pub use account::Account;
pub use cut::Cut;
pub use defaults::file_sampling;
pub use describe::{Abilities, Description, Metadata, whole_metadata};
pub use error::{Failure, RequestError, Room, SubmitError};
pub use generation::{Generation, submit, submit_all};
pub use load::{ModelFile, RunOptions, chat_template};
pub use model::{BaseModel, Lease, Model};
pub use name_defaults::NameDefaults;
pub use options::{Budget, Options, Truncate};
pub use output::{Counts, End, EndReason, Output, StopCause};
pub use prompt::Prompt;
pub use request::ValidRequest;
pub use scheduler::{Client, deliver_events};
pub use template::TemplateError;
pub use text::{MAX_TEXT, MEMORY_PER_BYTE, apply_template, detokenize, texts_of, tokenize, tokenize_behind, tokenize_chat};
