//! Fills the engine's flat [`Batch`]. Its buffers are reused by every step.

use std::ops::Range;

use crate::items::{Layout, PlacedRun, Segment};
use engine::{Batch, Input, VectorRequest};

/// One sequence's consecutive rows in a step.
#[derive(Clone, Debug)]
pub struct Chunk {
    pub sequence_slot: u32,
    /// Present if the model has recurrent state.
    pub state_slot: Option<u32>,
    /// The rows' tokens, by their index in the sequence.
    pub range: Range<usize>,
    /// Whether the last row is sampled.
    pub sampled: bool,
    /// Number of log-probabilities that the sequence asks for.
    pub num_logprobs: Option<u8>,
    pub vector: Option<VectorRequest>,
    /// Index of the first token of the second segment.
    pub second_segment: Option<usize>,
}

/// Empties the batch but keeps its buffers.
pub fn clear(batch: &mut Batch) {
    batch.inputs.clear();
    batch.positions.clear();
    batch.grid_positions.clear();
    batch.token_types.clear();
    batch.cu_seqlens_q.clear();
    batch.cu_seqlens_q.push(0);
    batch.context_lens.clear();
    batch.slot_mapping.clear();
    batch.block_tables.clear();
    batch.max_blocks = 0;
    batch.sequence_slots.clear();
    batch.state_slots.clear();
    batch.sampled_rows.clear();
    batch.num_logprobs.clear();
    batch.copies.clear();
    batch.state_copies.clear();
    batch.embeddings.clear();
    batch.scored.clear();
    batch.vectors.clear();
    batch.init.clear();
    batch.sample_later = false;
}

/// Adds a sequence's rows, one per item. [`set_tables`] adds the slot mapping and the block tables later.
pub fn push<'a>(batch: &mut Batch, chunk: Chunk, items: impl Iterator<Item = Segment<'a>>) {
    let first = batch.inputs.len();
    items.for_each(|segment| push_segment(batch, segment, chunk.sequence_slot));
    debug_assert_eq!(batch.inputs.len() - first, chunk.range.len());
    if chunk.second_segment.is_some() || !batch.token_types.is_empty() {
        // all rows before this sequence belong to the first segment
        batch.token_types.resize(first, 0);
        let second = chunk.second_segment.unwrap_or(usize::MAX);
        batch.token_types.extend(chunk.range.clone().map(|index| u32::from(index >= second)));
    }
    batch.cu_seqlens_q.push(batch.inputs.len() as u32);
    batch.context_lens.push(chunk.range.end as u32);
    batch.sequence_slots.push(chunk.sequence_slot);
    if let Some(slot) = chunk.state_slot {
        batch.state_slots.push(slot);
    }
    if chunk.sampled {
        batch.sampled_rows.push(batch.inputs.len() as u32 - 1);
        batch.num_logprobs.push(chunk.num_logprobs);
    }
    batch.vectors.push(chunk.vector);
}

fn push_segment(batch: &mut Batch, segment: Segment, sequence_slot: u32) {
    match segment {
        Segment::Tokens { ids, position } => {
            batch.inputs.extend(ids.iter().copied().map(Input::Token));
            push_line(batch, position, ids.len());
        }
        Segment::Pending { position } => {
            batch.inputs.push(Input::Sampled(sequence_slot));
            push_line(batch, position, 1);
        }
        Segment::Rows { run: PlacedRun { run, position, .. }, rows } => {
            let width = run.width();
            let first = (batch.embeddings.len() / width) as u32;
            batch.embeddings.extend_from_slice(&run.embeddings[rows.start * width..rows.end * width]);
            batch.inputs.extend((first..first + rows.len() as u32).map(Input::Embedding));
            match run.layout {
                Layout::Line => push_line(batch, position + rows.start as u32, rows.len()),
                Layout::Grid { width, .. } => {
                    // all rows before these have three equal positions
                    let equal = batch.positions[batch.grid_positions.len()..].iter().map(|&position| [position; 2]);
                    batch.grid_positions.extend(equal);
                    batch.positions.resize(batch.positions.len() + rows.len(), *position);
                    let place = |row: usize| [position + row as u32 / width, position + row as u32 % width];
                    batch.grid_positions.extend(rows.map(place));
                }
            }
        }
    }
}

/// Adds positions that follow each other.
fn push_line(batch: &mut Batch, position: u32, num_rows: usize) {
    let positions = position..position + num_rows as u32;
    if !batch.grid_positions.is_empty() {
        batch.grid_positions.extend(positions.clone().map(|position| [position; 2]));
    }
    batch.positions.extend(positions);
}

/// Writes each group's block tables, in the order of [`push`], and the slot mapping of all rows. Each table is cut to the longest context
/// of this step, or padded with 0.
pub fn set_tables<'a, T: Iterator<Item = &'a [u32]>>(batch: &mut Batch, groups: impl Iterator<Item = T>, block_size: usize) {
    batch.max_blocks = batch.context_lens.iter().map(|&len| (len as usize).div_ceil(block_size)).max().unwrap_or(0);
    for tables in groups {
        for (i, table) in tables.enumerate() {
            let place = |index: u32| table[index as usize / block_size] * block_size as u32 + index % block_size as u32;
            batch.slot_mapping.extend(batch.indices(i).map(place));
            let used = table.len().min(batch.max_blocks);
            batch.block_tables.extend_from_slice(&table[..used]);
            batch.block_tables.extend(std::iter::repeat_n(0, batch.max_blocks - used));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::items::Items;
    use crate::testing::run;
    use crate::tokens::Tokens;
    use engine::Pooling;

    #[test]
    fn rows_are_laid_out_flat() {
        let mut batch = Batch::default();
        let (long, other, short) = ([5, 3, 9], [0, 1, 2], [7]);
        let vector = Some(VectorRequest { pooling: Pooling::Last, complete: true });
        let chunk = Chunk {
            sequence_slot: 4,
            state_slot: None,
            range: 3..5,
            sampled: true,
            num_logprobs: Some(3),
            vector: None,
            second_segment: None,
        };
        for _ in 0..2 {
            clear(&mut batch);
            push(&mut batch, chunk.clone(), [Segment::Tokens { ids: &[11, 12], position: 3 }].into_iter());
            let chunk = Chunk { sequence_slot: 1, range: 1..2, sampled: false, num_logprobs: None, vector, ..chunk.clone() };
            push(&mut batch, chunk, [Segment::Pending { position: 1 }].into_iter());
            let groups = [[&long[..], &short], [&other[..], &short]];
            set_tables(&mut batch, groups.into_iter().map(<[_; 2]>::into_iter), 2);
        }
        assert_eq!(batch.inputs, [Input::Token(11), Input::Token(12), Input::Sampled(1)]);
        assert_eq!(batch.positions, [3, 4, 1]);
        assert_eq!(batch.cu_seqlens_q, [0, 2, 3]);
        assert_eq!(batch.context_lens, [5, 2]);
        assert_eq!(batch.slot_mapping, [7, 18, 15, 3, 4, 15]);
        assert_eq!((batch.max_blocks, &batch.block_tables[..]), (3, &[5, 3, 9, 7, 0, 0, 0, 1, 2, 7, 0, 0][..]));
        assert_eq!((batch.sequence_slots, batch.state_slots), (vec![4, 1], vec![]));
        assert_eq!((batch.sampled_rows, batch.num_logprobs), (vec![1], vec![Some(3)]));
        assert_eq!(batch.vectors, [None, vector]);
    }

    #[test]
    fn rows_of_runs_come_with_their_embeddings_and_positions() {
        let chunk = |range| Chunk {
            sequence_slot: 0,
            state_slot: None,
            range,
            sampled: false,
            num_logprobs: None,
            vector: None,
            second_segment: None,
        };
        let tokens = Tokens::new(Items::with_runs(
            vec![4, 5],
            [(run(1, 3, Layout::Line, false), vec![6]), (run(2, 6, Layout::Grid { height: 2, width: 3 }, false), vec![7])],
        ));
        let mut batch = Batch::default();
        clear(&mut batch);
        push(&mut batch, chunk(1..4), tokens.segments(1..4));
        assert_eq!(batch.inputs, [Input::Token(5), Input::Embedding(0), Input::Embedding(1)]);
        assert_eq!((&batch.positions[..], batch.grid_positions.len()), (&[1, 2, 3][..], 0));
        push(&mut batch, chunk(8..14), tokens.segments(8..14));
        assert_eq!(
            batch.inputs[3..],
            [2, 3, 4, 5].map(Input::Embedding).into_iter().chain([Input::Token(7), Input::Sampled(0)]).collect::<Vec<_>>()
        );
        assert_eq!(batch.positions, [1, 2, 3, 6, 6, 6, 6, 9, 10]);
        assert_eq!(batch.grid_positions, [[1, 1], [2, 2], [3, 3], [6, 8], [7, 6], [7, 7], [7, 8], [9, 9], [10, 10]]);
        let row = |source: f32, row: f32| [source + row / 1000.0, 0.0];
        let rows = [row(1.0, 0.0), row(1.0, 1.0), row(2.0, 2.0), row(2.0, 3.0), row(2.0, 4.0), row(2.0, 5.0)];
        assert_eq!((batch.embeddings, batch.context_lens), (rows.concat(), vec![4, 14]));
    }

    #[test]
    fn rows_of_a_second_segment_are_marked() {
        let chunk = Chunk {
            sequence_slot: 0,
            state_slot: None,
            range: 1..3,
            sampled: false,
            num_logprobs: None,
            vector: None,
            second_segment: None,
        };
        let mut batch = Batch::default();
        for (second_segment, expected) in [(None, vec![]), (Some(2), vec![0, 0, 0, 1]), (None, vec![0, 0, 0, 1, 0, 0])] {
            let rows = Segment::Tokens { ids: &[1; 2], position: 1 };
            push(&mut batch, Chunk { second_segment, ..chunk.clone() }, std::iter::once(rows));
            assert_eq!(batch.token_types, expected);
        }
    }

    #[test]
    fn each_sequence_of_a_recurrent_model_names_its_state_slot() {
        let mut batch = Batch::default();
        clear(&mut batch);
        for state_slot in [3, 1] {
            let (sequence_slot, state_slot) = (state_slot, Some(state_slot));
            let chunk =
                Chunk { sequence_slot, state_slot, range: 0..1, sampled: true, num_logprobs: None, vector: None, second_segment: None };
            push(&mut batch, chunk, std::iter::once(Segment::Tokens { ids: &[5], position: 0 }));
        }
        assert_eq!((&batch.state_slots, &batch.sampled_rows), (&vec![3, 1], &vec![0, 1]));
        clear(&mut batch);
        assert!(batch.state_slots.is_empty() && batch.sampled_rows.is_empty());
    }
}
