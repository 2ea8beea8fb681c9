//! How a family of models writes tool calls and reasoning.

use serde_json::Value;

/// How a family writes calls:
/// `trigger open before NAME between ARGUMENTS after`, then for each further call `separator before NAME between ARGUMENTS after`, then
/// `close`.
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
    pub arguments: Arguments,
    /// Whether calls may follow a text. Otherwise they are the whole answer.
    pub follows_text: bool,
}

/// How a call writes its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arguments {
    /// As a JSON object.
    Json,
    /// One by one, between tags.
    Tagged(Tagged),
    /// One by one, as Python's `KEY=VALUE, KEY=VALUE`.
    Python,
}

/// An argument is `before KEY text STRING after`, or `before KEY json JSON after` if it is no string. A line break that ends `text` or
/// begins `after` belongs to the tags, not to the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tagged {
    pub before: &'static str,
    pub text: &'static str,
    pub json: &'static str,
    pub after: &'static str,
}

impl Tagged {
    /// The tag that ends a value, without white space.
    pub fn close(&self) -> &'static str {
        self.after.trim()
    }

    /// The white space behind it.
    pub fn end(&self) -> &'static str {
        &self.after[self.after.trim_end().len()..]
    }

    /// The line break before it, as a part of a regular expression.
    pub fn line(&self) -> &'static str {
        if self.after.starts_with('\n') { "\\n" } else { "" }
    }

    /// A value without the line breaks of its tags.
    pub fn inside<'a>(&self, text: &'a str) -> &'a str {
        let text = if self.text.ends_with('\n') { text.strip_prefix('\n').unwrap_or(text) } else { text };
        if self.after.starts_with('\n') { text.strip_suffix('\n').unwrap_or(text) } else { text }
    }
}

impl Syntax {
    /// The tags of the arguments, if they have tags.
    pub fn tagged(&self) -> Option<&Tagged> {
        match &self.arguments {
            Arguments::Json | Arguments::Python => None,
            Arguments::Tagged(tags) => Some(tags),
        }
    }

    /// Arguments as this family writes them. Text that is no JSON object stays as it is.
    pub fn written(&self, arguments: &str) -> String {
        let tags = match &self.arguments {
            Arguments::Json => return arguments.to_owned(),
            Arguments::Tagged(tags) => Some(tags),
            Arguments::Python => None,
        };
        let Ok(Value::Object(map)) = serde_json::from_str(arguments) else { return arguments.to_owned() };
        let Some(tags) = tags else {
            return map.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(", ");
        };
        let one = |(key, value): (&String, &Value)| match value {
            Value::String(text) => [tags.before, key, tags.text, text, tags.after].concat(),
            other => [tags.before, key, tags.json, &other.to_string(), tags.after].concat(),
        };
        map.iter().map(one).collect()
    }

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
