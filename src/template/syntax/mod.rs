//! Parses Jinja's syntax: text → tokens → tree.

pub(crate) mod ast;
pub(crate) mod chars;
mod escapes;
mod expressions;
mod lexer;
mod parser;
mod statements;
mod tags;

#[cfg(test)]
pub(crate) use lexer::MAX_TAG;
pub(crate) use parser::{Known, parse};

/// The length of the longest tag of a template without the contents of its strings [bytes].
#[cfg(test)]
pub(crate) fn longest_tag(source: &str) -> usize {
    lexer::measured(source).map_or(0, |(_, longest)| longest)
}
