//! The one Rust integration binary: a module a concern.

mod source;
mod tidy;
