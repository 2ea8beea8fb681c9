//! The one Rust integration binary: a module a concern.

mod engine;
mod source;
mod tidy;
