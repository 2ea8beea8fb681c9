//! A loaded model: turns validated requests into streams of pieces, embeddings or scores of pairs, and texts into token ids.

mod adapters;
mod answer;
mod defaults;
mod describe;
mod detokenizer;
mod document_truncation;
mod draft_model;
pub mod embedding;
mod encoded_prompt;
mod error;
#[cfg(feature = "faults")]
mod faults;
mod generation;
mod judge;
mod ledger;
mod load;
mod logprobs;
mod model;
mod name_defaults;
mod options;
mod output;
mod own_template;
mod pair_template;
pub mod pictures;
mod prompt;
pub mod rank;
mod repeat_detector;
mod request;
mod response_request;
mod response_stream;
pub mod score;
mod text;
mod thinking_budget;
mod token_constraint;
mod tool_retry;
mod transcript;

pub use adapters::{
    ActiveAdapter, AdapterChoice, AdapterFault, AdapterStore, AdapterTraffic, BaseWeights, HeldAdapter, MAX_ADAPTERS, traffic,
};
pub use answer::{Answer, FunctionCall};
pub use chat::{Message, Role};
pub use defaults::file_sampling;
pub use describe::{Capabilities, Metadata, ModelDescription, TensorFacts, tensors, whole_metadata};
pub use document_truncation::Truncation;
pub use draft_model::DraftFile;
pub use error::{ContextLimit, Failure, RequestError, SubmitError};
pub use ledger::{Account, Ledger, PromptProgress};
pub use load::{DiskCache, ModelFile, OpenDraft, RunOptions, chat_template, replica_index};
pub use model::{BaseModel, Lease, Model};
pub use name_defaults::NameDefaults;
pub use options::{Budget, DraftLimits, Options, Truncate};
pub use output::{Counts, End, EndReason, Output, StopCause};
pub use pictures::{EncoderFacts, RowShape};
pub use prompt::{Around, Prompt};
pub use request::ValidRequest;
pub use response_request::{ResponseRequest, reserve, submit};
pub use response_stream::{NextOutput, ResponseStream, StreamError};
pub use scheduler::{Client, DraftCounts, ReplicaStatus, deliver_events};
pub use template::{ChatTemplate, TemplateError};
pub use text::{MAX_TEXT, MEMORY_PER_BYTE, PromptTokens, apply_template, detokenize, texts_of, tokenize, tokenize_behind, tokenize_chat};
