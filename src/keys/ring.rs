//! The keys of a server, looked up by their secrets.

use std::collections::HashMap;
use std::sync::Arc;

use crate::digest::Digest;
use crate::entry::KeyEntry;
use crate::file::check;
use crate::key::{Key, Limits};

#[derive(Debug, Default)]
pub struct Ring {
    keys: HashMap<[u8; 8], Vec<Arc<Key>>>,
    len: usize,
}

impl Ring {
    /// `defaults`: the limits for those that an entry does not set. `before`: the ring whose keys' usage is kept.
    ///
    /// # Errors
    /// Two entries have the same name or the same hash.
    pub fn new(entries: Vec<KeyEntry>, defaults: Limits, before: &Self) -> Result<Self, String> {
        check(&entries)?;
        let mut ring = Self::default();
        for entry in entries {
            let key = Key::new(entry, defaults);
            let key = match before.find_digest(key.digest) {
                Some(before) => key.continues(before),
                None => key,
            };
            ring.keys.entry(key.digest.index()).or_default().push(Arc::new(key));
            ring.len += 1;
        }
        Ok(ring)
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The key with this secret.
    pub fn find(&self, secret: &[u8]) -> Option<&Arc<Key>> {
        self.find_digest(Digest::of(secret))
    }

    /// The key with this name.
    pub fn named(&self, name: &str) -> Option<&Arc<Key>> {
        self.keys.values().flatten().find(|key| key.name == name)
    }

    fn find_digest(&self, digest: Digest) -> Option<&Arc<Key>> {
        self.keys.get(&digest.index())?.iter().find(|key| key.digest == digest)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn entry(name: &str) -> KeyEntry {
        KeyEntry::new(name, Digest::of(name.as_bytes()))
    }

    #[test]
    fn a_key_is_found_by_its_secret_and_by_nothing_else() {
        let ring = Ring::new(vec![entry("a"), entry("b")], Limits::default(), &Ring::default()).unwrap();
        assert_eq!(ring.find(b"a").unwrap().name, "a");
        for wrong in [&b""[..], b"A", b"a ", Digest::of(b"a").to_string().as_bytes()] {
            assert!(ring.find(wrong).is_none(), "{wrong:?}");
        }
        assert!(Ring::new(vec![entry("a"), entry("a")], Limits::default(), &ring).is_err());
    }

    #[test]
    fn a_key_that_is_read_again_keeps_what_it_has_used() {
        let defaults = Limits { requests_per_minute: 1, max_concurrent: 1, ..Limits::default() };
        let (now, before) = (Instant::now(), Ring::new(vec![entry("a"), entry("b")], defaults, &Ring::default()).unwrap());
        let running = before.find(b"a").unwrap().begin(now).unwrap();
        let more = Limits { max_concurrent: 2, ..defaults };
        let after = Ring::new(vec![KeyEntry { priority: Some(50), ..entry("a") }, entry("c")], more, &before).unwrap();
        let key = after.find(b"a").unwrap();
        assert_eq!((key.priority, key.rates(now).0.unwrap().remaining), (50, 0));
        assert!(key.begin(now).is_err() && after.find(b"c").unwrap().begin(now).is_ok() && after.find(b"b").is_none());
        let free = Ring::new(vec![KeyEntry { requests_per_minute: Some(0), ..entry("a") }], defaults, &after).unwrap();
        assert!(free.find(b"a").unwrap().begin(now).is_err(), "the first request still runs");
        drop(running);
        assert!(free.find(b"a").unwrap().begin(now).is_ok());
    }
}
