//! Renders chat templates: a model's own Jinja source, in a sandbox.
//!
//! ```
//! use penstock_template::{ChatTemplate, RenderInput};
//!
//! let source = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
//! let template = ChatTemplate::new(source, "<s>", "</s>").unwrap();
//! let messages = serde_json::json!([{ "role": "user", "content": "hi" }]);
//! let prompt = template.render(&RenderInput { messages, ..RenderInput::default() }).unwrap();
//! assert_eq!(prompt, "user: hi\n");
//! ```
//!
//! The language is Jinja, and values behave as in Python, because templates are written for Jinja in Python as Transformers sets it up.
//!
//! - `syntax/`: text → tokens → tree.
//! - `value/`: Python's values, their text, equality and order.
//! - `library/`: operators, filters, tests, methods and functions.
//! - `run/`: the interpreter.
//!
//! # Invariants
//! A template comes with a model file and is not trusted:
//! - Its source is limited in length (`source.rs`), in the length of a tag (`syntax/lexer.rs`) and in nesting (`syntax/parser.rs`).
//! - It is parsed and rendered on a thread with a large stack, because parser and interpreter recurse (`large_stack.rs`).
//! - A render is limited in steps, in time, in the bytes of the values that it makes and walks, and in the length of its output
//!   (`budget.rs`). Constructors of values charge the budget, and an operation that multiplies its arguments asks it first.
//! - Values are immutable, and their nesting is limited when they are made (`value/mod.rs`). So no walk is endless.

mod budget;
mod chat_template;
mod clock;
mod error;
mod failure;
mod features;
#[cfg(test)]
mod golden_tests;
mod input;
mod integers;
mod large_stack;
mod library;
mod run;
mod source;
mod syntax;
#[cfg(test)]
mod tests;
mod value;

pub use chat_template::ChatTemplate;
pub use clock::Clock;
pub use error::TemplateError;
pub use features::Features;
pub use input::{RenderInput, is_reserved};
pub use integers::{end_of_string, json_text, long_integer, long_integers, parse_json};
