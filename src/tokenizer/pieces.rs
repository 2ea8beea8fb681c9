//! Stores the bytes of all tokens in one allocation, and indexes ids by bytes.

use std::hash::Hasher;

use rustc_hash::FxHasher;

const NONE: u32 = u32::MAX;

/// The bytes of every token, by id.
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

    /// The length of the longest token in bytes, at least 1.
    pub(super) fn longest(&self) -> usize {
        (0..self.len() as u32).filter_map(|id| self.get(id)).map(<[u8]>::len).max().unwrap_or(0).max(1)
    }

    pub(super) fn bytes_held(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * 4
    }
}

/// A hash table from bytes to ids, with open addressing. Stores only ids, because a map of strings would take several times the memory of
/// the vocabulary itself.
pub(super) struct Index {
    buckets: Vec<Bucket>,
    /// The length of the longest piece in bytes. Longer ones need no look-up.
    longest: usize,
}

/// An id and part of its piece's hash. Most look-ups of absent pieces need no access beyond this table.
#[derive(Clone, Copy)]
struct Bucket {
    tag: u32,
    id: u32,
}

impl Index {
    pub(super) fn new(pieces: &Pieces, ids: impl Iterator<Item = u32> + Clone) -> Self {
        let empty = Bucket { tag: 0, id: NONE };
        let mut index = Self { buckets: vec![empty; (ids.clone().count() * 2).next_power_of_two()], longest: 0 };
        for id in ids {
            let piece = pieces.get(id).unwrap_or_default();
            let (at, tag) = index.bucket(pieces, piece);
            // If several tokens are equal, the first one is used.
            if index.buckets[at].id == NONE {
                index.buckets[at] = Bucket { tag, id };
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
        let id = self.buckets[self.bucket(pieces, piece).0].id;
        (id != NONE).then_some(id)
    }

    /// The index of the piece's bucket, or of the free bucket where it would go, and the piece's tag.
    fn bucket(&self, pieces: &Pieces, piece: &[u8]) -> (usize, u32) {
        let mut hasher = FxHasher::default();
        hasher.write(piece);
        let hash = hasher.finish();
        let (mask, tag) = (self.buckets.len() - 1, (hash >> 32) as u32);
        let mut at = hash as usize & mask;
        loop {
            let bucket = self.buckets[at];
            if bucket.id == NONE || bucket.tag == tag && pieces.get(bucket.id) == Some(piece) {
                return (at, tag);
            }
            at = (at + 1) & mask;
        }
    }

    pub(super) fn bytes_held(&self) -> usize {
        self.buckets.capacity() * size_of::<Bucket>()
    }
}
