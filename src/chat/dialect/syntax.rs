//! How a family of models writes tool calls and reasoning.

use serde_json::Value;

use super::notation::Notation;
use super::placeholders::{filled, split};
use template::{json_text, long_integer, parse_json};

/// How a family writes calls:
/// `header trigger open before NAME between ARGUMENTS after`, then for each further call `separator before NAME between ARGUMENTS after`,
/// then `close`. All but `trigger`, `open` and `close` may hold [slots](super::slots).
#[derive(Debug, PartialEq, Eq)]
pub struct Syntax {
    pub name: &'static str,
    /// A template of this family holds all of these texts.
    pub marks: &'static [&'static str],
    /// What the family writes before calls that no text precedes. Often empty. An answer may lack it.
    pub header: &'static str,
    /// The calls begin with it. What stands before it is text.
    pub trigger: &'static str,
    pub open: &'static str,
    pub before: &'static str,
    pub between: &'static str,
    /// What the model may write between the arguments and `after`. Often empty.
    pub extra: &'static str,
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
    /// As the members of an object in a notation of the family's own.
    Notated(&'static Notation),
}

/// An argument is `before KEY text STRING after`, or `before KEY json JSON after` if it is no string. A line break that ends `text` or
/// begins `after` belongs to the tags, not to the value. `json` may hold the slot `{type}`.
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

    /// A value without the line breaks of its tags and without the marks of a section of plain text in XML.
    pub fn inside<'a>(&self, text: &'a str) -> &'a str {
        let text = if self.text.ends_with('\n') { text.strip_prefix('\n').unwrap_or(text) } else { text };
        let text = if self.after.starts_with('\n') { text.strip_suffix('\n').unwrap_or(text) } else { text };
        text.strip_prefix("<![CDATA[").and_then(|text| text.strip_suffix("]]>")).unwrap_or(text)
    }

    /// The tag between the key and a value of this type.
    pub fn json_of(&self, kind: &str) -> String {
        self.json.replace("{type}", kind)
    }
}

/// The name of a value's JSON type.
pub fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) if long_integer(value).is_some() => "number",
        Value::Object(_) => "object",
    }
}

impl Syntax {
    /// The white space between a text and the calls behind it.
    pub fn space(&self) -> &'static str {
        if self.separator.starts_with('\n') { "\n" } else { "" }
    }

    /// The tags of the arguments, if they have tags.
    pub fn tagged(&self) -> Option<&Tagged> {
        match &self.arguments {
            Arguments::Tagged(tags) => Some(tags),
            _ => None,
        }
    }

    /// Arguments as this family writes them. Text that is no JSON object stays as it is.
    pub fn written(&self, arguments: &str) -> String {
        let Some(Value::Object(map)) = parse_json(arguments).ok().filter(|_| self.arguments != Arguments::Json) else {
            return arguments.to_owned();
        };
        let one = |tags: &Tagged, key: &str, value: &Value| match value {
            Value::String(text) => [tags.before, key, tags.text, text, tags.after].concat(),
            other => [tags.before, key, &tags.json_of(type_of(other)), &json_text(other), tags.after].concat(),
        };
        match &self.arguments {
            Arguments::Json => arguments.to_owned(),
            Arguments::Tagged(tags) => map.iter().map(|(key, value)| one(tags, key, value)).collect(),
            Arguments::Python => map.iter().map(|(key, value)| format!("{key}={}", json_text(value))).collect::<Vec<_>>().join(", "),
            Arguments::Notated(notation) => notation.members(&map),
        }
    }

    /// One call, without what stands around all of them. `index` counts from 0.
    pub fn call(&self, index: usize, name: &str, arguments: &str) -> String {
        let fill = |text| filled(text, index, name);
        [&fill(self.before), name, &fill(self.between), &self.written(arguments), self.after].concat()
    }

    /// Calls, each a name and arguments, with what stands around them.
    pub fn calls<'a>(&self, calls: impl Iterator<Item = (&'a str, &'a str)>) -> String {
        let mut text = [self.trigger, self.open].concat();
        for (index, (name, arguments)) in calls.enumerate() {
            text += &if index > 0 { filled(self.separator, index, name) } else { String::new() };
            text += &self.call(index, name, arguments);
        }
        text + self.close
    }

    /// Whether an answer can hold more than one call.
    pub fn repeats(&self) -> bool {
        !(self.after.is_empty() && self.separator.is_empty())
    }

    /// What stands before the name of the first call, up to the first slot.
    pub fn lead(&self) -> String {
        [self.trigger, self.open, split(self.before).0].concat()
    }

    /// Its texts.
    pub fn texts(&self) -> Vec<&'static str> {
        let mut texts = vec![self.header, self.trigger, self.open, self.before, self.between, self.extra, self.after];
        texts.extend([self.separator, self.close]);
        match &self.arguments {
            Arguments::Json | Arguments::Python => {}
            Arguments::Tagged(tags) => texts.extend([tags.before, tags.text, tags.json, tags.after]),
            Arguments::Notated(Notation { object, key, member_end, list, item, string, .. }) => {
                texts.extend([object, key, list, item, string].into_iter().flatten());
                texts.push(member_end);
            }
        }
        texts
    }
}

/// The texts around a model's reasoning.
#[derive(Debug, PartialEq, Eq)]
pub struct Thinking {
    /// A template of this family holds all of these texts.
    pub marks: &'static [&'static str],
    /// Empty: the family does not reason, and only `head` and `tail` count.
    pub open: &'static str,
    pub close: &'static str,
    /// A tag before the answer's text, which is not part of it. Often empty.
    pub head: &'static str,
    /// A tag after the answer's text, which is not part of it. Often empty.
    pub tail: &'static str,
}
