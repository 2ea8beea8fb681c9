//! Large numbers in schemas, with all of their digits.
//!
//! llguidance reads the numbers of a schema as doubles, which hold whole numbers up to 2^53 only. So a part of a schema whose numbers
//! depend on a larger one is taken out of its hands: the set of numbers that the part permits is computed here (`read.rs`, `set.rs`) and
//! becomes a regular expression (`text.rs`). In the schema, a reference to a placeholder takes the numbers' place (`rewrite.rs`); once the
//! schema is compiled, the placeholder's lexeme is replaced with that expression (`placeholder.rs`). What can be combined only by
//! llguidance is refused by name (`combined.rs`).

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
