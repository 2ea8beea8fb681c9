//! How values of any depth are written by families whose calls hold no JSON.

use serde_json::Value;

use template::{json_text, long_integer};

/// Members of an object are `key.0 KEY key.1 VALUE member_end`, with `comma` between them. Numbers and constants are JSON's.
#[derive(Debug, PartialEq, Eq)]
pub struct Notation {
    pub object: [&'static str; 2],
    pub key: [&'static str; 2],
    /// `{name}` is the key.
    pub member_end: &'static str,
    pub list: [&'static str; 2],
    pub item: [&'static str; 2],
    pub comma: &'static str,
    pub string: [&'static str; 2],
    /// The mark that no string can hold: it is in every tag that may follow one.
    pub mark: &'static str,
    /// Whether members come in the order of their keys.
    pub sorted: bool,
}

impl Notation {
    /// Whether every value stands between tags, so that only its schema tells a string from a number.
    pub fn is_tags(&self) -> bool {
        self.string[0].is_empty()
    }

    /// The keys of an object in the order in which they are written.
    pub fn order<'a>(&self, keys: impl Iterator<Item = &'a String>) -> Vec<&'a String> {
        let mut keys: Vec<&String> = keys.collect();
        if self.sorted {
            keys.sort_by_key(|key| key.to_lowercase());
        }
        keys
    }

    /// The members of an object.
    pub fn members(&self, map: &serde_json::Map<String, Value>) -> String {
        let member = |key: &String| {
            let end = self.member_end.replace("{name}", key);
            [self.key[0], key, self.key[1], &self.value(&map[key]), &end].concat()
        };
        self.order(map.keys()).into_iter().map(member).collect::<Vec<_>>().join(self.comma)
    }

    /// A value.
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
