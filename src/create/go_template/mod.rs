//! Translates Go's templates, as Ollama's models have them, to Jinja.
//!
//! - `lexer.rs`: text → texts and actions, with the white space trimmed that `{{-` and `-}}` trim.
//! - `parser.rs`: actions → a tree (`tree.rs`).
//! - `fields.rs`: the values that Ollama gives a template, with their names in Jinja.
//! - `pipeline.rs`, `emit.rs`: the tree → Jinja.
//!
//! Ollama renders a template in one of two ways. If it names `.Messages`, it is rendered once. Otherwise it describes one exchange
//! (`.System`, `.Prompt`, `.Response`), and is rendered per exchange, the last time only up to `.Response`.
//!
//! # Invariants
//! - What cannot be translated is an error that names the line, never a template that renders something else.
//! - The length of the translation is linear in that of the source, whose length and nesting are limited.

mod emit;
mod error;
mod fields;
mod lexer;
mod parser;
mod pipeline;
#[cfg(test)]
mod tests;
mod tree;

pub use error::GoTemplateError;

/// The longest source [bytes]. Far above any real template.
const MAX_SOURCE: usize = 96 << 10;

/// Whether a template is written in Jinja already: it has a tag that Go's templates do not have.
pub fn is_jinja(source: &str) -> bool {
    source.contains("{%")
}

/// Translates a template of Go's to Jinja.
///
/// # Errors
/// The source is malformed, or has something that no Jinja stands for.
pub fn to_jinja(source: &str) -> Result<String, GoTemplateError> {
    if source.len() > MAX_SOURCE {
        return Err(GoTemplateError::new(1, format!("the template has {} bytes, expected at most {MAX_SOURCE}", source.len())));
    }
    emit::translate(&parser::parse(lexer::lex(source)?)?)
}
