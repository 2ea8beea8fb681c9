//! The one Rust integration binary: a module a concern.

mod engine;
mod faults;
mod header;
mod nvcc;
mod prompts;
mod sampling;
mod source;
mod tidy;
