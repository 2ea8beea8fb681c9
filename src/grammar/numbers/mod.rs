//! Follows large numbers in schemas with all their digits.
//!
//! llguidance reads a schema's numbers as doubles, which hold all whole numbers only up to 2^53. If the numbers of a part depend on a
//! larger one, the set of numbers that the part permits is computed here (`read.rs`, `set.rs`) and becomes a regular expression
//! (`text.rs`). In the schema, a reference to a placeholder replaces the numbers (`rewrite.rs`). Once the schema is compiled, the regular
//! expression replaces the placeholder's lexeme (`placeholder.rs`). What only llguidance could combine is refused by name (`combined.rs`).

mod combined;
mod decimal;
mod placeholder;
mod read;
mod rewrite;
mod set;
mod step;
#[cfg(test)]
mod tests;
mod text;

pub use placeholder::{Placeholder, replace};
pub use rewrite::{depends, rewrite};
