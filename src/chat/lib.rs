//! Conversations and answers: their types, and how families of models write them.
//!
//! [`render`] turns a [`Conversation`] into a prompt, and is the only place that makes JSON for a chat template. A model's [`Dialect`] is
//! read from its template when the model is loaded: how tools are declared, and how calls and reasoning are written. The dialect, the
//! tools and the requested format determine the [`Rules`] that the answer must follow. The [`Parser`] splits the answer into [`Piece`]s
//! while the model writes it.

mod answer_start;
mod arrange;
mod bare_calls;
mod call_ids;
mod closed_schemas;
mod conversation;
mod dialect;
mod effort;
mod format;
mod inserted;
mod late_system;
mod literal;
mod order;
mod parameters;
mod parser;
mod picture_marks;
mod piece;
mod probe;
mod probe_levels;
mod probe_pictures;
mod probe_turns;
mod reasoning_meter;
mod relaxed_schemas;
mod render;
mod rules;
mod schema_budget;
mod subject;
mod tools;
mod trial;
mod turn;

pub use answer_start::AnswerStart;
pub use conversation::{Call, Conversation, Ending, Message, Part, Picture, PictureSource, Role};
pub use dialect::Dialect;
pub use effort::{REASON, nearest_efforts};
pub use format::Format;
pub use parser::{Parser, Repeated};
pub use piece::{Piece, Text, TokenLogprob, TopToken};
pub use reasoning_meter::ReasoningMeter;
pub use render::{RenderError, Rendered, render};
pub use rules::{AnswerRules, RuleError, Rules};
pub use subject::Subject;
pub use tools::{Declaration, InputGrammar, Tool, ToolChoice, Tools};

pub use template::{end_of_string, is_reserved, long_integer, long_integers, parse_json};

#[cfg(test)]
mod families_tests;
#[cfg(test)]
mod turns_tests;
