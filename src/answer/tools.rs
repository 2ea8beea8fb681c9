//! The tools of a request.

use serde_json::{Value, json};

/// A function that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// 1 to 64 of a-z, A-Z, 0-9, `_`, `-` and `.`.
    pub name: String,
    /// The schema of its arguments; None: any object.
    pub parameters: Option<Value>,
    /// As chat clients send it, for the template.
    pub definition: Value,
    /// Where the request has `parameters`.
    pub path: String,
}

/// Which tools must be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The model decides whether, and which.
    Auto,
    /// One at least.
    Required,
    /// This one.
    Named(String),
}

/// What a request says of tools. Without any, or where none may be called, it says nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Tools {
    /// Not empty; no name twice.
    pub tools: Vec<Tool>,
    pub choice: Choice,
    /// May several be called in one answer?
    pub parallel: bool,
}

impl Tools {
    /// Those that may be called.
    pub fn callable(&self) -> impl Iterator<Item = &Tool> {
        self.tools.iter().filter(|tool| !matches!(&self.choice, Choice::Named(name) if *name != tool.name))
    }

    /// All of them, for the template.
    pub fn definitions(&self) -> Value {
        self.tools.iter().map(|tool| tool.definition.clone()).collect()
    }
}

impl Tool {
    pub fn schema(&self) -> Value {
        self.parameters.clone().unwrap_or_else(|| json!({"type": "object"}))
    }
}
