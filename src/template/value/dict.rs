//! Dicts, which keep the order of their keys, and their views.

use std::hash::{Hash, Hasher};

use indexmap::{Equivalent, IndexMap};

use super::hash::{hash_text, hashable};
use super::{Dict, Measure, Value, View, ViewKind};
use crate::budget::{ITEM_BYTES, charge, walk_over};
use crate::failure::Outcome;

/// A string key for a lookup that makes no value.
struct TextKey<'a>(&'a str);

impl Hash for TextKey<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        hash_text(self.0, state);
    }
}

impl Equivalent<Value> for TextKey<'_> {
    fn equivalent(&self, key: &Value) -> bool {
        key.as_text() == Some(self.0)
    }
}

impl Dict {
    /// Makes a dict. If keys are equal, the first key and the last value are kept.
    pub fn new(pairs: impl IntoIterator<Item = (Value, Value)>) -> Outcome<Self> {
        let mut map = IndexMap::new();
        for (key, value) in pairs {
            charge(2 * ITEM_BYTES)?;
            hashable(&key)?;
            map.insert(key, value);
        }
        let measure = Measure::of(map.iter().flat_map(|(key, value)| [key, value]))?;
        Ok(Self { pairs: map, measure })
    }

    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    pub fn get_text(&self, key: &str) -> Option<&Value> {
        self.pairs.get(&TextKey(key))
    }

    /// The value of a key. Fails for a key that no dict can have.
    pub fn get(&self, key: &Value) -> Outcome<Option<&Value>> {
        hashable(key)?;
        walk_over(key.measure().bytes)?;
        Ok(self.pairs.get(key))
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&Value, &Value)> {
        self.pairs.iter()
    }

    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &Value> {
        self.pairs.keys()
    }

    pub fn values(&self) -> impl DoubleEndedIterator<Item = &Value> {
        self.pairs.values()
    }
}

impl ViewKind {
    pub fn type_name(self) -> &'static str {
        match self {
            Self::Keys => "dict_keys",
            Self::Values => "dict_values",
            Self::Items => "dict_items",
        }
    }
}

impl View {
    pub fn items(&self) -> Outcome<Vec<Value>> {
        match self.kind {
            ViewKind::Keys => Ok(self.dict.keys().cloned().collect()),
            ViewKind::Values => Ok(self.dict.values().cloned().collect()),
            ViewKind::Items => self.dict.iter().map(|(key, value)| Value::tuple(vec![key.clone(), value.clone()])).collect(),
        }
    }
}
