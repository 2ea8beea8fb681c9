//! Converts a [`Batch`] to the form that the C side takes. Buffers are reused from step to step.

use std::ptr;

use super::raii::Lent;
use super::sys;
use crate::check::{CheckedBatch, Limits};
use crate::{Batch, EngineError, Input, Masks, Pooling, SlotInit, VectorRequest};
use logits::mask_words;

/// The part of a step's batch that describes its rows: see `pen_batch`.
#[derive(Debug, Default)]
pub struct Changes {
    pub source: u32,
    pub rows: Vec<sys::pen_row>,
    pub tables: Vec<sys::pen_table>,
    pub blocks: Vec<u32>,
}

/// The arrays of a batch that the C side takes in another form.
#[derive(Default)]
pub struct FlatBatch {
    inputs: Vec<i32>, // [num_tokens] an id, -1 - slot, or PEN_FIRST_EMBEDDING - row
    bias_ids: Vec<Vec<u32>>,
    biases: Vec<Vec<f32>>,
    suppressed: Vec<Vec<u32>>,
    init: Vec<sys::pen_slot_init>,
    mask_of: Vec<i32>,        // [num_sampled]
    num_logprobs: Vec<i32>,   // [num_sampled], or empty if no row asks
    copies: Vec<u32>,         // [num_copies, 2]
    state_copies: Vec<u32>,   // [num_state_copies, 2]
    scored: [Vec<u32>; 3],    // [num_scored] rows, ids, numbers of likeliest ids
    pools: Vec<u8>,           // [num_seqs], or empty if no sequence asks
    runs: Vec<u32>,           // [num_runs, 2] the first row, and the number of rows
    adapters: Vec<i32>,       // [num_rounds, num_tokens] the place of each row's adapter, or -1
    adapter_scales: Vec<f32>, // [num_rounds, num_tokens]
}

// SAFETY: the pointers in `init` lead into this struct's other buffers and into batches. They are followed only while `FlatBatch::lend`
// borrows both.
unsafe impl Send for FlatBatch {}

/// An input as the C side reads it.
pub fn encode(input: Input) -> i32 {
    // checked before: ids are far below 2^31, slots and embeddings below 2^30
    match input {
        Input::Token(id) => id as i32,
        Input::Sampled(slot) => -1 - slot as i32,
        Input::Embedding(row) => sys::PEN_FIRST_EMBEDDING - row as i32,
    }
}

/// Encodes a vector request. A classifier reads the first row if the model's rows see later rows, else the last row.
fn encode_vector(vector: Option<VectorRequest>, bidirectional: bool) -> u8 {
    let Some(VectorRequest { pooling, complete }) = vector else { return sys::PEN_POOL_NONE };
    let kind = match pooling {
        Pooling::First => sys::PEN_POOL_FIRST,
        Pooling::Last => sys::PEN_POOL_LAST,
        Pooling::Mean => sys::PEN_POOL_MEAN,
        Pooling::Rank if bidirectional => sys::PEN_POOL_FIRST,
        Pooling::Rank => sys::PEN_POOL_LAST,
    };
    kind + if complete { sys::PEN_POOL_COMPLETE } else { 0 }
}

fn pointer<T>(items: &[T]) -> *const T {
    if items.is_empty() { ptr::null() } else { items.as_ptr() }
}

impl FlatBatch {
    /// Lends a batch to `call`. Leaves out biased and suppressed ids outside the vocabulary.
    pub fn lend<T>(
        &mut self,
        batch: CheckedBatch,
        limits: &Limits,
        changes: &Changes,
        call: impl FnOnce(&Lent<sys::pen_batch>) -> T,
    ) -> Result<T, EngineError> {
        let (vocab, hidden) = (limits.vocab_size, limits.embedding_width);
        self.inputs.clear();
        self.inputs.extend(batch.inputs.iter().map(|&input| encode(input)));
        self.num_logprobs.clear();
        if batch.num_logprobs.iter().any(Option::is_some) {
            self.num_logprobs.extend(batch.num_logprobs.iter().map(|n| n.map_or(-1, i32::from)));
        }
        self.encode_prompt(&batch, limits.bidirectional);
        self.runs.clear();
        self.runs.extend(batch.whole_runs.iter().flat_map(|&(first, rows)| [first, rows]));
        let num_rounds = self.encode_adapters(&batch)?;
        self.init.clear();
        self.bias_ids.clear();
        self.biases.clear();
        self.suppressed.clear();
        for init in &batch.init {
            if init.prompt.iter().chain(&init.generated).any(|&id| id as usize >= vocab) {
                return Err(EngineError::InvalidBatch(format!("slot {} is initialised with an id outside of the vocabulary", init.slot)));
            }
            let biases = || init.params.logit_bias.iter().filter(|(id, _)| (*id as usize) < vocab);
            self.bias_ids.push(biases().map(|&(id, _)| id).collect());
            self.biases.push(biases().map(|&(_, bias)| bias).collect());
            self.suppressed.push(init.params.suppressed.iter().copied().filter(|&id| (id as usize) < vocab).collect());
        }
        let lists = self.bias_ids.iter().zip(&self.biases).zip(&self.suppressed);
        self.init.extend(batch.init.iter().zip(lists).map(|(init, ((ids, biases), suppressed))| slot_init(init, ids, biases, suppressed)));
        let raw = sys::pen_batch {
            num_tokens: batch.num_tokens() as u32,
            num_seqs: batch.num_seqs() as u32,
            num_sampled: batch.num_sampled() as u32,
            num_embeddings: (batch.embeddings.len() / hidden.max(1)) as u32,
            max_blocks: batch.max_blocks as u32,
            num_init: self.init.len() as u32,
            want_logits: u32::from(batch.want_logits),
            sample_later: u32::from(batch.sample_later),
            inputs: pointer(&self.inputs),
            positions: pointer(&batch.positions),
            grid_positions: pointer(batch.grid_positions.as_flattened()),
            token_types: pointer(&batch.token_types),
            cu_seqlens_q: pointer(&batch.cu_seqlens_q),
            context_lens: pointer(&batch.context_lens),
            slot_mapping: pointer(&batch.slot_mapping),
            block_tables: pointer(&batch.block_tables),
            slots: pointer(&batch.sequence_slots),
            sampled_rows: pointer(&batch.sampled_rows),
            init: pointer(&self.init),
            num_logprobs: pointer(&self.num_logprobs),
            num_copies: batch.copies.len() as u32,
            copies: pointer(&self.copies),
            state_slots: pointer(&batch.state_slots),
            num_state_copies: batch.state_copies.len() as u32,
            state_copies: pointer(&self.state_copies),
            num_scored: batch.scored.len() as u32,
            scored_rows: pointer(&self.scored[0]),
            scored_ids: pointer(&self.scored[1]),
            scored_logprobs: pointer(&self.scored[2]),
            pools: pointer(&self.pools),
            embeddings: pointer(&batch.embeddings),
            source: changes.source,
            num_tables: changes.tables.len() as u32,
            num_blocks: changes.blocks.len() as u32,
            rows: pointer(&changes.rows),
            tables: pointer(&changes.tables),
            blocks: pointer(&changes.blocks),
            num_runs: batch.whole_runs.len() as u32,
            runs: pointer(&self.runs),
            loop_steps: batch.loop_steps,
            num_rounds: num_rounds as u32,
            adapters: pointer(&self.adapters),
            adapter_scales: pointer(&self.adapter_scales),
        };
        // SAFETY: every pointer leads into `self`, the batch or the changes, all borrowed during the call. `Limits::check` found the
        // lengths and the entries of the batch right, and the changes repeat them. `init` holds as many entries as `bias_ids`, `biases` and
        // `suppressed`, whose lists it points to.
        Ok(call(&unsafe { Lent::new(raw) }))
    }

    /// Lends masks that passed `Limits::check_masks` to `call`.
    pub fn lend_masks<T>(&mut self, masks: &Masks, vocab: usize, call: impl FnOnce(&Lent<sys::pen_masks>) -> T) -> T {
        self.mask_of.clear();
        // checked before: there are at most as many masks as sampled rows
        self.mask_of.extend(masks.of.iter().map(|mask| mask.map_or(-1, |mask| mask as i32)));
        let raw = sys::pen_masks {
            num_masks: (masks.words.len() / mask_words(vocab)) as u32,
            num_sampled: masks.of.len() as u32,
            masks: pointer(&masks.words),
            mask_of: pointer(&self.mask_of),
        };
        // SAFETY: the words hold `num_masks` masks and `mask_of` has `num_sampled` entries; both are borrowed during the call.
        call(&unsafe { Lent::new(raw) })
    }

    /// Encodes the adapters of all rows, one of each row per round. Returns the number of rounds.
    fn encode_adapters(&mut self, batch: &Batch) -> Result<usize, EngineError> {
        let (num_rounds, num_rows) = (batch.adapters.iter().map(|of| of.len()).max().unwrap_or(0), batch.num_tokens());
        if num_rounds > sys::PEN_MAX_ROUNDS as usize {
            let most = sys::PEN_MAX_ROUNDS;
            return Err(EngineError::Unsupported(format!("{num_rounds} adapters of a sequence on a GPU: use at most {most}")));
        }
        self.adapters.clear();
        self.adapter_scales.clear();
        self.adapters.resize(num_rounds * num_rows, -1);
        self.adapter_scales.resize(num_rounds * num_rows, 0.0);
        for (i, adapters) in batch.adapters.iter().enumerate() {
            for (row, index) in batch.rows(i).zip(batch.indices(i)) {
                let active = adapters.iter().filter(|of| of.first <= index && of.scale != 0.0);
                for (round, of) in active.enumerate() {
                    let at = round * num_rows + row;
                    (self.adapters[at], self.adapter_scales[at]) = (of.place as i32, of.scale);
                }
            }
        }
        Ok(num_rounds)
    }

    /// Encodes copies, scored rows and vectors.
    fn encode_prompt(&mut self, batch: &Batch, bidirectional: bool) {
        self.copies.clear();
        self.copies.extend(batch.copies.iter().flat_map(|&(from, to)| [from, to]));
        self.state_copies.clear();
        self.state_copies.extend(batch.state_copies.iter().flat_map(|&(from, to)| [from, to]));
        let [rows, ids, counts] = &mut self.scored;
        for list in [&mut *rows, &mut *ids, &mut *counts] {
            list.clear();
        }
        for scored in &batch.scored {
            rows.push(scored.row);
            ids.push(scored.id);
            counts.push(u32::from(scored.num_logprobs));
        }
        self.pools.clear();
        if batch.vectors.iter().any(Option::is_some) {
            self.pools.extend(batch.vectors.iter().map(|&vector| encode_vector(vector, bidirectional)));
        }
    }
}

fn slot_init(init: &SlotInit, bias_ids: &[u32], biases: &[f32], suppressed: &[u32]) -> sys::pen_slot_init {
    let params = &init.params;
    sys::pen_slot_init {
        slot: init.slot,
        temperature: params.temperature,
        top_p: params.top_p,
        min_p: params.min_p,
        presence_penalty: params.presence_penalty,
        frequency_penalty: params.frequency_penalty,
        repetition_penalty: params.repetition_penalty,
        top_k: params.top_k,
        min_tokens: params.min_tokens,
        seed: params.seed,
        prompt: pointer(&init.prompt),
        num_prompt: init.prompt.len() as u32,
        generated: pointer(&init.generated),
        num_generated: init.generated.len() as u32,
        bias_ids: pointer(bias_ids),
        biases: pointer(biases),
        num_biases: bias_ids.len() as u32,
        suppressed: pointer(suppressed),
        num_suppressed: suppressed.len() as u32,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{KvCapacity, Scored};
    use logits::SamplingParams;

    /// Reads back an array that was lent.
    fn read<T: Copy>(at: *const T, len: u32) -> Vec<T> {
        assert_eq!(at.is_null(), len == 0);
        // SAFETY: called inside `lend`, on arrays that it lends with their lengths.
        (0..len as usize).map(|i| unsafe { *at.add(i) }).collect()
    }

    #[test]
    fn a_batch_is_lent_unchanged() {
        let params =
            SamplingParams { logit_bias: vec![(3, 1.5), (99, 2.0), (0, -1.0)], suppressed: vec![7, 50], ..SamplingParams::greedy() };
        let init = |slot, generated: &[u32]| SlotInit {
            slot,
            params: Arc::new(if slot == 1 { params.clone() } else { SamplingParams::greedy() }),
            prompt: [4, 5].into(),
            generated: generated.to_vec(),
        };
        let mut batch = Batch {
            inputs: vec![Input::Token(4), Input::Embedding(1), Input::Sampled(0), Input::Sampled(6)],
            positions: vec![0, 1, 8, 9],
            grid_positions: vec![[0, 0], [1, 0], [3, 4], [5, 6]],
            token_types: vec![0, 1, 0, 1],
            cu_seqlens_q: vec![0, 2, 3, 4],
            context_lens: vec![2, 9, 10],
            slot_mapping: vec![0, 1, 40, 41],
            block_tables: vec![0, 1, 2],
            max_blocks: 1,
            sequence_slots: vec![1, 0, 6],
            sampled_rows: vec![0, 1, 3],
            init: vec![init(1, &[]), init(2, &[9])],
            num_logprobs: vec![None, Some(7), Some(0)],
            embeddings: vec![0.5; 4],
            sample_later: true,
            copies: vec![(0, 2), (1, 3)],
            state_slots: vec![4, 0, 2],
            state_copies: vec![(1, 4)],
            scored: vec![Scored { row: 0, id: 5, num_logprobs: 0 }, Scored { row: 2, id: 6, num_logprobs: 20 }],
            vectors: vec![
                Some(VectorRequest { pooling: Pooling::Mean, complete: false }),
                None,
                Some(VectorRequest { pooling: Pooling::First, complete: true }),
            ],
            want_logits: true,
            want_draft_logits: false,
            whole_runs: vec![(0, 1), (3, 1)],
            loop_steps: 0,
            rooms: Vec::new(),
            adapters: Vec::new(),
        };
        let limits = Limits {
            kv: KvCapacity { num_state_slots: 5, ..KvCapacity::blocks(4, 32) },
            num_backed: 4,
            vocab_size: 20,
            embedding_width: 2,
            num_token_types: 2,
            max_slots: 8,
            max_batch_tokens: 4,
            max_context: 32,
            bidirectional: false,
            loops: None,
            refuses_grids: None,
            refuses_rows: None,
            max_adapters: 0,
        };
        let table = sys::pen_table { group: 0, first: 1, count: 1, at: 0 };
        let changes = Changes { source: sys::PEN_FROM_CHANGES, rows: Vec::new(), tables: vec![table], blocks: vec![3] };
        let mut flat = FlatBatch::default();
        for _ in 0..2 {
            let check = |lent: &Lent<sys::pen_batch>| {
                assert_eq!((lent.num_tokens, lent.num_seqs, lent.max_blocks, lent.num_init), (4, 3, 1, 2));
                assert_eq!((lent.want_logits, lent.sample_later), (1, 1));
                assert_eq!(read(lent.inputs, 4), [4, -1_073_741_825, -1, -7]);
                assert_eq!((lent.num_embeddings, read(lent.embeddings, 4)), (2, vec![0.5; 4]));
                assert_eq!(read(lent.positions, 4), [0, 1, 8, 9]);
                assert_eq!(read(lent.grid_positions, 8), [0, 0, 1, 0, 3, 4, 5, 6]);
                assert_eq!(read(lent.token_types, 4), [0, 1, 0, 1]);
                assert_eq!(read(lent.cu_seqlens_q, 4), [0, 2, 3, 4]);
                assert_eq!(read(lent.context_lens, 3), [2, 9, 10]);
                assert_eq!(read(lent.slot_mapping, 4), [0, 1, 40, 41]);
                assert_eq!(read(lent.block_tables, 3), [0, 1, 2]);
                assert_eq!(read(lent.slots, 3), [1, 0, 6]);
                assert_eq!((lent.num_sampled, read(lent.sampled_rows, 3)), (3, vec![0, 1, 3]));
                assert_eq!(read(lent.num_logprobs, 3), [-1, 7, 0]);
                assert_eq!((lent.num_copies, read(lent.copies, 4)), (2, vec![0, 2, 1, 3]));
                assert_eq!(read(lent.state_slots, 3), [4, 0, 2]);
                assert_eq!((lent.num_state_copies, read(lent.state_copies, 2)), (1, vec![1, 4]));
                let scored = [lent.scored_rows, lent.scored_ids, lent.scored_logprobs].map(|list| read(list, 2));
                assert_eq!((lent.num_scored, scored), (2, [vec![0, 2], vec![5, 6], vec![0, 20]]));
                assert_eq!(read(lent.pools, 3), [3, 0, 5]);
                assert_eq!((lent.source, lent.rows.is_null(), read(lent.tables, lent.num_tables)), (1, true, vec![table]));
                assert_eq!(read(lent.blocks, lent.num_blocks), [3]);
                assert_eq!((lent.num_runs, read(lent.runs, 4)), (2, vec![0, 1, 3, 1]));
                // SAFETY: `num_init` entries are lent.
                let [first, second] = unsafe { [&*lent.init, &*lent.init.add(1)] };
                assert_eq!((first.slot, second.slot, first.top_p, first.seed), (1, 2, 1.0, 0));
                assert_eq!(read(first.bias_ids, first.num_biases), [3, 0]);
                assert_eq!(read(first.biases, first.num_biases), [1.5, -1.0]);
                assert_eq!(read(first.suppressed, first.num_suppressed), [7]);
                assert_eq!(read(first.prompt, first.num_prompt), [4, 5]);
                assert_eq!(read(first.generated, first.num_generated), [0; 0]);
                assert_eq!(read(second.generated, second.num_generated), [9]);
                assert_eq!(second.num_biases + second.num_suppressed, 0);
            };
            flat.lend(limits.check(&batch).unwrap(), &limits, &changes, check).unwrap();
        }
        batch.num_logprobs = vec![None; 3];
        assert_eq!(flat.lend(limits.check(&batch).unwrap(), &limits, &changes, |lent| lent.num_logprobs).unwrap(), ptr::null());
        batch.vectors = vec![None; 3];
        assert!(flat.lend(limits.check(&batch).unwrap(), &limits, &changes, |lent| lent.pools.is_null()).unwrap());
        batch.init[1].generated[0] = 20;
        let error = flat.lend(limits.check(&batch).unwrap(), &limits, &changes, |_| ()).unwrap_err().to_string();
        assert!(error.contains("slot 2"), "{error}");
    }

    #[test]
    fn masks_are_lent_unchanged() {
        let (mut flat, masks) = (FlatBatch::default(), Masks { words: vec![5, 6], of: vec![Some(1), None, Some(0)] });
        flat.lend_masks(&masks, 20, |lent| {
            assert_eq!((lent.num_masks, read(lent.masks, 2)), (2, vec![5, 6]));
            assert_eq!((lent.num_sampled, read(lent.mask_of, 3)), (3, vec![1, -1, 0]));
        });
        flat.lend_masks(&Masks { of: vec![None], ..Masks::default() }, 20, |lent| {
            assert_eq!((lent.num_masks, lent.masks, read(lent.mask_of, 1)), (0, ptr::null(), vec![-1]));
        });
    }
}
