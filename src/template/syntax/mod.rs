//! Jinja's syntax: text → tokens → tree.

pub(crate) mod ast;
pub(crate) mod chars;
mod escapes;
mod expressions;
mod lexer;
mod parser;
mod statements;
mod tags;

pub(crate) use parser::{Known, parse};
