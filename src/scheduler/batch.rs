//! Fills the engine's flat [`Batch`]. Its buffers are reused by every step.

use std::ops::Range;

use crate::items::{Items, Layout, PlacedRun, Segment};
use crate::sequence::Sequence;
use engine::{Batch, Input, SequenceAdapters};

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
    batch.whole_runs.clear();
    batch.scored.clear();
    batch.vectors.clear();
    batch.init.clear();
    batch.sample_later = false;
    batch.loop_steps = 0;
    batch.rooms.clear();
    batch.adapters.clear();
}

/// Adds a sequence's next rows, one per token. `range`: the tokens' indices in the sequence. `is_complete`: whether the sequence has no
/// token after them. Returns whether the last row is sampled. [`set_tables`] adds the slot mapping and the block tables later.
pub fn push(batch: &mut Batch, sequence: &mut Sequence, range: Range<usize>, is_complete: bool) -> bool {
    if let Some(init) = sequence.take_init() {
        batch.init.push(init);
    }
    let (first, sequence_slot) = (batch.inputs.len(), sequence.sequence_slot());
    batch.scored.extend(sequence.rows_to_score(&range, first));
    sequence.tokens().for_each_segment(range.clone(), |segment| push_segment(batch, segment, sequence_slot));
    debug_assert_eq!(batch.inputs.len() - first, range.len());
    let second_segment = sequence.asked.second_segment;
    if second_segment.is_some() || !batch.token_types.is_empty() {
        // all rows before this sequence belong to the first segment
        batch.token_types.resize(first, 0);
        let second = second_segment.unwrap_or(usize::MAX);
        batch.token_types.extend(range.clone().map(|index| u32::from(index >= second)));
    }
    if !(sequence.adapters.is_empty() && batch.adapters.is_empty()) {
        // the sequences before this one have none
        batch.adapters.resize_with(batch.num_seqs(), SequenceAdapters::default);
        batch.adapters.push(sequence.adapters.clone());
    }
    batch.cu_seqlens_q.push(batch.inputs.len() as u32);
    batch.context_lens.push(range.end as u32);
    batch.sequence_slots.push(sequence_slot);
    if let Some(slot) = sequence.cache.state_slot() {
        batch.state_slots.push(slot);
    }
    let sampled = is_complete && sequence.generates();
    if sampled {
        batch.sampled_rows.push(batch.inputs.len() as u32 - 1);
        batch.num_logprobs.push(sequence.asked.num_logprobs);
        batch.sample_later |= sequence.grammar.is_some();
    }
    batch.vectors.push(sequence.vector(is_complete));
    sampled
}

/// The rows of a whole prompt, for callers that run it without a scheduler.
pub fn prompt_batch(items: &Items) -> Batch {
    let mut batch = Batch::default();
    items.segments(0..items.len()).for_each(|segment| push_segment(&mut batch, segment, 0));
    batch
}

/// Adds rows for drafts of the sequence that was added last, whose last row is sampled. `position`: the position of the first draft.
pub fn push_drafts(batch: &mut Batch, drafts: &[u32], position: u32) {
    let last = batch.num_seqs() - 1;
    batch.inputs.extend(drafts.iter().copied().map(Input::Token));
    push_line(batch, position, drafts.len());
    if !batch.token_types.is_empty() {
        batch.token_types.resize(batch.inputs.len(), 0);
    }
    batch.cu_seqlens_q[last + 1] = batch.inputs.len() as u32;
    batch.context_lens[last] += drafts.len() as u32;
    let num_logprobs = batch.num_logprobs.last().copied().flatten();
    batch.num_logprobs.extend(drafts.iter().map(|_| num_logprobs));
    let end = batch.inputs.len() as u32;
    batch.sampled_rows.extend(end - drafts.len() as u32..end);
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
            if run.is_whole {
                batch.whole_runs.push((batch.inputs.len() as u32, rows.len() as u32));
            }
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
/// of this step or loop, or padded with 0.
pub fn set_tables<'a, T: Iterator<Item = &'a [u32]>>(batch: &mut Batch, groups: impl Iterator<Item = T>, block_size: usize) {
    let lens = if batch.rooms.is_empty() { &batch.context_lens } else { &batch.rooms };
    batch.max_blocks = lens.iter().map(|&len| (len as usize).div_ceil(block_size)).max().unwrap_or(0);
    batch.slot_mapping.clear();
    batch.block_tables.clear();
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
    use crate::block_manager::BlockManager;
    use crate::new_sequence::NewSequence;
    use crate::testing::{accepted, run, sequence};
    use engine::{KvCapacity, Pooling, VectorRequest};

    /// A sequence in a slot of the engine.
    fn running(new: NewSequence, slot: u32) -> Sequence {
        let mut sequence = accepted(new);
        sequence.assign_engine_slot(slot);
        sequence
    }

    #[test]
    fn rows_are_laid_out_flat() {
        let mut batch = Batch::default();
        let (long, other, short) = ([5, 3, 9], [0, 1, 2], [7]);
        let mut sampled = running(NewSequence { num_logprobs: Some(3), ..sequence(vec![8, 9, 10, 11, 12], 1) }, 4);
        let mut pending = running(sequence(vec![13], 3), 1);
        let mut pooled = running(NewSequence { pool: Some(Pooling::Last), ..sequence(vec![14], 0) }, 2);
        for _ in 0..2 {
            clear(&mut batch);
            push(&mut batch, &mut sampled, 3..5, true);
            push(&mut batch, &mut pending, 1..2, false);
            push(&mut batch, &mut pooled, 0..1, true);
            let groups = [[&long[..], &short, &short], [&other[..], &short, &short]];
            set_tables(&mut batch, groups.into_iter().map(<[_; 3]>::into_iter), 2);
        }
        assert_eq!(batch.inputs, [Input::Token(11), Input::Token(12), Input::Sampled(1), Input::Token(14)]);
        assert_eq!(batch.positions, [3, 4, 1, 0]);
        assert_eq!(batch.cu_seqlens_q, [0, 2, 3, 4]);
        assert_eq!(batch.context_lens, [5, 2, 1]);
        assert_eq!(batch.slot_mapping, [7, 18, 15, 14, 3, 4, 15, 14]);
        assert_eq!((batch.max_blocks, &batch.block_tables[..9]), (3, &[5, 3, 9, 7, 0, 0, 7, 0, 0][..]));
        assert_eq!(batch.block_tables[9..], [0, 1, 2, 7, 0, 0, 7, 0, 0]);
        assert_eq!((batch.sequence_slots, batch.state_slots), (vec![4, 1, 2], vec![]));
        assert_eq!((batch.sampled_rows, batch.num_logprobs), (vec![1], vec![Some(3)]));
        assert_eq!(batch.vectors, [None, None, Some(VectorRequest { pooling: Pooling::Last, complete: true })]);
    }

    #[test]
    fn rows_of_runs_come_with_their_embeddings_and_positions() {
        let items = Items::with_runs(
            vec![4, 5],
            [(run(1, 3, Layout::Line, false), vec![6]), (run(2, 6, Layout::Grid { height: 2, width: 3 }, false), vec![7])],
        );
        let mut sequence = running(NewSequence::new(items, crate::testing::params(1), 3), 0);
        let mut batch = Batch::default();
        clear(&mut batch);
        push(&mut batch, &mut sequence, 1..4, false);
        assert_eq!(batch.inputs, [Input::Token(5), Input::Embedding(0), Input::Embedding(1)]);
        assert_eq!((&batch.positions[..], batch.grid_positions.len()), (&[1, 2, 3][..], 0));
        push(&mut batch, &mut sequence, 8..14, false);
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
        let mut batch = Batch::default();
        for (second_segment, expected) in [(None, vec![]), (Some(2), vec![0, 0, 0, 1]), (None, vec![0, 0, 0, 1, 0, 0])] {
            push(&mut batch, &mut running(NewSequence { second_segment, ..sequence(vec![1; 3], 1) }, 0), 1..3, false);
            assert_eq!(batch.token_types, expected);
        }
    }

    #[test]
    fn each_sequence_of_a_recurrent_model_names_its_state_slot() {
        let mut blocks = BlockManager::new(KvCapacity { num_state_slots: 2, ..KvCapacity::blocks(8, 4) }, 8, true);
        let mut batch = Batch::default();
        clear(&mut batch);
        let slots = [3, 1].map(|slot| {
            let mut sequence = running(sequence(vec![5], 1), slot);
            sequence.take_cache(&mut blocks, 0).unwrap();
            push(&mut batch, &mut sequence, 0..1, true);
            sequence.cache.state_slot().unwrap()
        });
        assert_eq!((&batch.state_slots[..], &batch.sampled_rows), (&slots[..], &vec![0, 1]));
        assert_ne!(slots[0], slots[1]);
        clear(&mut batch);
        assert!(batch.state_slots.is_empty() && batch.sampled_rows.is_empty());
    }
}
