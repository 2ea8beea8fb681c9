//! [`CompiledCache`]: the most recently used compiled grammars.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::matcher::Compiled;

/// The most compiled grammars in the cache.
pub const MAX_KEPT: usize = 64;
/// The largest total size of the compiled grammars in the cache [bytes].
pub const MAX_BYTES: usize = 256 << 20;

/// Compiled grammars by the text of their source. The most recently used one is last.
#[derive(Default)]
pub struct CompiledCache {
    all: VecDeque<CachedGrammar>,
    bytes: usize,
}

struct CachedGrammar {
    key: Arc<str>,
    compiled: Arc<Compiled>,
    bytes: usize,
}

impl CompiledCache {
    pub fn find(&mut self, key: &str) -> Option<Arc<Compiled>> {
        let at = self.all.iter().position(|one| *one.key == *key)?;
        let found = self.all.remove(at)?;
        let compiled = found.compiled.clone();
        self.all.push_back(found);
        Some(compiled)
    }

    /// Adds a grammar of `bytes` bytes, and drops the least recently used ones.
    pub fn add(&mut self, key: Arc<str>, compiled: Arc<Compiled>, bytes: usize) {
        // Two requests may have compiled the same grammar.
        if self.find(&key).is_some() {
            return;
        }
        let bytes = bytes + key.len();
        self.bytes += bytes;
        self.all.push_back(CachedGrammar { key, compiled, bytes });
        while self.all.len() > MAX_KEPT || self.bytes > MAX_BYTES {
            let Some(oldest) = self.all.pop_front() else { return };
            self.bytes -= oldest.bytes;
        }
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.all.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grammars_are_kept_up_to_a_number_and_a_sum_of_bytes() {
        let (compiler, _) = crate::testing::compiler(fixtures::vocabulary("smollm2").path());
        let one = compiler.compiled("start: \"a\"");
        let mut kept = CompiledCache::default();
        for i in 0..100 {
            kept.add(i.to_string().into(), one.clone(), 10 << 20);
            assert!(kept.len() <= 25 && kept.find(&i.to_string()).is_some(), "{i}");
        }
        assert_eq!(kept.len(), 25);
        kept.find("75").unwrap();
        kept.add("new".into(), one.clone(), 1 << 20);
        assert!(kept.find("75").is_some() && kept.find("76").is_some(), "there is room for a small one");
        kept.add("large".into(), one.clone(), MAX_BYTES);
        assert_eq!(kept.len(), 0, "what does not fit alone is not kept");
        for i in 0..100 {
            kept.add(i.to_string().into(), one.clone(), 0);
            kept.add(i.to_string().into(), one.clone(), MAX_BYTES / 2);
        }
        assert_eq!(kept.len(), MAX_KEPT, "one grammar counts once");
    }
}
