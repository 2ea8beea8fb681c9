//! Matches tokens in a text before it is encoded: user-defined tokens always, and control tokens on request.

use crate::pieces::{Index, Pieces};
use crate::vocab::TokenType;

pub(super) struct Special {
    index: Index,
    /// For each first byte, the lengths in bytes of the special tokens that start with it, the longest first.
    lengths: Vec<Vec<u32>>,
    /// One bit per pair of bytes that a special token starts with. Rules out most positions in a text.
    starts: Vec<u64>,
    /// All ids, sorted by their texts.
    sorted: Vec<u32>,
    /// The ids of tokens that include the white space after them, ascending.
    greedy: Vec<u32>,
}

/// A special token found in a text, with its range of bytes.
pub(super) struct Found {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) id: u32,
}

impl Special {
    /// Indexes the special tokens. `greedy` holds the ids of those that include the white space after them, ascending.
    pub(super) fn new(pieces: &Pieces, types: &[TokenType], greedy: &[u32]) -> Self {
        let ids = (0u32..).zip(types).filter(|(_, t)| matches!(t, TokenType::Control | TokenType::UserDefined)).map(|(id, _)| id);
        let ids = ids.filter(|&id| pieces.get(id).is_some_and(|piece| !piece.is_empty()));
        let mut lengths = vec![Vec::new(); 256];
        let mut starts = vec![0u64; (1 << 16) / 64];
        for piece in ids.clone().filter_map(|id| pieces.get(id)) {
            lengths[piece[0] as usize].push(piece.len() as u32);
            let second = piece.get(1).map_or(0..=255, |&byte| byte..=byte);
            for pair in second.map(|byte| usize::from(piece[0]) << 8 | usize::from(byte)) {
                starts[pair / 64] |= 1 << (pair % 64);
            }
        }
        for of_byte in &mut lengths {
            of_byte.sort_unstable_by(|a, b| b.cmp(a));
            of_byte.dedup();
        }
        let mut sorted: Vec<u32> = ids.clone().collect();
        sorted.sort_unstable_by_key(|&id| pieces.get(id));
        Self { index: Index::new(pieces, ids), lengths, starts, sorted, greedy: greedy.to_vec() }
    }

    /// The first special token at or after `from` whose id is `wanted`. If several start at one position, the longest.
    pub(super) fn find(&self, pieces: &Pieces, text: &str, from: usize, wanted: impl Fn(u32) -> bool) -> Option<Found> {
        let bytes = text.as_bytes();
        for start in from..bytes.len() {
            let pair = usize::from(bytes[start]) << 8 | usize::from(bytes.get(start + 1).copied().unwrap_or(0));
            if start + 1 < bytes.len() && self.starts[pair / 64] >> (pair % 64) & 1 == 0 {
                continue;
            }
            for &len in &self.lengths[bytes[start] as usize] {
                let Some(candidate) = bytes.get(start..start + len as usize) else { continue };
                if let Some(id) = self.index.get(pieces, candidate).filter(|&id| wanted(id)) {
                    let end = start + len as usize;
                    let spaces =
                        if self.greedy.binary_search(&id).is_ok() { text[end..].len() - text[end..].trim_start().len() } else { 0 };
                    return Some(Found { start, end: end + spaces, id });
                }
            }
        }
        None
    }
}

impl Special {
    /// Positions near the end of `text` where the text of a wanted token begins but is cut off by the end, with or without the trailing
    /// white space.
    pub(super) fn open_ends(&self, pieces: &Pieces, text: &str, wanted: impl Fn(u32) -> bool) -> Vec<usize> {
        let mut starts = Vec::new();
        for end in [text.len(), text.trim_end().len()] {
            let tail = text.floor_char_boundary(end.saturating_sub(self.longest()));
            for (start, _) in text[tail..end].char_indices().map(|(at, c)| (tail + at, c)) {
                let open = &text.as_bytes()[start..end];
                if self.begins(pieces, open, &wanted) {
                    starts.push(start);
                }
            }
        }
        starts
    }

    fn longest(&self) -> usize {
        self.lengths.iter().filter_map(|lengths| lengths.first()).max().map_or(0, |&len| len as usize)
    }

    fn begins(&self, pieces: &Pieces, open: &[u8], wanted: &impl Fn(u32) -> bool) -> bool {
        let at = self.sorted.partition_point(|&id| pieces.get(id).unwrap_or_default() < open);
        let with_prefix = self.sorted[at..].iter().take_while(|&&id| pieces.get(id).is_some_and(|piece| piece.starts_with(open)));
        with_prefix.copied().any(wanted)
    }
}
