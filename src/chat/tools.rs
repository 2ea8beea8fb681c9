//! The tools of a conversation.

use serde_json::{Map, Value, json};

use super::subject::Subject;

/// A function that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// 1 to 129 of a-z, A-Z, 0-9, `_`, `-` and `.`. May begin with a namespace.
    pub name: String,
    /// The schema of the function's arguments. `None`: any object.
    pub parameters: Option<Value>,
    /// Whether the request is refused if the schema cannot be followed. Otherwise, a looser schema is used.
    pub strict: bool,
    pub declaration: Declaration,
    /// The grammar of the text `input`, if that is the tool's only argument and has a grammar.
    pub input: Option<InputGrammar>,
}

/// The grammar of a tool's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InputGrammar {
    /// A regular expression that must match the whole text.
    Regex(String),
    /// A grammar in Lark's syntax.
    Lark(String),
}

/// A tool as the client declared it. Templates print declarations as JSON, so the client's order of keys and its further keys
/// reach the model.
#[derive(Clone, Debug, PartialEq)]
pub enum Declaration {
    /// `type` and `function`, as templates expect it.
    Whole(Map<String, Value>),
    /// The fields of the function alone.
    Function(Map<String, Value>),
}

/// Which tools the model may or must call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model decides whether it calls a tool, and which.
    Auto,
    /// The model must call at least one tool.
    Required,
    /// The model must call the tool with this name.
    Named(String),
    /// The model may call the tools with these names.
    Among {
        names: Vec<String>,
        /// Whether the model must call one of them.
        required: bool,
    },
}

/// The tools of a conversation in which at least one may be called.
#[derive(Clone, Debug, PartialEq)]
pub struct Tools {
    /// Not empty. Names are unique.
    pub tools: Vec<Tool>,
    pub choice: ToolChoice,
    /// Whether one answer may make several calls.
    pub parallel: bool,
}

impl Tools {
    /// The tools that may be called.
    pub fn callable(&self) -> impl Iterator<Item = &Tool> {
        self.tools.iter().filter(|tool| match &self.choice {
            ToolChoice::Auto | ToolChoice::Required => true,
            ToolChoice::Named(name) => *name == tool.name,
            ToolChoice::Among { names, .. } => names.contains(&tool.name),
        })
    }

    /// The subject of an error in a tool's schema.
    pub fn parameters_of(&self, tool: &Tool) -> Subject {
        Subject::ToolParameters(self.tools.iter().position(|other| other.name == tool.name).unwrap_or(0))
    }

    /// Whether the answer must make a call.
    pub fn must_call(&self) -> bool {
        !matches!(self.choice, ToolChoice::Auto | ToolChoice::Among { required: false, .. })
    }
}

impl Tool {
    pub fn schema(&self) -> Value {
        self.parameters.clone().unwrap_or_else(|| json!({"type": "object"}))
    }
}
