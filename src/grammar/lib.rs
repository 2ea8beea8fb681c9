//! Compiles JSON schemas, regular expressions and grammars in Lark's syntax or in GBNF to masks over the token ids of a model's vocabulary.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # fn example(tokenizer: Arc<tokenizer::Tokenizer>) -> Result<(), Box<dyn std::error::Error>> {
//! let size = tokenizer.vocab_size();
//! let compiler = penstock_grammar::Compiler::new(tokenizer, size);
//! let schema = serde_json::json!({ "type": "array", "items": { "type": "boolean" } });
//! let source = penstock_grammar::Source::new("start: @answer").with_schema("answer", &schema)?;
//! let mut position = compiler.compile(&source)?.start();
//! let mask = position.allowed()?; // before each token
//! position.accept(42)?; // after each token
//! # Ok(())
//! # }
//! ```
//!
//! # Invariants
//! Clients write grammars and schemas, so they are not trusted:
//! - Sizes are limited before anything is compiled (`source.rs`, `size.rs`).
//! - A child process first rewrites a grammar in Lark's syntax and compiles it on trial. It ends itself when it has used up its budget of
//!   time or memory (`trial.rs`). Then the grammar is compiled on a thread of its own with a large stack. Only a few compile at once
//!   (`compile.rs`).
//! - The cached compiled grammars are limited in number and in bytes (`compiled_cache.rs`), and so are the copies that texts follow
//!   (`memory_limiter.rs`).
//! - Following a grammar has a time budget per text, which grows with each token (`meter.rs`). A text that exceeds the budget fails with
//!   the reason.
//! - The error for a refused schema names the JSON pointer of the innermost part that causes the refusal (`locate.rs`).

mod compile;
mod compiled_cache;
mod error;
mod factory;
mod gbnf;
mod literal;
mod locate;
mod matcher;
mod memory_limiter;
mod meter;
mod numbers;
mod permit;
mod quoted;
mod size;
mod source;
#[doc(hidden)]
pub mod testing;
#[cfg(test)]
mod tests;
mod trial;
mod trial_child;
mod trial_worker;
mod vocab;

pub use compile::Compiler;
pub use error::GrammarError;
pub use gbnf::is_gbnf;
pub use literal::lark_string;
pub use size::check_size as check_schema_size;
pub use source::Source;
pub use trial::{enable as enable_trials, keep_ready as keep_trials_ready};
