//! The only Rust integration test binary, with one module per concern.

mod architectures;
mod backends;
mod conversations;
mod drafts;
mod faults;
mod header;
mod kernels;
mod long;
mod loops;
mod modules;
mod nvcc;
mod prompt_items;
mod prompts;
mod recorder;
mod rows;
mod sampling;
mod source;
mod syntax;
mod tidy;
mod turns;
