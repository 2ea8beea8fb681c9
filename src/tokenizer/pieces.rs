//! The tokens' bytes in one block, and the way back from bytes to an id.

use std::hash::Hasher;

use rustc_hash::FxHasher;

const NONE: u32 = u32::MAX;

/// Every token's bytes, by id.
#[derive(Default)]
pub(super) struct Pieces {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl Pieces {
    pub(super) fn push(&mut self, piece: &[u8]) {
        self.bytes.extend_from_slice(piece);
        self.ends.push(self.bytes.len() as u32);
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn get(&self, id: u32) -> Option<&[u8]> {
        let end = *self.ends.get(id as usize)? as usize;
        let start = if id == 0 { 0 } else { self.ends[id as usize - 1] as usize };
        self.bytes.get(start..end)
    }

    pub(super) fn bytes_held(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * 4
    }
}

/// Bytes → id by open addressing. Holds ids alone: a map of strings would take several times the vocabulary's own size.
pub(super) struct Index {
    slots: Vec<u32>,
    /// The longest piece, in bytes: longer ones need not be looked up.
    longest: usize,
}

impl Index {
    pub(super) fn new(pieces: &Pieces, ids: impl Iterator<Item = u32> + Clone) -> Self {
        let mut index = Self { slots: vec![NONE; (ids.clone().count() * 2).next_power_of_two()], longest: 0 };
        for id in ids {
            let piece = pieces.get(id).unwrap_or_default();
            let slot = index.slot(pieces, piece);
            // the first of equal tokens counts
            if index.slots[slot] == NONE {
                index.slots[slot] = id;
                index.longest = index.longest.max(piece.len());
            }
        }
        index
    }

    pub(super) fn get(&self, pieces: &Pieces, piece: &[u8]) -> Option<u32> {
        if piece.len() > self.longest {
            return None;
        }
        let id = self.slots[self.slot(pieces, piece)];
        (id != NONE).then_some(id)
    }

    fn slot(&self, pieces: &Pieces, piece: &[u8]) -> usize {
        let mut hasher = FxHasher::default();
        hasher.write(piece);
        let mut at = hasher.finish() as usize & (self.slots.len() - 1);
        while self.slots[at] != NONE && pieces.get(self.slots[at]) != Some(piece) {
            at = (at + 1) & (self.slots.len() - 1);
        }
        at
    }

    pub(super) fn bytes_held(&self) -> usize {
        self.slots.capacity() * 4
    }
}
