//! Conversion of Anthropic's JSON to domain requests, or to an error that names the field.

pub mod blocks;
pub mod cache_control;
pub mod edits;
pub mod messages;
pub mod names;
pub mod options;
pub mod request;
pub mod schemas;
pub mod thinking;
pub mod tools;

#[cfg(test)]
mod tests;
