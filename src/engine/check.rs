//! The checks that keep a wrong batch from reaching a backend's kernels.

use std::collections::HashSet;

use super::{Batch, EngineError, Input, KvCapacity, MAX_LOGPROBS, Masks, mask_words};

/// What a backend was opened for.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub kv: KvCapacity,
    pub vocab_size: usize,
    pub max_slots: usize,
    /// Rows a batch.
    pub max_batch_tokens: usize,
    /// Tokens of a sequence.
    pub max_context: usize,
}

impl Limits {
    /// Everything that can be told without knowing what the slots hold.
    pub fn check(&self, batch: &Batch) -> Result<(), EngineError> {
        let (tokens, seqs) = (batch.num_tokens(), batch.num_seqs());
        let per_seq = [batch.slots.len(), batch.sample.len(), batch.cu_seqlens_q.len().wrapping_sub(1)];
        if [batch.positions.len(), batch.slot_mapping.len()] != [tokens; 2] || per_seq != [seqs; 3] {
            return fault("its arrays differ in length");
        }
        if tokens > self.max_batch_tokens || batch.block_tables.len() != seqs * batch.max_blocks {
            return fault(format!("{tokens} rows and {} blocks do not fit", batch.block_tables.len()));
        }
        let is_slot = |&slot: &u32| (slot as usize) < self.max_slots;
        if !batch.slots.iter().all(is_slot) || !batch.init.iter().all(|init| is_slot(&init.slot)) {
            return fault("it names a slot that does not exist");
        }
        let known = |input: &Input| match input {
            Input::Token(id) => (*id as usize) < self.vocab_size,
            Input::Sampled(slot) => is_slot(slot),
        };
        if !batch.inputs.iter().all(known) {
            return fault("a row's token is unknown or outside of the vocabulary");
        }
        let num_slots = self.kv.num_blocks * self.kv.block_size;
        let mut written = HashSet::with_capacity(tokens);
        if !batch.slot_mapping.iter().all(|&s| (s as usize) < num_slots && written.insert(s)) {
            return fault("its slot mapping names a place twice or outside of the cache");
        }
        if !batch.block_tables.iter().all(|&block| (block as usize) < self.kv.num_blocks) {
            return fault("a block table names a block outside of the cache");
        }
        self.check_extras(batch)?;
        self.check_sequences(batch)
    }

    /// What is asked for beside sampled tokens.
    fn check_extras(&self, batch: &Batch) -> Result<(), EngineError> {
        if ![0, batch.num_seqs()].contains(&batch.num_logprobs.len()) {
            return fault("its log-probabilities are not those of its sequences");
        }
        if let Some(n) = batch.num_logprobs.iter().flatten().find(|&&n| usize::from(n) > MAX_LOGPROBS) {
            return fault(format!("{n} log-probabilities, {MAX_LOGPROBS} are the most"));
        }
        self.check_copies(&batch.copies)?;
        if let Some(s) = batch.scored.iter().find(|s| s.row as usize >= batch.num_tokens() || s.id as usize >= self.vocab_size) {
            return fault(format!("row {} with token {} cannot be scored", s.row, s.id));
        }
        if !batch.scored.is_sorted_by(|a, b| a.row < b.row) || batch.scored.iter().any(|s| usize::from(s.num_logprobs) > MAX_LOGPROBS) {
            return fault(format!("its scored rows are not in order, or ask for more than {MAX_LOGPROBS} log-probabilities"));
        }
        if !batch.pools.is_empty() && batch.pools.len() != batch.num_seqs() {
            return fault("its pools are not those of its sequences");
        }
        Ok(())
    }

    /// Masks of a step of `num_seqs` sequences.
    pub fn check_masks(&self, masks: &Masks, num_seqs: usize) -> Result<(), EngineError> {
        if masks.of.len() != num_seqs {
            return fault("its masks are not those of its sequences");
        }
        let (words, num_masks) = (masks.words.len(), masks.words.len() / mask_words(self.vocab_size));
        if words != num_masks * mask_words(self.vocab_size) || num_masks > self.max_slots {
            return fault(format!("{words} words are no masks of {} ids for {} slots", self.vocab_size, self.max_slots));
        }
        if masks.of.iter().flatten().any(|&mask| mask as usize >= num_masks) {
            return fault("it names a mask that does not exist");
        }
        Ok(())
    }

    /// Copies run side by side: none reads or writes what another writes.
    fn check_copies(&self, copies: &[(u32, u32)]) -> Result<(), EngineError> {
        let mut written = HashSet::with_capacity(copies.len());
        let exist = copies.iter().all(|&(from, to)| (from.max(to) as usize) < self.kv.num_blocks && written.insert(to));
        if exist && !copies.iter().any(|(from, _)| written.contains(from)) {
            return Ok(());
        }
        fault("it copies a block that does not exist, or over one that another copy reads or writes")
    }

    fn check_sequences(&self, batch: &Batch) -> Result<(), EngineError> {
        let (tokens, mut from) = (batch.num_tokens(), 0);
        for (i, &context) in batch.context_lens.iter().enumerate() {
            let (to, context) = (batch.cu_seqlens_q[i + 1] as usize, context as usize);
            if batch.cu_seqlens_q[i] as usize != from || to <= from || to > tokens || context < to - from {
                return fault(format!("sequence {i} has rows {from}..{to} of {tokens} and a context of {context}"));
            }
            if context > self.max_context {
                return fault(format!("sequence {i} has a context of {context}, {} is the most", self.max_context));
            }
            if context.div_ceil(self.kv.block_size) > batch.max_blocks {
                return fault(format!("sequence {i} has too few blocks for a context of {context}"));
            }
            if batch.positions[from..to].iter().any(|&position| position as usize >= context) {
                return fault(format!("sequence {i} has a position outside of its context of {context}"));
            }
            from = to;
        }
        if from == tokens { Ok(()) } else { fault("rows belong to no sequence") }
    }
}

fn fault(what: impl Into<String>) -> Result<(), EngineError> {
    Err(EngineError::InvalidBatch(what.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Pool, Pooling, Scored};

    /// Two sequences: three rows of a prompt, and one that continues slot 1 at position 4.
    fn batch() -> Batch {
        Batch {
            inputs: vec![Input::Token(0), Input::Token(9), Input::Token(3), Input::Sampled(1)],
            positions: vec![0, 1, 2, 4],
            cu_seqlens_q: vec![0, 3, 4],
            context_lens: vec![3, 5],
            slot_mapping: vec![8, 9, 10, 4],
            block_tables: vec![2, 0, 0, 1],
            max_blocks: 2,
            slots: vec![0, 1],
            sample: vec![false, true],
            num_logprobs: vec![None, Some(20)],
            copies: vec![(1, 2)],
            scored: vec![Scored { row: 0, id: 9, num_logprobs: 0 }, Scored { row: 2, id: 0, num_logprobs: 20 }],
            pools: vec![None, Some(Pool { kind: Pooling::Mean, complete: true })],
            ..Batch::default()
        }
    }

    #[test]
    fn a_fault_is_named() {
        let kv = KvCapacity { num_blocks: 3, block_size: 4 };
        let limits = Limits { kv, vocab_size: 10, max_slots: 2, max_batch_tokens: 4, max_context: 6 };
        limits.check(&batch()).unwrap();
        type Spoil = fn(&mut Batch);
        let cases: [(&str, Spoil); 23] = [
            ("length", |b| b.sample.truncate(1)),
            ("length", |b| b.cu_seqlens_q.clear()),
            ("do not fit", |b| b.max_blocks = 1),
            ("slot that does not exist", |b| b.slots[0] = 2),
            ("vocabulary", |b| b.inputs[1] = Input::Token(10)),
            ("unknown", |b| b.inputs[1] = Input::Sampled(2)),
            ("twice or outside", |b| b.slot_mapping[0] = 9),
            ("twice or outside", |b| b.slot_mapping[0] = 12),
            ("names a block", |b| b.block_tables[3] = 3),
            ("rows 0..2", |b| b.context_lens[0] = 1),
            ("6 is the most", |b| b.context_lens[1] = 7),
            ("a position", |b| b.positions[3] = 5),
            ("not those of its sequences", |b| b.num_logprobs.truncate(1)),
            ("21 log-probabilities", |b| b.num_logprobs[1] = Some(21)),
            ("copies a block", |b| b.copies = vec![(0, 3)]),
            ("copies a block", |b| b.copies = vec![(2, 1), (1, 0)]),
            ("copies a block", |b| b.copies = vec![(2, 1), (0, 1)]),
            ("copies a block", |b| b.copies = vec![(1, 1)]),
            ("row 4 with token 0", |b| b.scored[1].row = 4),
            ("row 0 with token 10", |b| b.scored[0].id = 10),
            ("not in order", |b| b.scored[1].row = 0),
            ("more than 20 log", |b| b.scored[1].num_logprobs = 21),
            ("pools", |b| b.pools.truncate(1)),
        ];
        for (what, spoil) in cases {
            let mut spoilt = batch();
            spoil(&mut spoilt);
            if what == "rows 0..2" {
                spoilt.cu_seqlens_q[1] = 2;
            }
            let error = limits.check(&spoilt).unwrap_err().to_string();
            assert!(error.contains(what), "{what}: {error}");
        }
        let masks = || Masks { words: vec![1, 2], of: vec![None, Some(1)] };
        limits.check_masks(&masks(), 2).unwrap();
        for (what, spoilt) in [
            ("not those of its sequences", Masks { of: vec![None; 3], ..masks() }),
            ("3 words are no masks", Masks { words: vec![1; 3], ..masks() }),
            ("names a mask", Masks { of: vec![Some(2), None], ..masks() }),
        ] {
            let error = limits.check_masks(&spoilt, 2).unwrap_err().to_string();
            assert!(error.contains(what), "{what}: {error}");
        }
        let error = Limits { vocab_size: 40, ..limits }.check_masks(&Masks { words: vec![1; 3], ..masks() }, 2).unwrap_err();
        assert!(error.to_string().contains("3 words are no masks of 40 ids"), "a mask and a half: {error}");
        let mut wide = batch();
        wide.inputs.push(Input::Token(1));
        wide.positions.push(5);
        wide.slot_mapping.push(5);
        assert!(limits.check(&wide).unwrap_err().to_string().contains("5 rows"));
    }
}
