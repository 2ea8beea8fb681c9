//! [`RenderInput`]: the variables of a template.

use serde_json::{Map, Value};

use crate::instrument::PREFIX;

/// Names of variables and functions that the context of every template defines.
pub(crate) const RESERVED: [&str; 9] =
    ["messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "raise_exception", "strftime_now", "namespace", "range"];

/// Whether the context itself defines a name, so that no variable of a request may have it.
pub fn is_reserved(name: &str) -> bool {
    RESERVED.contains(&name) || name.starts_with(PREFIX)
}

/// The variables that a template is rendered with.
#[derive(Clone, Debug, Default)]
pub struct RenderInput {
    /// A JSON array of messages.
    pub messages: Value,
    pub tools: Option<Value>,
    pub add_generation_prompt: bool,
    /// Further variables, whose names must not be reserved.
    pub kwargs: Map<String, Value>,
}
