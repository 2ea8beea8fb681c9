//! What an answer is made of: text, reasoning and tool calls, and how families of models write them.
//!
//! A model's [`Style`] is read from its chat template when it is loaded. From it and a request's tools come the rules that the answer
//! must follow ([`rules`](Rules)), and the [`Parser`] that takes the answer apart while it is written.

mod bare;
mod format;
mod parser;
#[cfg(test)]
mod parser_tests;
mod prompt;
mod rules;
#[cfg(test)]
mod rules_tests;
mod stages;
mod style;
#[cfg(test)]
mod style_tests;
mod syntax;
mod tools;

pub use format::{Format, Structure};
pub use parser::{Delta, Parser};
pub use prompt::prepare;
pub use rules::Rules;
pub use style::Style;
pub use tools::{Choice, Tool, Tools};
