//! How a family of models writes tool calls and reasoning.

/// How a family writes calls:
/// `trigger open before NAME between ARGUMENTS after`, then for each further call `separator before NAME between ARGUMENTS after`, then
/// `close`. ARGUMENTS is a JSON object.
#[derive(Debug, PartialEq, Eq)]
pub struct Syntax {
    pub name: &'static str,
    /// A template of this family holds all of these texts.
    pub marks: &'static [&'static str],
    /// The calls begin with it. What stands before it is text.
    pub trigger: &'static str,
    pub open: &'static str,
    pub before: &'static str,
    pub between: &'static str,
    pub after: &'static str,
    pub separator: &'static str,
    pub close: &'static str,
    /// Whether calls may follow a text. Otherwise they are the whole answer.
    pub follows_text: bool,
}

impl Syntax {
    /// Whether an answer can hold more than one call.
    pub fn repeats(&self) -> bool {
        !(self.after.is_empty() && self.separator.is_empty())
    }

    /// What stands before the name of the first call.
    pub fn lead(&self) -> String {
        [self.trigger, self.open, self.before].concat()
    }
}

/// The texts around a model's reasoning.
#[derive(Debug, PartialEq, Eq)]
pub struct Thinking {
    pub open: &'static str,
    pub close: &'static str,
    /// A tag before the answer's text, which is not part of it. Often empty.
    pub head: &'static str,
}
