//! Applies SentencePiece's compiled normalisation rules: a double-array trie (in darts-clone's format) that maps texts to offsets of their
//! replacements.

/// The largest table, in bytes. The largest known one has 300 kB.
const MAX_BYTES: usize = 4 << 20;
/// The longest rule, in bytes of the text that it matches. Known rules match a few characters.
const MAX_MATCH: usize = 64;
/// The largest ratio of a replacement's length to the length of its match. U+FDFA, the longest of NFKC, becomes 11 times as long.
const MAX_GROWTH: usize = 16;
/// The most steps of the walk over all rules. Known tables take 15 million.
const MAX_STEPS: usize = 100_000_000;

pub(super) struct CharsMap {
    units: Vec<u32>,
    /// The replacements, each terminated by a NUL.
    texts: Vec<u8>,
}

impl CharsMap {
    /// Parses the length of the trie in bytes (u32, little-endian), the trie, and the replacements. None if there are no rules.
    pub(super) fn new(blob: &[u8]) -> Option<Self> {
        let (head, rest) = blob.split_at_checked(4)?;
        let length = u32::from_le_bytes(head.try_into().ok()?) as usize;
        let (trie, texts) = rest.split_at_checked(length)?;
        let units = trie.chunks_exact(4).map(|unit| u32::from_le_bytes([unit[0], unit[1], unit[2], unit[3]])).collect();
        Some(Self { units, texts: texts.to_vec() })
    }

    /// Whether `blob` is empty or well-formed, with rules that take little time and memory to apply.
    pub(super) fn is_whole(blob: &[u8]) -> bool {
        blob.is_empty() || blob.len() <= MAX_BYTES && Self::new(blob).is_some_and(|map| map.units.len() > 1 && map.rules_are_bounded())
    }

    /// Walks over all rules in order of the length of their matches, and checks their bounds. Nodes may have several parents, and a
    /// malformed table may contain a cycle.
    fn rules_are_bounded(&self) -> bool {
        let (mut nodes, mut steps) = (vec![offset(self.units[0])], 0);
        for length in 1..=MAX_MATCH + 1 {
            let mut deeper = Vec::new();
            for node in nodes {
                steps += 256;
                for byte in 0..=u8::MAX {
                    let Some((next, leaf)) = self.step(node, byte) else { continue };
                    let is_short = |text: &str| text.len() <= MAX_GROWTH * length;
                    if leaf.is_some_and(|leaf| !self.replacement(leaf).is_some_and(is_short)) {
                        return false;
                    }
                    deeper.push(next);
                }
                if steps > MAX_STEPS {
                    return false;
                }
            }
            deeper.sort_unstable();
            deeper.dedup();
            if deeper.is_empty() {
                return true;
            }
            nodes = deeper;
        }
        false
    }

    pub(super) fn apply(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut at = 0;
        while let Some(c) = text[at..].chars().next() {
            match self.longest(&text[at..]) {
                Some((length, replacement)) if text.is_char_boundary(at + length) => {
                    out.push_str(replacement);
                    at += length;
                }
                _ => {
                    out.push(c);
                    at += c.len_utf8();
                }
            }
        }
        out
    }

    /// The longest rule that matches at the start of the text: the length of the match in bytes, and the replacement.
    fn longest(&self, text: &str) -> Option<(usize, &str)> {
        let mut node = offset(*self.units.first()?);
        let mut found = None;
        for (length, byte) in (1..=MAX_MATCH).zip(text.bytes()) {
            let Some((next, leaf)) = self.step(node, byte) else { break };
            found = leaf.map(|leaf| (length, leaf)).or(found);
            node = next;
        }
        let (length, leaf) = found?;
        Some((length, self.replacement(leaf)?))
    }

    /// The node that `byte` leads to, and the offset of the replacement if a rule ends there.
    fn step(&self, node: u32, byte: u8) -> Option<(u32, Option<u32>)> {
        let at = node ^ u32::from(byte);
        let unit = *self.units.get(at as usize)?;
        if unit & (1 << 31 | 0xff) != u32::from(byte) {
            return None;
        }
        let next = at ^ offset(unit);
        // A missing leaf becomes an offset without a replacement.
        let leaf = || self.units.get(next as usize).map_or(u32::MAX, |leaf| leaf & 0x7fff_ffff);
        Some((next, (unit >> 8 & 1 == 1).then(leaf)))
    }

    fn replacement(&self, start: u32) -> Option<&str> {
        let text = self.texts.get(start as usize..)?;
        // No replacement is longer, see `rules_are_bounded`.
        let end = text.iter().take(MAX_GROWTH * MAX_MATCH + 1).position(|byte| *byte == 0)?;
        std::str::from_utf8(&text[..end]).ok()
    }

    pub(super) fn bytes_held(&self) -> usize {
        self.units.capacity() * 4 + self.texts.capacity()
    }
}

fn offset(unit: u32) -> u32 {
    (unit >> 10) << ((unit & 1 << 9) >> 6)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table with one rule per pair of a one-byte text and its replacement. Node 0 leads to the units 256 + byte, and these lead to their
    /// leaves.
    fn table(rules: &[(u8, &str)]) -> Vec<u8> {
        let mut units = vec![1u32 << 31; 1024];
        units[0] = 256 << 10;
        let mut texts = Vec::new();
        for (i, (byte, text)) in rules.iter().enumerate() {
            let (at, leaf) = (256 + usize::from(*byte), 512 + i);
            units[at] = ((at ^ leaf) as u32) << 10 | 1 << 8 | u32::from(*byte);
            units[leaf] = 1 << 31 | texts.len() as u32;
            texts.extend_from_slice(text.as_bytes());
            texts.push(0);
        }
        blob(&units, &texts)
    }

    fn blob(units: &[u32], texts: &[u8]) -> Vec<u8> {
        let head = (units.len() as u32 * 4).to_le_bytes();
        [head.as_slice(), &units.iter().flat_map(|unit| unit.to_le_bytes()).collect::<Vec<u8>>(), texts].concat()
    }

    #[test]
    fn a_rule_replaces_a_text() {
        let table = table(&[(b'a', "bb"), (b'c', "")]);
        assert!(CharsMap::is_whole(&table));
        assert_eq!(CharsMap::new(&table).unwrap().apply("abcd"), "bbbd");
    }

    #[test]
    fn a_replacement_that_is_much_longer_than_its_match_is_refused() {
        assert!(CharsMap::is_whole(&table(&[(b'a', &"x".repeat(16))])));
        assert!(!CharsMap::is_whole(&table(&[(b'a', &"x".repeat(17))])));
        assert!(!CharsMap::is_whole(&table(&[(b'a', &"x".repeat(1 << 20))])));
    }

    #[test]
    fn rules_without_an_end_are_refused() {
        // The unit of `a` leads back to its own parent.
        let mut units = vec![1u32 << 31; 1024];
        units[0] = 256 << 10;
        let at = 256 + usize::from(b'a');
        units[at] = ((at ^ 256) as u32) << 10 | u32::from(b'a');
        assert!(!CharsMap::is_whole(&blob(&units, &[0])));
        // Every byte leads to every node.
        let all: Vec<u32> = (0..1u32 << 19).map(|at| (at & 0xff) | (at.wrapping_mul(2_654_435_761) >> 13 & !0xff) << 10).collect();
        let start = std::time::Instant::now();
        assert!(!CharsMap::is_whole(&blob(&all, &[0])));
        assert!(start.elapsed().as_secs() < 5, "{:?}", start.elapsed());
        assert!(!CharsMap::is_whole(&vec![0; MAX_BYTES + 1]));
    }

    #[test]
    fn a_rule_without_a_replacement_is_refused() {
        let mut table = table(&[(b'a', "b")]);
        table.pop();
        assert!(!CharsMap::is_whole(&table), "not terminated");
    }
}
