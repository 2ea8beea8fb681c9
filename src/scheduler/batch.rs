//! Fills the engine's flat [`Batch`]. Its buffers are reused by every step.

use engine::{Batch, Input, VectorRequest};

/// One sequence's consecutive rows in a step.
#[derive(Clone, Copy, Debug)]
pub struct Chunk {
    pub sequence_slot: u32,
    /// Present if the model has recurrent state.
    pub state_slot: Option<u32>,
    /// Position of the first row.
    pub start: usize,
    /// Whether the last row is sampled.
    pub sampled: bool,
    /// Number of log-probabilities that the sequence asks for.
    pub num_logprobs: Option<u8>,
    pub vector: Option<VectorRequest>,
    /// Position of the first row of the second segment.
    pub second_segment: Option<usize>,
}

/// Empties the batch but keeps its buffers.
pub fn clear(batch: &mut Batch) {
    batch.inputs.clear();
    batch.positions.clear();
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

/// Adds a sequence's rows, one per input. [`set_tables`] adds the slot mapping and the block tables later.
pub fn push(batch: &mut Batch, chunk: Chunk, inputs: impl Iterator<Item = Input>) {
    let first = batch.inputs.len();
    batch.inputs.extend(inputs);
    let end = chunk.start + batch.inputs.len() - first;
    batch.positions.extend(chunk.start as u32..end as u32);
    if chunk.second_segment.is_some() || !batch.token_types.is_empty() {
        // all rows before this sequence belong to the first segment
        batch.token_types.resize(first, 0);
        let second = chunk.second_segment.unwrap_or(usize::MAX);
        batch.token_types.extend((chunk.start..end).map(|position| u32::from(position >= second)));
    }
    batch.cu_seqlens_q.push(batch.inputs.len() as u32);
    batch.context_lens.push(end as u32);
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

/// Writes each group's block tables, in the order of [`push`], and the slot mapping of all rows. Each table is cut to the longest context
/// of this step, or padded with 0.
pub fn set_tables<'a, T: Iterator<Item = &'a [u32]>>(batch: &mut Batch, groups: impl Iterator<Item = T>, block_size: usize) {
    batch.max_blocks = batch.context_lens.iter().map(|&len| (len as usize).div_ceil(block_size)).max().unwrap_or(0);
    for tables in groups {
        for (i, table) in tables.enumerate() {
            let rows = batch.rows(i);
            for &position in &batch.positions[rows] {
                batch.slot_mapping.push(table[position as usize / block_size] * block_size as u32 + position % block_size as u32);
            }
            let used = table.len().min(batch.max_blocks);
            batch.block_tables.extend_from_slice(&table[..used]);
            batch.block_tables.extend(std::iter::repeat_n(0, batch.max_blocks - used));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::Pooling;

    #[test]
    fn rows_are_laid_out_flat() {
        let mut batch = Batch::default();
        let (long, other, short) = ([5, 3, 9], [0, 1, 2], [7]);
        let vector = Some(VectorRequest { pooling: Pooling::Last, complete: true });
        let chunk = Chunk {
            sequence_slot: 4,
            state_slot: None,
            start: 3,
            sampled: true,
            num_logprobs: Some(3),
            vector: None,
            second_segment: None,
        };
        for _ in 0..2 {
            clear(&mut batch);
            push(&mut batch, chunk, [Input::Token(11), Input::Token(12)].into_iter());
            let chunk = Chunk { sequence_slot: 1, start: 1, sampled: false, num_logprobs: None, vector, ..chunk };
            push(&mut batch, chunk, [Input::Sampled(1)].into_iter());
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
    fn rows_of_a_second_segment_are_marked() {
        let chunk =
            Chunk { sequence_slot: 0, state_slot: None, start: 1, sampled: false, num_logprobs: None, vector: None, second_segment: None };
        let mut batch = Batch::default();
        for (second_segment, expected) in [(None, vec![]), (Some(2), vec![0, 0, 0, 1]), (None, vec![0, 0, 0, 1, 0, 0])] {
            push(&mut batch, Chunk { second_segment, ..chunk }, [Input::Token(1); 2].into_iter());
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
                Chunk { sequence_slot, state_slot, start: 0, sampled: true, num_logprobs: None, vector: None, second_segment: None };
            push(&mut batch, chunk, [Input::Token(5)].into_iter());
        }
        assert_eq!((&batch.state_slots, &batch.sampled_rows), (&vec![3, 1], &vec![0, 1]));
        clear(&mut batch);
        assert!(batch.state_slots.is_empty() && batch.sampled_rows.is_empty());
    }
}
