//! Fills the engine's flat [`Batch`]; its buffers are kept from step to step.

use crate::engine::{Batch, Input, Pool};

/// One sequence's share of a step.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    pub slot: u32,
    /// Position of the first row.
    pub start: usize,
    pub block_table: &'a [u32],
    /// Sample from the last row?
    pub sample: bool,
    /// Log-probabilities that the sequence asks for.
    pub num_logprobs: Option<u8>,
    pub pool: Option<Pool>,
}

/// Empties the batch and keeps its buffers.
pub fn clear(batch: &mut Batch) {
    batch.inputs.clear();
    batch.positions.clear();
    batch.cu_seqlens_q.clear();
    batch.cu_seqlens_q.push(0);
    batch.context_lens.clear();
    batch.slot_mapping.clear();
    batch.block_tables.clear();
    batch.max_blocks = 0;
    batch.slots.clear();
    batch.sample.clear();
    batch.num_logprobs.clear();
    batch.copies.clear();
    batch.scored.clear();
    batch.pools.clear();
    batch.init.clear();
}

/// Adds a sequence's rows, one an input. Block tables follow in [`set_block_tables`].
pub fn push(batch: &mut Batch, rows: Rows<'_>, inputs: impl Iterator<Item = Input>, block_size: usize) {
    let first = batch.inputs.len();
    batch.inputs.extend(inputs);
    let end = rows.start + batch.inputs.len() - first;
    for position in rows.start..end {
        batch.positions.push(position as u32);
        batch.slot_mapping.push(rows.block_table[position / block_size] * block_size as u32 + (position % block_size) as u32);
    }
    batch.cu_seqlens_q.push(batch.inputs.len() as u32);
    batch.context_lens.push(end as u32);
    batch.slots.push(rows.slot);
    batch.sample.push(rows.sample);
    batch.num_logprobs.push(rows.num_logprobs);
    batch.pools.push(rows.pool);
    batch.max_blocks = batch.max_blocks.max(end.div_ceil(block_size));
}

/// Writes every sequence's table, in the order of [`push`], cut or padded with 0 to the longest context of this step.
pub fn set_block_tables<'a>(batch: &mut Batch, tables: impl Iterator<Item = &'a [u32]>) {
    for table in tables {
        let used = table.len().min(batch.max_blocks);
        batch.block_tables.extend_from_slice(&table[..used]);
        batch.block_tables.extend(std::iter::repeat_n(0, batch.max_blocks - used));
    }
    debug_assert_eq!(batch.block_tables.len(), batch.num_seqs() * batch.max_blocks);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Pooling;

    #[test]
    fn rows_are_laid_out_flat() {
        let mut batch = Batch::default();
        let (long, short) = ([5, 3, 9], [7]);
        for _ in 0..2 {
            clear(&mut batch);
            let rows = Rows { slot: 4, start: 3, block_table: &long, sample: true, num_logprobs: Some(3), pool: None };
            push(&mut batch, rows, [Input::Token(11), Input::Token(12)].into_iter(), 2);
            let pool = Some(Pool { kind: Pooling::Last, complete: true });
            let rows = Rows { slot: 1, start: 1, block_table: &short, sample: false, num_logprobs: None, pool };
            push(&mut batch, rows, [Input::Sampled(1)].into_iter(), 2);
            set_block_tables(&mut batch, [&long[..], &short].into_iter());
        }
        assert_eq!(batch.inputs, [Input::Token(11), Input::Token(12), Input::Sampled(1)]);
        assert_eq!(batch.positions, [3, 4, 1]);
        assert_eq!(batch.cu_seqlens_q, [0, 2, 3]);
        assert_eq!(batch.context_lens, [5, 2]);
        assert_eq!(batch.slot_mapping, [7, 18, 15]);
        assert_eq!((batch.max_blocks, &batch.block_tables[..]), (3, &[5, 3, 9, 7, 0, 0][..]));
        assert_eq!((batch.slots, batch.sample), (vec![4, 1], vec![true, false]));
        assert_eq!(batch.num_logprobs, [Some(3), None]);
        assert_eq!(batch.pools, [None, Some(Pool { kind: Pooling::Last, complete: true })]);
    }
}
