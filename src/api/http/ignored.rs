//! The fields of a request that were left out, as reported in a response header, the log and a counter.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

use super::metrics;

/// The most fields that one request may have left out. No client sends more; that would be an attack.
pub const MOST: usize = 256;
/// The longest name of a field, from the root. The rest is cut [bytes].
const MAX_NAME: usize = 128;
/// The longest list of names [bytes].
const MAX_LIST: usize = 1000;
/// Replaces the names that do not fit into a list.
const MORE: &str = "...";
/// The most names with a label of their own in the counter.
const MAX_COUNTED: usize = 200;
/// The label of all other names.
const OTHERS: &str = "other";

/// The fields that were left out, by their names from the root without list positions: `messages.id`. Each occurs once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ignored(BTreeSet<String>);

impl Ignored {
    /// Whether the field has been left out already.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains(name)
    }

    /// Adds a field. Returns false if there is no room for it or it was already there.
    pub fn add(&mut self, name: String) -> bool {
        self.0.len() < MOST && self.0.insert(name)
    }

    /// The names as a header value of token characters, commas and spaces only. `None` if there are none.
    pub fn list(&self) -> Option<String> {
        let mut list = String::new();
        for name in &self.0 {
            if list.len() + name.len() + MORE.len() + 4 > MAX_LIST {
                write!(list, ", {MORE}").expect("a string takes all text");
                break;
            }
            let comma = if list.is_empty() { "" } else { ", " };
            write!(list, "{comma}{name}").expect("a string takes all text");
        }
        (!list.is_empty()).then_some(list)
    }

    /// Counts the fields.
    pub fn count(&self) {
        static COUNTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
        let mut counted = COUNTED.lock().unwrap_or_else(PoisonError::into_inner);
        for name in &self.0 {
            let has_label = counted.contains(name) || (counted.len() < MAX_COUNTED && counted.insert(name.clone()));
            metrics::http().ignored.with_label_values(&[if has_label { name.as_str() } else { OTHERS }]).inc();
        }
    }
}

/// Formats a field's name for the list. A character that is not allowed in a token (RFC 9110, 5.6.2) becomes an underscore.
pub fn plain(name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    let name: String = name.chars().take(MAX_NAME).map(|c| if is_plain(c) { c } else { '_' }).collect();
    if name.is_empty() { "_".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_listed_once_and_in_order() {
        let mut ignored = Ignored::default();
        assert_eq!(ignored.list(), None);
        assert!(ignored.add("messages.id".into()) && ignored.add("agent".into()) && !ignored.add("agent".into()));
        assert_eq!(ignored.list().as_deref(), Some("agent, messages.id"));
    }

    proptest! {
        #[test]
        fn whatever_the_names_are_the_list_is_short_and_plain(names in prop::collection::vec(".{0,200}", 1..400)) {
            let mut ignored = Ignored::default();
            for name in &names {
                ignored.add(plain(name));
            }
            let list = ignored.list().unwrap();
            prop_assert!(ignored.0.len() <= MOST && list.len() <= MAX_LIST, "{}", list.len());
            prop_assert!(list.split(", ").all(|name| !name.is_empty() && plain(name) == name), "{list}");
        }
    }
}
