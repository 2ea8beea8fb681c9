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

    /// The most bytes that one token stands for; at least 1.
    pub(super) fn longest(&self) -> usize {
        (0..self.len() as u32).filter_map(|id| self.get(id)).map(<[u8]>::len).max().unwrap_or(0).max(1)
    }

    pub(super) fn bytes_held(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * 4
    }
}

/// Bytes → id by open addressing. Holds ids alone: a map of strings would take several times the vocabulary's own size.
pub(super) struct Index {
    slots: Vec<Slot>,
    /// The longest piece, in bytes: longer ones need not be looked up.
    longest: usize,
}

/// Part of the hash stands beside the id, so that most look-ups of what is not there touch this table alone.
#[derive(Clone, Copy)]
struct Slot {
    tag: u32,
    id: u32,
}

impl Index {
    pub(super) fn new(pieces: &Pieces, ids: impl Iterator<Item = u32> + Clone) -> Self {
        let empty = Slot { tag: 0, id: NONE };
        let mut index = Self { slots: vec![empty; (ids.clone().count() * 2).next_power_of_two()], longest: 0 };
        for id in ids {
            let piece = pieces.get(id).unwrap_or_default();
            let (at, tag) = index.place(pieces, piece);
            // the first of equal tokens counts
            if index.slots[at].id == NONE {
                index.slots[at] = Slot { tag, id };
                index.longest = index.longest.max(piece.len());
            }
        }
        index
    }

    pub(super) fn longest(&self) -> usize {
        self.longest
    }

    pub(super) fn get(&self, pieces: &Pieces, piece: &[u8]) -> Option<u32> {
        if piece.len() > self.longest {
            return None;
        }
        let id = self.slots[self.place(pieces, piece).0].id;
        (id != NONE).then_some(id)
    }

    /// The piece's slot, or the free one where it would go, and its tag.
    fn place(&self, pieces: &Pieces, piece: &[u8]) -> (usize, u32) {
        let mut hasher = FxHasher::default();
        hasher.write(piece);
        let hash = hasher.finish();
        let (mask, tag) = (self.slots.len() - 1, (hash >> 32) as u32);
        let mut at = hash as usize & mask;
        loop {
            let slot = self.slots[at];
            if slot.id == NONE || slot.tag == tag && pieces.get(slot.id) == Some(piece) {
                return (at, tag);
            }
            at = (at + 1) & mask;
        }
    }

    pub(super) fn bytes_held(&self) -> usize {
        self.slots.capacity() * size_of::<Slot>()
    }
}
