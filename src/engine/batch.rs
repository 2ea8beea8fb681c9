//! What a step computes: one flat [`Batch`] goes down to the engine, and one [`StepOutput`] comes back.

use std::ops::Range;
use std::sync::Arc;

use super::KvCapacity;
use logits::{Logprobs, SamplingParams, mask_words};
use model::Pooling;

/// Where a row comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// A token id that the host knows.
    Token(u32),
    /// The last id that this sequence slot sampled, in the step before. The id need not have visited the host.
    Sampled(u32),
    /// A row of [`Batch::embeddings`]. It enters the model where a token's embedding would, after the model's embedding scale:
    /// the engine does not scale it. Learned position embeddings are added to it, as they are to a token.
    Embedding(u32),
}

/// (Re)initialises a sequence slot before the step that carries it. The sampling state lives beside the engine.
#[derive(Clone, Debug)]
pub struct SlotInit {
    /// The sequence slot.
    pub slot: u32,
    pub params: Arc<SamplingParams>,
    /// The prompt's ids, which the repetition penalty sees.
    pub prompt: Arc<[u32]>,
    /// Ids generated so far. Not empty if a preempted sequence resumes.
    pub generated: Vec<u32>,
}

/// A row whose distribution is wanted though nothing is drawn from it. The step returns the log-probability of the token that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scored {
    /// Index of the row in the batch.
    pub row: u32,
    /// The token that follows the row.
    pub id: u32,
    /// As in [`Batch::num_logprobs`].
    pub num_logprobs: u8,
}

/// Asks for a sequence's vector. Such a sequence begins at position 0, without a cached prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VectorRequest {
    pub pooling: Pooling,
    /// Whether the sequence ends with this step, which then returns the vector.
    pub complete: bool,
}

/// One step's work as flat arrays. A sequence is a run of consecutive rows; decode is a run of one.
///
/// Order of a step: `init`, then `copies` and `state_copies`, then resets of state slots, then the forward pass, then sampling.
///
/// **Sampled rows.** `sampled_rows` lists the rows to sample in ascending order, any number per sequence. The sequence slot of a row is
/// the slot of its sequence. A sequence's rows are sampled one after the other, and each is sampled as if the tokens of the earlier ones
/// had been generated before. If the row that follows a sampled row holds any other input than the token just sampled (a draft that
/// was wrong), the sequence's later rows have no context to be sampled in: each gives [`Sampled::Skipped`] and leaves the slot alone.
/// So the slot knows exactly the tokens that generating one at a time would have given, with the same bits.
///
/// **Cache groups.** A sequence has a block table per cache group ([`KvCapacity::groups`](crate::KvCapacity::groups)), and a row a place
/// for each of them. Blocks that a group's window has left are 0 in its table and are never read. A block belongs to one group at a time.
///
/// **State slots.** A model with recurrent state ([`KvCapacity::has_state`](crate::KvCapacity::has_state)) keeps the state of each
/// sequence in a state slot. A step reads the state of every sequence and leaves it as it is after the sequence's last row. A sequence
/// whose first row is at position 0 starts from zeros, whatever its slot held.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub inputs: Vec<Input>,     // [num_tokens]
    pub positions: Vec<u32>,    // [num_tokens] absolute position of each row
    pub token_types: Vec<u32>,  // [num_tokens] BERT's segment of each row; empty if all are 0
    pub cu_seqlens_q: Vec<u32>, // [num_seqs + 1] rows of sequence i: cu_seqlens_q[i]..cu_seqlens_q[i + 1]
    pub context_lens: Vec<u32>, // [num_seqs] tokens in the cache after this step
    pub slot_mapping: Vec<u32>, // [num_groups, num_tokens] block * block_size + offset: where the row's K and V go
    pub block_tables: Vec<u32>, // [num_groups, num_seqs, max_blocks] row-major, padded with 0
    pub max_blocks: usize,
    pub sequence_slots: Vec<u32>, // [num_seqs] the sampling state of each sequence
    pub state_slots: Vec<u32>,    // [num_seqs] the recurrent state of each sequence; empty for models without recurrent state
    pub sampled_rows: Vec<u32>,   // [num_sampled] rows to sample, ascending
    /// [num_sampled] `Some(n)`: return the log-probabilities of the sampled id and of the `n` likeliest, n <= 20. Empty if none are wanted.
    pub num_logprobs: Vec<Option<u8>>,
    pub init: Vec<SlotInit>, // sequence slots to (re)initialise first
    /// (from, to): KV blocks that are copied whole before the step's rows are written.
    pub copies: Vec<(u32, u32)>,
    /// (from, to): state slots that are copied before the step's rows run.
    pub state_copies: Vec<(u32, u32)>,
    pub embeddings: Vec<f32>,                // [num_embeddings, hidden]
    pub scored: Vec<Scored>,                 // [num_scored] ascending by row
    pub vectors: Vec<Option<VectorRequest>>, // [num_seqs], or empty if none are wanted
    pub sample_later: bool,                  // sample nothing before `Engine::sample`: the masks are not known yet
    pub want_logits: bool,                   // return the raw logits of every sampled row (tests, `penstock logits`)
}

impl Batch {
    pub fn num_tokens(&self) -> usize {
        self.inputs.len()
    }

    pub fn num_seqs(&self) -> usize {
        self.context_lens.len()
    }

    pub fn num_sampled(&self) -> usize {
        self.sampled_rows.len()
    }

    /// The rows of sequence `i`.
    pub fn rows(&self, i: usize) -> Range<usize> {
        self.cu_seqlens_q[i] as usize..self.cu_seqlens_q[i + 1] as usize
    }

    /// Repeats the tables and places of one group for all of `capacity`, for callers that lay their blocks out themselves: those of the
    /// first group lie in the first part of the pool, and those of each further one in a part of its own.
    #[must_use]
    pub fn in_all_groups(mut self, capacity: &KvCapacity) -> Self {
        let part = (capacity.num_blocks / capacity.groups.len()) as u32;
        let (places, blocks, copies) = (self.slot_mapping.len(), self.block_tables.len(), self.copies.clone());
        for group in 1..capacity.groups.len() as u32 {
            self.slot_mapping.extend_from_within(..places);
            self.slot_mapping[group as usize * places..].iter_mut().for_each(|place| *place += group * part * capacity.block_size as u32);
            self.block_tables.extend_from_within(..blocks);
            self.block_tables[group as usize * blocks..].iter_mut().for_each(|block| *block += group * part);
            self.copies.extend(copies.iter().map(|(from, to)| (from + group * part, to + group * part)));
        }
        self
    }

    /// The places of the rows in a cache group.
    pub fn places(&self, group: usize) -> &[u32] {
        &self.slot_mapping[group * self.num_tokens()..][..self.num_tokens()]
    }

    /// The block table of sequence `i` in a cache group.
    pub fn block_table(&self, group: usize, i: usize) -> &[u32] {
        &self.block_tables[(group * self.num_seqs() + i) * self.max_blocks..][..self.max_blocks]
    }

    /// The sequence of each sampled row, in the order of `sampled_rows`.
    pub fn sampled_seqs(&self) -> impl Iterator<Item = usize> {
        let mut i = 0;
        self.sampled_rows.iter().map(move |&row| {
            while self.cu_seqlens_q[i + 1] <= row {
                i += 1;
            }
            i
        })
    }

    /// How many log-probabilities sampled row `k` asks for, beside that of the sampled id.
    pub(crate) fn num_logprobs(&self, k: usize) -> Option<usize> {
        self.num_logprobs.get(k)?.map(usize::from)
    }
}

/// The ids that a step's sampled rows may take. They are made while the forward pass runs: see [`Batch::sample_later`].
#[derive(Clone, Debug, Default)]
pub struct Masks {
    pub words: Vec<u32>,      // [num_masks, ceil(vocab / 32)] one bit per id; 0 forbids the id
    pub of: Vec<Option<u32>>, // [num_sampled] index of the row's mask; None allows every id
}

impl Masks {
    /// The ids that sampled row `k` may take.
    pub(crate) fn row(&self, k: usize, vocab: usize) -> Option<&[u32]> {
        let index = (*self.of.get(k)?)? as usize;
        Some(&self.words[index * mask_words(vocab)..][..mask_words(vocab)])
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepId(pub u64);

/// What a sampled row gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampled {
    Token(u32),
    /// The row's logits held NaN or only infinities. Only this request fails.
    NotFinite,
    /// An earlier row of the sequence sampled another token than the batch went on with, or none (see [`Batch`]).
    Skipped,
}

#[derive(Clone, Debug, Default)]
pub struct StepOutput {
    pub sampled: Vec<Sampled>, // [num_sampled]
    pub logits: Vec<Vec<f32>>, // [num_sampled][vocab], or empty if not wanted
    /// [num_sampled] from the raw logits, for rows that asked and got a token. None also if the raw row is no distribution, because a
    /// mask hid a +inf. Empty if none were wanted.
    pub logprobs: Vec<Option<Logprobs>>,
    /// [num_scored] from the raw logits. None: the row is no distribution.
    pub scored: Vec<Option<Logprobs>>,
    pub vectors: Vec<Vec<f32>>, // [num_seqs][hidden] for complete ones, else an empty vector; empty if none were wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sampled_row_belongs_to_the_sequence_that_holds_it() {
        let batch = Batch { cu_seqlens_q: vec![0, 3, 4, 6, 7], sampled_rows: vec![0, 2, 4, 5, 6], ..Batch::default() };
        assert_eq!(batch.sampled_seqs().collect::<Vec<_>>(), [0, 0, 2, 2, 3]);
        assert_eq!(batch.rows(2), 4..6);
    }
}
