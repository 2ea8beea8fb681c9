//! `/v1/batches`: files of requests that run when the engine has no other work.
//!
//! Each batch has a folder. `input.jsonl` is the input, `batch.json` is the state, and each line that ends is appended to `output.jsonl` or
//! `errors.jsonl`. After a crash, the lines in these two files are the ones that are done. When the batch has ended, only its state is
//! kept.

pub mod check;
pub mod context;
pub mod fair_semaphore;
pub mod handlers;
pub mod in_process;
pub mod line;
pub mod lines;
pub mod run;
pub mod sink;
pub mod state;
pub mod store;
pub mod worker;
