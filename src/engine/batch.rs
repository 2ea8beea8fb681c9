//! Defines the data that crosses the seam: one flat [`Batch`] goes down to the engine per step, and one [`StepOutput`] comes back.

use std::ops::Range;
use std::sync::Arc;

use super::{KvCapacity, SequenceAdapters};
use logits::{Logprobs, SamplingParams, mask_words};
use model::Pooling;

/// The source of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// A token id that the host knows.
    Token(u32),
    /// The last id that this sequence slot sampled in the previous step. The host need not have seen the id.
    Sampled(u32),
    /// A row of [`Batch::embeddings`]. It replaces a token's embedding after the model's embedding scale, so the engine does not scale it.
    /// Learned position embeddings are added to it as to a token's.
    Embedding(u32),
}

/// Initialises a sequence slot, or initialises it again, before the step that carries this. The sampling state of the slot lives outside
/// the engine.
#[derive(Clone, Debug)]
pub struct SlotInit {
    /// The sequence slot.
    pub slot: u32,
    pub params: Arc<SamplingParams>,
    /// The ids of the prompt's tokens, for the repetition penalty. Rows that are embeddings have none.
    pub prompt: Arc<[u32]>,
    /// The ids generated so far. Not empty if a preempted sequence resumes.
    pub generated: Vec<u32>,
}

/// A row that is scored, not sampled. The step returns the log-probability of the token that follows the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scored {
    /// The row's index in the batch.
    pub row: u32,
    /// The token that follows the row.
    pub id: u32,
    /// The number of likeliest tokens to return, as in [`Batch::num_logprobs`].
    pub num_logprobs: u8,
}

/// A request for a sequence's vector. All its rows must run, without a cached prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VectorRequest {
    pub pooling: Pooling,
    /// Whether the sequence ends with this step, which then returns the vector.
    pub complete: bool,
}

/// A sequence whose next tokens a draft head guesses. Every row before that of `token` is in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DraftRequest {
    pub slot: u32,
    /// The sequence's last token, whose row has not run.
    pub token: u32,
    /// The place of that row in the context, from 1 on.
    pub index: u32,
    /// The position of that row, by which it is rotated.
    pub position: u32,
    /// The blocks of the rows before it, in the cache group of the head ([`DraftHeadInfo::group`](crate::DraftHeadInfo)).
    pub blocks: Vec<u32>,
    /// The number of tokens to guess: at most [`MAX_HEAD_DRAFTS`].
    pub most: usize,
}

/// The most tokens that a draft head guesses at once.
pub const MAX_HEAD_DRAFTS: usize = 16;

/// The work of one step, as flat arrays. A sequence is a run of consecutive rows. Decode is a run of one row.
///
/// A step runs in this order: `init`, then `copies` and `state_copies`, then resets of state slots, then the forward pass, then sampling.
///
/// **Sampled rows.** `sampled_rows` lists the rows to sample in ascending order, any number per sequence. A row's sequence slot is the slot
/// of its sequence. The rows of a sequence are sampled in order, and each is sampled as if the tokens of the earlier rows had been
/// generated before. If the row after a sampled row holds another input than the token just sampled (a wrong draft), the sequence's later
/// rows have no valid context: each gives [`Sampled::Skipped`] and leaves the slot alone. So the slot sees exactly the tokens that
/// generating one at a time would have given, with the same bits.
///
/// **Positions.** The rows of a sequence are the last ones of its context ([`Batch::indices`]). Their order, not their position, says where
/// their K and V go and what they see. A position is at most the row's index. It is less behind rows that share positions, as those of a
/// picture do in some models.
///
/// **Cache groups.** A sequence has a block table per cache group ([`KvCapacity::groups`](crate::KvCapacity::groups)), and a row has a
/// place in each group. Table entries of blocks that a group's window has left are 0 and are never read. A block belongs to one group at a
/// time.
///
/// **State slots.** A model with recurrent state ([`KvCapacity::has_state`](crate::KvCapacity::has_state)) keeps the state of each sequence
/// in a state slot. A step reads the state of every sequence and writes back the state after the sequence's last row, or, if the engine
/// keeps states ([`EngineInfo::draft_states`](crate::EngineInfo)), after the last sampled row that was not skipped. A sequence whose
/// first row begins its context starts from zeros, whatever its slot held.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub inputs: Vec<Input>,  // [num_tokens]
    pub positions: Vec<u32>, // [num_tokens] position of each row, by which it is rotated; see below
    /// [num_tokens] each row's second and third position, for models that rotate by three (M-RoPE). Empty if all equal the first. Only
    /// rotations read them.
    pub grid_positions: Vec<[u32; 2]>,
    pub token_types: Vec<u32>,  // [num_tokens] BERT's segment of each row; empty if all are 0
    pub cu_seqlens_q: Vec<u32>, // [num_seqs + 1] rows of sequence i: cu_seqlens_q[i]..cu_seqlens_q[i + 1]
    pub context_lens: Vec<u32>, // [num_seqs] tokens in the cache after this step
    pub slot_mapping: Vec<u32>, // [num_groups, num_tokens] block * block_size + offset: where the row's K and V go
    pub block_tables: Vec<u32>, // [num_groups, num_seqs, max_blocks] row-major, padded with 0
    pub max_blocks: usize,
    pub sequence_slots: Vec<u32>, // [num_seqs] the sampling state of each sequence
    pub state_slots: Vec<u32>,    // [num_seqs] the recurrent state of each sequence; empty for models without recurrent state
    pub sampled_rows: Vec<u32>,   // [num_sampled] rows to sample, ascending
    /// [num_sampled] `Some(n)`: return the log-probabilities of the sampled id and of the `n` likeliest ids, n <= 20. Empty if no row asks.
    pub num_logprobs: Vec<Option<u8>>,
    pub init: Vec<SlotInit>, // sequence slots to (re)initialise first
    /// (from, to): KV blocks to copy whole before the step's rows are written.
    pub copies: Vec<(u32, u32)>,
    /// (from, to): state slots to copy before the step's rows run.
    pub state_copies: Vec<(u32, u32)>,
    pub embeddings: Vec<f32>, // [num_embeddings, embedding width]
    /// The rows that see each other in layers that say so: the first one and their number, in ascending order, each run in one sequence.
    pub whole_runs: Vec<(u32, u32)>,
    /// [num_seqs] the adapters of each sequence, or empty if no sequence has any.
    pub adapters: Vec<SequenceAdapters>,
    pub scored: Vec<Scored>,                 // [num_scored] ascending by row
    pub vectors: Vec<Option<VectorRequest>>, // [num_seqs], or empty if no sequence asks
    pub sample_later: bool,                  // wait for `Engine::sample` before sampling, because the masks are not known yet
    pub want_logits: bool,                   // return the raw logits of every sampled row (tests, `penstock logits`)
    pub want_draft_logits: bool,             // return the draft head's raw logits of every sampled row
    /// 0: one step. Otherwise a loop of so many decode steps at most: the first is that of the arrays, and each other one continues all
    /// sequences with what they have just sampled. See [`Engine::loop_limits`](crate::Engine::loop_limits).
    pub loop_steps: u32,
    /// [num_seqs] of a loop: the tokens that each sequence may have in the cache, for which its block tables have places. A sequence
    /// without room for a step samples ids of no meaning there. Empty for one step.
    pub rooms: Vec<u32>,
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

    /// The places of sequence `i`'s rows in its context.
    pub fn indices(&self, i: usize) -> Range<u32> {
        let end = self.context_lens[i];
        end - self.rows(i).len() as u32..end
    }

    /// The three positions of a row.
    pub fn positions_of(&self, row: usize) -> [u32; 3] {
        let first = self.positions[row];
        let [second, third] = self.grid_positions.get(row).copied().unwrap_or([first; 2]);
        [first, second, third]
    }

    /// Whether sequence `i` begins with this step.
    pub fn begins(&self, i: usize) -> bool {
        self.indices(i).start == 0
    }

    /// Repeats the tables and places of one group for all groups of `capacity`, for callers that lay out their blocks themselves. The pool
    /// is cut into one part per group, and each group uses its own part.
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

    /// The rows' places in a cache group.
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

    /// The number of log-probabilities that sampled row `k` asks for besides that of the sampled id.
    pub(crate) fn num_logprobs(&self, k: usize) -> Option<usize> {
        self.num_logprobs.get(k)?.map(usize::from)
    }
}

/// The ids that the sampled rows of a step may take. They are computed while the forward pass runs: see [`Batch::sample_later`].
#[derive(Clone, Debug, Default)]
pub struct Masks {
    pub words: Vec<u32>,      // [num_masks, ceil(vocab / 32)] one bit per id; 0 forbids the id
    pub of: Vec<Option<u32>>, // [num_sampled] index of the row's mask; None allows every id
}

impl Masks {
    /// Adds a mask. Returns its index.
    pub fn add(&mut self, words: &[u32]) -> u32 {
        self.words.extend_from_slice(words);
        (self.words.len() / words.len().max(1) - 1) as u32
    }

    /// The ids that sampled row `k` may take.
    pub(crate) fn row(&self, k: usize, vocab: usize) -> Option<&[u32]> {
        let index = (*self.of.get(k)?)? as usize;
        Some(&self.words[index * mask_words(vocab)..][..mask_words(vocab)])
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepId(pub u64);

/// The outcome of a sampled row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampled {
    Token(u32),
    /// The row's logits held a NaN, or no finite value. Only this request fails.
    NotFinite,
    /// An earlier row of the sequence sampled no token, or another token than the batch's next row holds (see [`Batch`]).
    Skipped,
}

#[derive(Clone, Debug, Default)]
pub struct StepOutput {
    pub sampled: Vec<Sampled>, // [num_sampled]; empty if a loop has ended before its next step
    pub goes_on: bool,         // whether further steps of a loop are to be collected
    pub logits: Vec<Vec<f32>>, // [num_sampled][vocab], or empty if not wanted
    /// [num_sampled][vocab] what the draft head says about the token behind the next one; empty if not wanted.
    pub draft_logits: Vec<Vec<f32>>,
    /// [num_sampled] computed from the raw logits, for rows that asked and got a token. Also None if the raw row is not a distribution
    /// because a mask hid a +inf. Empty if no row asked.
    pub logprobs: Vec<Option<Logprobs>>,
    /// [num_scored] computed from the raw logits. None if the row is not a distribution.
    pub scored: Vec<Option<Logprobs>>,
    pub vectors: Vec<Vec<f32>>, // [num_seqs][hidden], an empty vector for sequences that are not complete; empty if no sequence asked
    /// [num_tokens, hidden] the rows of the residual stream, from an engine whose layers are not the last ones; otherwise empty.
    pub stream: Vec<f32>,
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

    #[test]
    fn rows_are_the_last_of_their_context() {
        let batch = Batch { cu_seqlens_q: vec![0, 3, 4], context_lens: vec![3, 9], ..Batch::default() };
        assert_eq!((batch.indices(0), batch.begins(0)), (0..3, true));
        assert_eq!((batch.indices(1), batch.begins(1)), (8..9, false));
    }
}
