//! SentencePiece's compiled normalisation rules: a double-array trie (in darts-clone's format) that maps texts to offsets of their
//! replacements.

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

    /// Whether `blob` is empty or well-formed.
    pub(super) fn is_whole(blob: &[u8]) -> bool {
        blob.is_empty() || Self::new(blob).is_some_and(|map| map.units.len() > 1)
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
        let offset = |unit: u32| (unit >> 10) << ((unit & 1 << 9) >> 6);
        let mut node = offset(*self.units.first()?);
        let mut found = None;
        for (index, byte) in text.bytes().enumerate() {
            node ^= u32::from(byte);
            let Some(&unit) = self.units.get(node as usize) else { break };
            if unit & (1 << 31 | 0xff) != u32::from(byte) {
                break;
            }
            node ^= offset(unit);
            if unit >> 8 & 1 == 1 {
                found = self.units.get(node as usize).map(|leaf| (index + 1, leaf & 0x7fff_ffff));
            }
        }
        let (length, start) = found?;
        let text = self.texts.get(start as usize..)?;
        let end = text.iter().position(|byte| *byte == 0)?;
        Some((length, std::str::from_utf8(&text[..end]).ok()?))
    }

    pub(super) fn bytes_held(&self) -> usize {
        self.units.capacity() * 4 + self.texts.capacity()
    }
}
