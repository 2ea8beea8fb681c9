//! [`Notation`]: the way in which a family whose calls hold no JSON writes values of any depth.

use serde_json::Value;

use template::{json_text, long_integer};

/// The texts of a notation. An object's members are written `key.0 KEY key.1 VALUE member_end`, with `comma` between them. Numbers and
/// constants are written as in JSON.
#[derive(Debug, PartialEq, Eq)]
pub struct Notation {
    pub object: [&'static str; 2],
    pub key: [&'static str; 2],
    /// The end of a member. `{name}` in it is the member's key.
    pub member_end: &'static str,
    pub list: [&'static str; 2],
    pub item: [&'static str; 2],
    pub comma: &'static str,
    pub string: [&'static str; 2],
    /// A mark that no string can hold: every tag that may follow a string contains it.
    pub mark: &'static str,
    /// Whether members are sorted by their keys.
    pub sorted: bool,
}

impl Notation {
    /// Whether every value is between tags, so only its schema tells a string from a number.
    pub fn is_tags(&self) -> bool {
        self.string[0].is_empty()
    }

    /// An object's keys in the order in which they are written.
    pub fn order<'a>(&self, keys: impl Iterator<Item = &'a String>) -> Vec<&'a String> {
        let mut keys: Vec<&String> = keys.collect();
        if self.sorted {
            keys.sort_by_key(|key| key.to_lowercase());
        }
        keys
    }

    /// An object's members as text.
    pub fn members(&self, map: &serde_json::Map<String, Value>) -> String {
        let member = |key: &String| {
            let end = self.member_end.replace("{name}", key);
            [self.key[0], key, self.key[1], &self.value(&map[key]), &end].concat()
        };
        self.order(map.keys()).into_iter().map(member).collect::<Vec<_>>().join(self.comma)
    }

    /// A value as text.
    pub fn value(&self, value: &Value) -> String {
        match value {
            Value::String(text) => [self.string[0], text, self.string[1]].concat(),
            Value::Object(_) if long_integer(value).is_some() => json_text(value),
            Value::Object(map) => [self.object[0], &self.members(map), self.object[1]].concat(),
            Value::Array(items) => {
                let items: Vec<String> = items.iter().map(|item| [self.item[0], &self.value(item), self.item[1]].concat()).collect();
                [self.list[0], &items.join(self.comma), self.list[1]].concat()
            }
            other => other.to_string(),
        }
    }
}
