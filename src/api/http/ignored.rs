//! The fields of a request that were left out: what the answer's header, the log and a counter name.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

use super::metrics;

/// The most fields that one request may have left out. More are no client's, but an attack's.
pub const MOST: usize = 256;
/// The longest name of a field, from the root on. The rest is cut. In bytes.
const MAX_NAME: usize = 128;
/// The longest list of names. In bytes.
const MAX_LIST: usize = 1000;
/// What stands for the names that a list has no room for.
const MORE: &str = "...";
/// The most names that are counted apart.
const MAX_COUNTED: usize = 200;
/// The label of all others.
const OTHERS: &str = "other";

/// Fields that were left out, by their names from the root on, without the places in lists: `messages.id`. Each is there once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ignored(BTreeSet<String>);

impl Ignored {
    /// Whether the field was left out before.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains(name)
    }

    /// Adds a field. False: there is no room for it.
    pub fn add(&mut self, name: String) -> bool {
        self.0.len() < MOST && self.0.insert(name)
    }

    /// The names as a value of a header, which holds nothing but characters of tokens, commas and spaces. `None`: there are none.
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

/// A field's name as it is listed. What is no character of a token (RFC 9110, 5.6.2) becomes an underscore.
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
