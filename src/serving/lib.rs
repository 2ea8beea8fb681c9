//! A loaded model: turns validated requests into streams of pieces, embeddings or scores of pairs, and texts into token ids.

mod defaults;
mod describe;
mod detokenizer;
mod document_truncation;
pub mod embedding;
mod error;
#[cfg(feature = "faults")]
mod faults;
mod generation;
mod judge;
mod load;
mod logprobs;
mod model;
mod name_defaults;
mod options;
mod output;
mod own_template;
mod pair_template;
mod prompt;
pub mod rank;
mod repeat_detector;
mod request;
mod request_usage;
pub mod score;
mod text;
mod thinking_budget;
mod token_constraint;
mod tool_retry;
mod transcript;

pub use defaults::file_sampling;
pub use describe::{Capabilities, Metadata, ModelDescription, whole_metadata};
pub use document_truncation::Truncation;
pub use error::{ContextLimit, Failure, RequestError, SubmitError};
pub use generation::{Generation, submit, submit_all};
pub use load::{ModelFile, RunOptions, chat_template};
pub use model::{BaseModel, Lease, Model};
pub use name_defaults::NameDefaults;
pub use options::{Budget, Options, Truncate};
pub use output::{Counts, End, EndReason, Output, StopCause};
pub use prompt::Prompt;
pub use request::ValidRequest;
pub use request_usage::RequestUsage;
pub use scheduler::{Client, deliver_events};
pub use template::TemplateError;
pub use text::{MAX_TEXT, MEMORY_PER_BYTE, apply_template, detokenize, texts_of, tokenize, tokenize_behind, tokenize_chat};
