//! [`Syntax`]: the texts with which a family of models writes tool calls, and [`Thinking`]: those of its reasoning.

use serde_json::Value;

use super::notation::Notation;
use super::placeholders::{filled, split};
use template::{json_text, long_integer, parse_json};

/// The texts with which a family writes calls:
/// `header trigger open before NAME between ARGUMENTS after`, then `separator before NAME between ARGUMENTS after` for each further call,
/// then `close`. All but `trigger`, `open` and `close` may hold [placeholders](super::placeholders).
#[derive(Debug, PartialEq, Eq)]
pub struct Syntax {
    pub name: &'static str,
    /// Texts that every template of this family holds.
    pub marks: &'static [&'static str],
    /// The text before calls that no other text precedes. Often empty. An answer may lack it.
    pub header: &'static str,
    /// The text with which the calls begin. Whatever comes before is text.
    pub trigger: &'static str,
    pub open: &'static str,
    pub before: &'static str,
    pub between: &'static str,
    /// Text that the model may write between the arguments and `after`. Often empty.
    pub extra: &'static str,
    pub after: &'static str,
    pub separator: &'static str,
    pub close: &'static str,
    pub arguments: Arguments,
    /// Whether calls may follow a text. Otherwise they are the whole answer.
    pub follows_text: bool,
}

/// The form in which a call writes its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arguments {
    /// As a JSON object.
    Json,
    /// Each argument between its tags.
    Tagged(Tagged),
    /// Each argument as in Python: `KEY=VALUE, KEY=VALUE`.
    Python,
    /// The members of an object in the family's own notation.
    Notated(&'static Notation),
}

/// The tags of an argument: `before KEY text STRING after`, or `before KEY json JSON after` if the value is no string. A line break that
/// ends `text` or begins `after` belongs to the tags, not to the value. `json` may hold the placeholder `{type}`.
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

    /// The white space after the tag that ends a value.
    pub fn end(&self) -> &'static str {
        &self.after[self.after.trim_end().len()..]
    }

    /// The line break before the tag that ends a value, as a part of a regular expression.
    pub fn line(&self) -> &'static str {
        if self.after.starts_with('\n') { "\\n" } else { "" }
    }

    /// A value without its tags' line breaks and without the marks of an XML CDATA section.
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
    /// The white space between a text and the calls after it.
    pub fn space(&self) -> &'static str {
        if self.separator.starts_with('\n') { "\n" } else { "" }
    }

    /// The tags of arguments, if the family writes any.
    pub fn tagged(&self) -> Option<&Tagged> {
        match &self.arguments {
            Arguments::Tagged(tags) => Some(tags),
            _ => None,
        }
    }

    /// Writes arguments as this family does. Text that is no JSON object stays as it is.
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

    /// One call, without the texts around all calls. `index` counts from 0.
    pub fn call(&self, index: usize, name: &str, arguments: &str) -> String {
        let fill = |text| filled(text, index, name);
        [&fill(self.before), name, &fill(self.between), &self.written(arguments), self.after].concat()
    }

    /// Calls with the texts around them. Each is a name and arguments.
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

    /// The text before the first call's name, up to the first placeholder.
    pub fn lead(&self) -> String {
        [self.trigger, self.open, split(self.before).0].concat()
    }

    /// All texts of the syntax.
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
    /// Texts that every template of this family holds.
    pub marks: &'static [&'static str],
    /// The tag that opens reasoning. Empty: the family does not reason, and only `head` and `tail` count.
    pub open: &'static str,
    pub close: &'static str,
    /// A tag before the answer's text, which is not part of it. Often empty.
    pub head: &'static str,
    /// A tag after the answer's text, which is not part of it. Often empty.
    pub tail: &'static str,
}
