//! Tokens that are matched in the text itself: control tokens (only where asked for) and user-defined ones (always).

use super::pieces::{Index, Pieces};
use super::vocab::TokenType;

pub(super) struct Special {
    index: Index,
    /// The lengths in bytes of the special tokens that start with a byte, longest first.
    lengths: Vec<Vec<u32>>,
    /// By text.
    sorted: Vec<u32>,
}

/// A special token in the text.
pub(super) struct Found {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) id: u32,
}

impl Special {
    pub(super) fn new(pieces: &Pieces, types: &[TokenType]) -> Self {
        let ids = (0u32..).zip(types).filter(|(_, t)| matches!(t, TokenType::Control | TokenType::UserDefined)).map(|(id, _)| id);
        let ids = ids.filter(|&id| pieces.get(id).is_some_and(|piece| !piece.is_empty()));
        let mut lengths = vec![Vec::new(); 256];
        for piece in ids.clone().filter_map(|id| pieces.get(id)) {
            lengths[piece[0] as usize].push(piece.len() as u32);
        }
        for of_byte in &mut lengths {
            of_byte.sort_unstable_by(|a, b| b.cmp(a));
            of_byte.dedup();
        }
        let mut sorted: Vec<u32> = ids.clone().collect();
        sorted.sort_unstable_by_key(|&id| pieces.get(id));
        Self { index: Index::new(pieces, ids), lengths, sorted }
    }

    /// The first special token from `from` on whose id is `wanted`; the longest of those that start at one place.
    pub(super) fn find(&self, pieces: &Pieces, text: &str, from: usize, wanted: impl Fn(u32) -> bool) -> Option<Found> {
        let bytes = text.as_bytes();
        for start in from..bytes.len() {
            for &len in &self.lengths[bytes[start] as usize] {
                let Some(candidate) = bytes.get(start..start + len as usize) else { continue };
                if let Some(id) = self.index.get(pieces, candidate).filter(|&id| wanted(id)) {
                    return Some(Found { start, end: start + len as usize, id });
                }
            }
        }
        None
    }
}

impl Special {
    /// Where a wanted token's text begins that the end of `text` (with or without the white space there) cuts off.
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
