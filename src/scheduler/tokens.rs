//! The items of a sequence: its prompt, and the tokens generated so far, as far as the host knows them.

use std::ops::Range;

use crate::block_key::BlockItems;
use crate::items::{Items, Segment};

#[derive(Clone, Copy, Debug)]
pub struct Tokens<'a> {
    pub prompt: &'a Items,
    /// Sampled and collected ids, without the stop id.
    pub generated: &'a [u32],
}

impl<'a> Tokens<'a> {
    pub fn len(self) -> usize {
        self.prompt.len() + self.generated.len()
    }

    /// Hands the items in `range` to `each`, in order. Those after the known ones are pending.
    pub fn for_each_segment(self, range: Range<usize>, mut each: impl FnMut(Segment<'a>)) {
        let (prompt, known) = (self.prompt.len(), self.len());
        let position = |index: usize| self.prompt.next_position() + (index - prompt) as u32;
        if range.start < prompt {
            self.prompt.segments(range.clone()).for_each(&mut each);
        }
        let (start, end) = (range.start.max(prompt), range.end.min(known));
        if start < end {
            each(Segment::Tokens { ids: &self.generated[start - prompt..end - prompt], position: position(start) });
        }
        (range.start.max(known)..range.end).for_each(|index| each(Segment::Pending { position: position(index) }));
    }

    /// Copies the contents of block `index` to `out`. The block must be full.
    pub fn copy_block(self, index: usize, block_size: usize, out: &mut BlockItems) {
        out.clear();
        self.for_each_segment(index * block_size..(index + 1) * block_size, |segment| match segment {
            Segment::Tokens { ids, .. } => out.push_tokens(ids),
            Segment::Rows { run, rows } => out.push_rows(run.run.content(), rows),
            Segment::Pending { .. } => unreachable!("the block is full"),
        });
    }
}
