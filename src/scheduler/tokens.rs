//! The items of a sequence: its prompt, and the tokens generated so far, as far as the host knows them.

use std::ops::Range;

use crate::block_key::BlockItems;
use crate::items::{Items, Segment};

#[derive(Debug)]
pub struct Tokens {
    pub prompt: Items,
    /// Sampled and collected ids, without the stop id.
    pub generated: Vec<u32>,
}

impl Tokens {
    pub fn new(prompt: Items) -> Self {
        Self { prompt, generated: Vec::new() }
    }

    pub fn len(&self) -> usize {
        self.prompt.len() + self.generated.len()
    }

    /// The items in `range`, in order. Those after the known ones are pending.
    pub fn segments(&self, range: Range<usize>) -> impl Iterator<Item = Segment<'_>> {
        let (prompt, known) = (self.prompt.len(), self.len());
        let position = move |index: usize| self.prompt.next_position() + (index - prompt) as u32;
        let (start, end) = (range.start.max(prompt), range.end.min(known));
        let generated = (start < end).then(|| {
            let ids = &self.generated[start - prompt..end - prompt];
            Segment::Tokens { ids, position: position(start) }
        });
        let pending = (range.start.max(known)..range.end).map(move |index| Segment::Pending { position: position(index) });
        let of_prompt = (range.start < prompt).then(|| self.prompt.segments(range));
        of_prompt.into_iter().flatten().chain(generated).chain(pending)
    }

    /// Copies the contents of block `index` to `out`. The block must be full.
    pub fn copy_block(&self, index: usize, block_size: usize, out: &mut BlockItems) {
        out.clear();
        for segment in self.segments(index * block_size..(index + 1) * block_size) {
            match segment {
                Segment::Tokens { ids, .. } => out.push_tokens(ids),
                Segment::Rows { run, rows } => out.push_rows(run.run.content(), rows),
                Segment::Pending { .. } => unreachable!("the block is full"),
            }
        }
    }
}
