//! Renders chat templates: a model's own Jinja source, in a sandbox.
//!
//! ```
//! use template::{ChatTemplate, RenderInput};
//!
//! let source = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
//! let template = ChatTemplate::new(source, "<s>", "</s>").unwrap();
//! let messages = serde_json::json!([{ "role": "user", "content": "hi" }]);
//! let prompt = template.render(&RenderInput { messages, ..RenderInput::default() }).unwrap();
//! assert_eq!(prompt, "user: hi\n");
//! ```
//!
//! # Invariants
//! A template comes with a model file and is not trusted:
//! - Its source is limited in length, and in the length of a tag (`source.rs`).
//! - It is compiled and rendered on a thread with a large stack, because minijinja recurses over the syntax tree (`large_stack.rs`).
//! - A render is limited in instructions, in time, in the bytes of the values that it makes, and in the length of its output (`budget.rs`).
//!   minijinja counts instructions only. So each operation that makes or walks large values is replaced by one that draws on the budget:
//!   operators and calls by rewriting the source (`instrument.rs`), filters and tests by wrapping them (`builtins.rs`).
//!
//! Apart from these limits a template renders as it does with Transformers.

mod budget;
mod builtins;
mod chat_template;
mod clock;
mod error;
mod features;
mod input;
mod instrument;
mod json;
mod large_stack;
mod python;
mod source;
#[cfg(test)]
mod tests;

pub use chat_template::ChatTemplate;
pub use clock::Clock;
pub use error::TemplateError;
pub use features::Features;
pub use input::{RenderInput, is_reserved};
