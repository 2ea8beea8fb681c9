//! `/v1/batches`: files of requests that run when the engine has nothing better to do.
//!
//! A batch has a folder. `input.jsonl` is its input, `output.jsonl` and `errors.jsonl` grow by a line as soon as one has ended, and
//! `batch.json` has its state. After a crash, the lines in both files are those that are done. Once it has ended, its state alone is left.

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
