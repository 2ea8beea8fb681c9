//! A [`Batch`] as the C side takes it. Buffers are kept from step to step.

use std::ptr;

use super::sys;
use crate::engine::{Batch, EngineError, Input, Masks, SlotInit};
use crate::logits::mask_words;

/// What a batch's arrays cannot be lent as.
#[derive(Default)]
pub struct Flat {
    inputs: Vec<i32>, // [num_tokens] an id, or -1 - slot
    sample: Vec<u8>,  // [num_seqs]
    bias_ids: Vec<Vec<u32>>,
    biases: Vec<Vec<f32>>,
    suppressed: Vec<Vec<u32>>,
    init: Vec<sys::pen_slot_init>,
    mask_of: Vec<i32>,      // [num_seqs]
    num_logprobs: Vec<i32>, // [num_seqs] or empty: no sequence asks
}

// SAFETY: the pointers in `init` lead into this struct's other buffers and into batches; they are followed only while
// `Flat::lend`'s borrow of both lasts.
unsafe impl Send for Flat {}

fn encode(input: Input) -> i32 {
    // checked before: ids and slots are far below 2^31
    match input {
        Input::Token(id) => id as i32,
        Input::Sampled(slot) => -1 - slot as i32,
    }
}

fn pointer<T>(items: &[T]) -> *const T {
    if items.is_empty() { ptr::null() } else { items.as_ptr() }
}

impl Flat {
    /// Lends a batch, which passed `Limits::check`, to `call`. Ids outside of the vocabulary neither bias nor suppress anything.
    pub fn lend<T>(&mut self, batch: &Batch, vocab: usize, call: impl FnOnce(&sys::pen_batch) -> T) -> Result<T, EngineError> {
        self.inputs.clear();
        self.inputs.extend(batch.inputs.iter().map(|&input| encode(input)));
        self.sample.clear();
        self.sample.extend(batch.sample.iter().map(|&sample| u8::from(sample)));
        self.num_logprobs.clear();
        if batch.num_logprobs.iter().any(Option::is_some) {
            self.num_logprobs.extend(batch.num_logprobs.iter().map(|n| n.map_or(-1, i32::from)));
        }
        self.init.clear();
        self.bias_ids.clear();
        self.biases.clear();
        self.suppressed.clear();
        for init in &batch.init {
            if init.prompt.iter().chain(&init.generated).any(|&id| id as usize >= vocab) {
                return Err(EngineError::InvalidBatch(format!("slot {} begins with an id outside of the vocabulary", init.slot)));
            }
            let biases = || init.params.logit_bias.iter().filter(|(id, _)| (*id as usize) < vocab);
            self.bias_ids.push(biases().map(|&(id, _)| id).collect());
            self.biases.push(biases().map(|&(_, bias)| bias).collect());
            self.suppressed.push(init.params.suppressed.iter().copied().filter(|&id| (id as usize) < vocab).collect());
        }
        let lists = self.bias_ids.iter().zip(&self.biases).zip(&self.suppressed);
        self.init.extend(batch.init.iter().zip(lists).map(|(init, ((ids, biases), suppressed))| slot_init(init, ids, biases, suppressed)));
        Ok(call(&sys::pen_batch {
            num_tokens: batch.num_tokens() as u32,
            num_seqs: batch.num_seqs() as u32,
            max_blocks: batch.max_blocks as u32,
            num_init: self.init.len() as u32,
            want_logits: u32::from(batch.want_logits),
            sample_later: u32::from(batch.sample_later),
            inputs: pointer(&self.inputs),
            positions: pointer(&batch.positions),
            cu_seqlens_q: pointer(&batch.cu_seqlens_q),
            context_lens: pointer(&batch.context_lens),
            slot_mapping: pointer(&batch.slot_mapping),
            block_tables: pointer(&batch.block_tables),
            slots: pointer(&batch.slots),
            sample: pointer(&self.sample),
            init: pointer(&self.init),
            num_logprobs: pointer(&self.num_logprobs),
        }))
    }

    /// Lends masks, which passed `Limits::check_masks`, to `call`.
    pub fn lend_masks<T>(&mut self, masks: &Masks, vocab: usize, call: impl FnOnce(&sys::pen_masks) -> T) -> T {
        self.mask_of.clear();
        // checked before: there are no more masks than slots
        self.mask_of.extend(masks.of.iter().map(|mask| mask.map_or(-1, |mask| mask as i32)));
        call(&sys::pen_masks {
            num_masks: (masks.words.len() / mask_words(vocab)) as u32,
            num_seqs: masks.of.len() as u32,
            masks: pointer(&masks.words),
            mask_of: pointer(&self.mask_of),
        })
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
    use crate::logits::SamplingParams;

    /// Reads a lent array back.
    fn read<T: Copy>(at: *const T, len: u32) -> Vec<T> {
        assert_eq!(at.is_null(), len == 0);
        // SAFETY: called inside of `lend`, on arrays that it lends with their lengths.
        (0..len as usize).map(|i| unsafe { *at.add(i) }).collect()
    }

    #[test]
    fn a_batch_arrives_as_it_was() {
        let params =
            SamplingParams { logit_bias: vec![(3, 1.5), (99, 2.0), (0, -1.0)], suppressed: vec![7, 50], ..SamplingParams::greedy() };
        let init = |slot, generated: &[u32]| SlotInit {
            slot,
            params: Arc::new(if slot == 1 { params.clone() } else { SamplingParams::greedy() }),
            prompt: [4, 5].into(),
            generated: generated.to_vec(),
        };
        let mut batch = Batch {
            inputs: vec![Input::Token(4), Input::Token(5), Input::Sampled(0), Input::Sampled(6)],
            positions: vec![0, 1, 8, 9],
            cu_seqlens_q: vec![0, 2, 3, 4],
            context_lens: vec![2, 9, 10],
            slot_mapping: vec![0, 1, 40, 41],
            block_tables: vec![0, 1, 2],
            max_blocks: 1,
            slots: vec![1, 0, 6],
            sample: vec![true, false, true],
            init: vec![init(1, &[]), init(2, &[9])],
            num_logprobs: vec![None, Some(0), Some(7)],
            sample_later: true,
            want_logits: true,
        };
        let mut flat = Flat::default();
        for _ in 0..2 {
            let check = |lent: &sys::pen_batch| {
                assert_eq!((lent.num_tokens, lent.num_seqs, lent.max_blocks, lent.num_init), (4, 3, 1, 2));
                assert_eq!((lent.want_logits, lent.sample_later), (1, 1));
                assert_eq!(read(lent.inputs, 4), [4, 5, -1, -7]);
                assert_eq!(read(lent.positions, 4), [0, 1, 8, 9]);
                assert_eq!(read(lent.cu_seqlens_q, 4), [0, 2, 3, 4]);
                assert_eq!(read(lent.context_lens, 3), [2, 9, 10]);
                assert_eq!(read(lent.slot_mapping, 4), [0, 1, 40, 41]);
                assert_eq!(read(lent.block_tables, 3), [0, 1, 2]);
                assert_eq!(read(lent.slots, 3), [1, 0, 6]);
                assert_eq!(read(lent.sample, 3), [1, 0, 1]);
                assert_eq!(read(lent.num_logprobs, 3), [-1, 0, 7]);
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
            flat.lend(&batch, 20, check).unwrap();
        }
        batch.num_logprobs = vec![None; 3];
        assert_eq!(flat.lend(&batch, 20, |lent| lent.num_logprobs).unwrap(), ptr::null());
        batch.init[1].generated[0] = 20;
        let error = flat.lend(&batch, 20, |_| ()).unwrap_err().to_string();
        assert!(error.contains("slot 2"), "{error}");
    }

    #[test]
    fn masks_arrive_as_they_were() {
        let (mut flat, masks) = (Flat::default(), Masks { words: vec![5, 6], of: vec![Some(1), None, Some(0)] });
        flat.lend_masks(&masks, 20, |lent| {
            assert_eq!((lent.num_masks, read(lent.masks, 2)), (2, vec![5, 6]));
            assert_eq!(read(lent.mask_of, lent.num_seqs), [1, -1, 0]);
        });
        flat.lend_masks(&Masks { of: vec![None], ..Masks::default() }, 20, |lent| {
            assert_eq!((lent.num_masks, lent.masks, read(lent.mask_of, 1)), (0, ptr::null(), vec![-1]));
        });
    }
}
