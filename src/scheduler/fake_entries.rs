//! The entries of the test engine's cache: what later rows see of a row.

use engine::{Adapter, Batch, Direction, EngineError};

use super::{EMBEDDED, EMPTY, HIDDEN, mix};
use crate::adapters::{AdapterRequest, HostAdapter};
use crate::items::{Items, Layout, Segment};

/// The cache entry for an embedding.
pub fn embedded(embedding: &[f32]) -> u32 {
    EMBEDDED | embedding.iter().fold(0, |hash, x| mix(hash, x.to_bits())) as u32 >> 3
}

/// The value that rows see of a token or an embedding. A position counts if it is not the item's index.
pub fn entry(token: u32, index: usize, position: [u32; 3]) -> u32 {
    if position == [index as u32; 3] {
        return token;
    }
    EMBEDDED | position.iter().fold(token.into(), |hash, &position| mix(hash, position)) as u32 >> 3
}

/// The values that rows see of a prompt.
pub fn entries(prompt: &Items) -> Vec<u32> {
    let mut seen = Vec::new();
    for segment in prompt.segments(0..prompt.len()) {
        match segment {
            Segment::Tokens { ids, position } => {
                ids.iter().zip(position..).for_each(|(&id, position)| seen.push(entry(id, seen.len(), [position; 3])));
            }
            Segment::Rows { run, rows } => seen.extend(rows.map(|row| {
                let (first, at) = (run.position, row as u32);
                let position = match run.run.layout {
                    Layout::Line => [first + at; 3],
                    Layout::Grid { width, .. } => [first, first + at / width, first + at % width],
                };
                entry(embedded(&run.run.embeddings[row * HIDDEN..][..HIDDEN]), run.start + row, position)
            })),
            Segment::Pending { .. } => unreachable!("a prompt is known"),
        }
    }
    seen
}

/// The value that rows see of an entry that adapters change: their marks and scales, in order.
fn marked(entry: u32, marks: impl Iterator<Item = (u32, f32)>) -> u32 {
    let mut marks = marks.peekable();
    match marks.peek() {
        Some(_) if entry != EMPTY => {
            let hash = marks.fold(entry.into(), |hash, (mark, scale)| mix(mix(hash, mark), scale.to_bits()));
            EMBEDDED | hash as u32 >> 3
        }
        _ => entry,
    }
}

/// The value that rows see of the entry of item `at` of a sequence with these adapters.
pub fn adapted(entry: u32, at: usize, asked: &[AdapterRequest]) -> u32 {
    let active = asked.iter().filter(|of| of.first as usize <= at && of.scale != 0.0);
    marked(entry, active.map(|of| (mark_of(&of.adapter.adapter), of.scale)))
}

/// An adapter of the test engine. One with the mark 0 cannot be loaded.
pub fn fake_adapter(mark: u32) -> HostAdapter {
    let directions = vec![Direction { layer: mark as usize, vector: Vec::new() }];
    HostAdapter::new(&format!("adapter {mark}"), Adapter { directions, ..Adapter::default() })
}

fn mark_of(adapter: &Adapter) -> u32 {
    adapter.directions[0].layer as u32
}

/// The adapters that the test engine has loaded, by their marks.
#[derive(Default)]
pub struct FakeAdapters {
    marks: [Option<u32>; Self::PLACES],
}

impl FakeAdapters {
    pub const PLACES: usize = 3;

    pub fn load(&mut self, place: u32, adapter: &Adapter) -> Result<(), EngineError> {
        let mark = mark_of(adapter);
        self.marks[place as usize] = (mark > 0).then_some(mark);
        if mark > 0 { Ok(()) } else { Err(EngineError::OutOfMemory("a test took the memory away".into())) }
    }

    pub fn unload(&mut self, place: u32) {
        self.marks[place as usize] = None;
    }

    /// The value that rows see of the entry of item `at` of sequence `i`.
    pub fn change(&self, entry: u32, batch: &Batch, (i, at): (usize, usize)) -> u32 {
        let Some(used) = batch.adapters.get(i) else { return entry };
        assert_eq!(batch.adapters.len(), batch.num_seqs());
        let active = used.iter().filter(|of| of.first as usize <= at && of.scale != 0.0);
        marked(entry, active.map(|of| (self.marks[of.place as usize].expect("an adapter is loaded before its place is used"), of.scale)))
    }
}
