//! Checks batches, so that no wrong one reaches a backend's kernels.

use std::cell::RefCell;
use std::ops::Deref;

use super::{Batch, EngineError, Input, KvCapacity, LoopLimits, Masks};
use logits::{MAX_LOGPROBS, mask_words};

/// The limits that an engine was opened with.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    pub kv: KvCapacity,
    /// The number of leading KV blocks with memory.
    pub num_backed: usize,
    pub vocab_size: usize,
    /// The floats of a row of embeddings.
    pub embedding_width: usize,
    /// Rows of the table of token types. 0 if the model has none.
    pub num_token_types: usize,
    /// The number of sequence slots.
    pub max_slots: usize,
    /// The most rows per batch.
    pub max_batch_tokens: usize,
    /// The most tokens per sequence.
    pub max_context: usize,
    /// Whether rows see later rows of their sequence, so that a step holds whole sequences.
    pub bidirectional: bool,
    /// The limits of loops. None: loops are refused.
    pub loops: Option<LoopLimits>,
    /// Why rows with three positions are refused. None: they are computed.
    pub refuses_grids: Option<&'static str>,
    /// Why rows that are embeddings are refused. None: they are computed.
    pub refuses_rows: Option<&'static str>,
    /// The number of places for adapters.
    pub max_adapters: usize,
}

/// A batch that passed [`Limits::check`], which alone makes one. Backends take it where their unsafe code relies on the check.
#[derive(Clone, Copy, Debug)]
pub struct CheckedBatch<'a>(&'a Batch);

impl Deref for CheckedBatch<'_> {
    type Target = Batch;

    fn deref(&self) -> &Batch {
        self.0
    }
}

impl<'a> CheckedBatch<'a> {
    /// Calls `f` with the batch as one of a model with one cache group, whose places and tables are those of `group`.
    pub fn with_group<R>(&self, group: usize, f: impl FnOnce(CheckedBatch<'_>) -> R) -> R {
        let tables = self.num_seqs() * self.max_blocks;
        if self.block_tables.len() == tables {
            return f(*self);
        }
        let block_tables = self.block_tables[group * tables..][..tables].to_vec();
        // each group's part of a checked batch passes the same check
        f(CheckedBatch(&Batch { slot_mapping: self.places(group).to_vec(), block_tables, ..self.0.clone() }))
    }

    /// The rows' places in a cache group.
    pub fn places(&self, group: usize) -> Places<'a> {
        Places(self.0.places(group))
    }
}

/// Places of the cache without duplicates, so that rows may be written in parallel.
#[derive(Clone, Copy, Debug)]
pub struct Places<'a>(&'a [u32]);

impl<'a> Places<'a> {
    /// Places below `count`. None unless they differ.
    pub fn distinct(places: &'a [u32], count: usize) -> Option<Self> {
        differ(places, count).then_some(Self(places))
    }
}

impl Deref for Places<'_> {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        self.0
    }
}

impl Limits {
    /// Checks everything that does not depend on the contents of the sequence slots.
    ///
    /// # Errors
    /// [`EngineError::InvalidBatch`] for a batch that no engine can run. [`EngineError::Unsupported`] for rows with three positions,
    /// if the model or the backend rotates by one.
    pub fn check<'a>(&self, batch: &'a Batch) -> Result<CheckedBatch<'a>, EngineError> {
        self.check_batch(batch)?;
        Ok(CheckedBatch(batch))
    }

    fn check_batch(&self, batch: &Batch) -> Result<(), EngineError> {
        let (tokens, seqs) = (batch.num_tokens(), batch.num_seqs());
        let groups = self.kv.groups.len();
        if [batch.positions.len() * groups, batch.slot_mapping.len()] != [tokens * groups; 2]
            || [batch.sequence_slots.len(), batch.cu_seqlens_q.len().wrapping_sub(1)] != [seqs; 2]
        {
            return fault("its arrays differ in length");
        }
        if tokens > self.max_batch_tokens || batch.block_tables.len() != groups * seqs * batch.max_blocks {
            return fault(format!("{tokens} rows and {} blocks do not fit", batch.block_tables.len()));
        }
        self.check_inputs(batch)?;
        if !differ(&batch.sequence_slots, self.max_slots) {
            return fault("it names a sequence slot twice, or one that does not exist");
        }
        if !batch.init.iter().all(|init| self.is_slot(&init.slot)) {
            return fault("it initialises a sequence slot that does not exist");
        }
        if !differ(&batch.slot_mapping, self.num_backed * self.kv.block_size) {
            return fault("its slot mapping names a place twice or outside of the cache");
        }
        if !batch.block_tables.iter().all(|&block| (block as usize) < self.num_backed) {
            return fault("a block table names a block outside of the cache");
        }
        self.check_sequences(batch)?;
        check_copies(&batch.copies, self.num_backed, "block")?;
        self.check_state(batch)?;
        self.check_sampled(batch)?;
        self.check_prompts(batch)?;
        self.check_adapters(batch)?;
        self.check_loop(batch)
    }

    fn check_adapters(&self, batch: &Batch) -> Result<(), EngineError> {
        if ![0, batch.num_seqs()].contains(&batch.adapters.len()) {
            return fault(format!("it has adapters for {} of {} sequences", batch.adapters.len(), batch.num_seqs()));
        }
        match batch.adapters.iter().flat_map(|of| of.iter()).find(|of| of.place as usize >= self.max_adapters || !of.scale.is_finite()) {
            Some(of) => fault(format!("an adapter at place {} of {} with the scale {}", of.place, self.max_adapters, of.scale)),
            None => Ok(()),
        }
    }

    /// Checks a batch that is a loop.
    fn check_loop(&self, batch: &Batch) -> Result<(), EngineError> {
        let (steps, seqs, block_size) = (batch.loop_steps as usize, batch.num_seqs(), self.kv.block_size);
        if steps == 0 {
            return if batch.rooms.is_empty() { Ok(()) } else { fault("it has rooms for one step") };
        }
        let Some(limits) = self.loops else { return fault("the engine has no loops") };
        if steps > limits.most_steps || !steps.is_multiple_of(limits.turn) || seqs > limits.most_seqs {
            return fault(format!("a loop of {steps} steps of {seqs} sequences, expected {limits:?}"));
        }
        let decodes = [batch.num_tokens(), batch.num_sampled(), batch.rooms.len()] == [seqs; 3];
        let asks = batch.num_logprobs.iter().any(Option::is_some) || batch.vectors.iter().any(Option::is_some) || batch.want_logits;
        let has_prompts = !(batch.copies.is_empty() && batch.state_copies.is_empty() && batch.scored.is_empty());
        let has_rows = !(batch.embeddings.is_empty() && batch.token_types.is_empty() && batch.grid_positions.is_empty());
        if !decodes || asks || has_prompts || has_rows || batch.sample_later {
            return fault("a loop has decode steps that sample each row, and nothing else");
        }
        let mut written = Vec::new();
        for (i, (&room, &context)) in batch.rooms.iter().zip(&batch.context_lens).enumerate() {
            let (room, context) = (room as usize, context as usize);
            if room < context || room >= context + steps || room > self.max_context || room.div_ceil(block_size) > batch.max_blocks {
                return fault(format!("sequence {i} has room for {room} tokens after a context of {context}"));
            }
            let blocks = (context - 1) / block_size..room.div_ceil(block_size);
            (0..self.kv.groups.len()).for_each(|group| written.extend_from_slice(&batch.block_table(group, i)[blocks.clone()]));
        }
        if differ(&written, self.num_backed) { Ok(()) } else { fault("two sequences of a loop write to one block") }
    }

    fn is_slot(&self, slot: &u32) -> bool {
        (*slot as usize) < self.max_slots
    }

    fn check_inputs(&self, batch: &Batch) -> Result<(), EngineError> {
        let num_embeddings = batch.embeddings.len() / self.embedding_width.max(1);
        if num_embeddings * self.embedding_width != batch.embeddings.len() {
            return fault(format!("{} floats are not whole embeddings of {} floats", batch.embeddings.len(), self.embedding_width));
        }
        if let Some(why) = self.refuses_rows.filter(|_| num_embeddings > 0) {
            return Err(EngineError::Unsupported(format!("rows of pictures: {why}")));
        }
        let known = |input: &Input| match input {
            Input::Token(id) => (*id as usize) < self.vocab_size,
            Input::Sampled(slot) => self.is_slot(slot),
            Input::Embedding(row) => (*row as usize) < num_embeddings,
        };
        if !batch.inputs.iter().all(known) {
            return fault("a row's input is a token outside of the vocabulary, or a sequence slot or an embedding that does not exist");
        }
        if ![0, batch.num_tokens()].contains(&batch.token_types.len()) {
            return fault("its token types are not one per row");
        }
        if !batch.grid_positions.is_empty() {
            if let Some(why) = self.refuses_grids {
                return Err(EngineError::Unsupported(format!("rows with three positions: {why}")));
            }
            if batch.grid_positions.len() != batch.num_tokens() {
                return fault("its second and third positions are not one per row");
            }
        }
        match batch.token_types.iter().find(|&&kind| kind as usize >= self.num_token_types.max(1)) {
            Some(kind) => fault(format!("a row is of token type {kind}, but the model has {} types", self.num_token_types)),
            None => Ok(()),
        }
    }

    fn check_sequences(&self, batch: &Batch) -> Result<(), EngineError> {
        let (tokens, mut from) = (batch.num_tokens(), 0);
        for (i, &context) in batch.context_lens.iter().enumerate() {
            let (to, context) = (batch.cu_seqlens_q[i + 1] as usize, context as usize);
            if batch.cu_seqlens_q[i] as usize != from || to <= from || to > tokens || context < to - from {
                return fault(format!("sequence {i} has rows {from}..{to} of {tokens} and a context of {context}"));
            }
            if context > self.max_context {
                return fault(format!("sequence {i} has a context of {context}, expected at most {}", self.max_context));
            }
            if context.div_ceil(self.kv.block_size) > batch.max_blocks {
                return fault(format!("sequence {i} has too few blocks for a context of {context}"));
            }
            if self.bidirectional && context != to - from {
                return fault(format!("sequence {i} has {} of {context} rows, and its rows see each other", to - from));
            }
            if batch.positions[from..to].iter().zip(batch.indices(i)).any(|(&position, index)| position > index) {
                return fault(format!("sequence {i} has a position beyond its row's index"));
            }
            from = to;
        }
        self.check_runs(batch)?;
        if from == tokens { Ok(()) } else { fault("rows belong to no sequence") }
    }

    /// Checks that whole runs lie apart, each within a sequence.
    fn check_runs(&self, batch: &Batch) -> Result<(), EngineError> {
        let mut end = 0;
        for &(first, len) in &batch.whole_runs {
            let within = batch.cu_seqlens_q.partition_point(|&start| start <= first);
            let last = batch.cu_seqlens_q.get(within).copied().unwrap_or(0);
            if first < end || len == 0 || first.checked_add(len).is_none_or(|run_end| run_end > last) {
                return fault(format!("a whole run of {len} rows from row {first} overlaps another one, or is not in one sequence"));
            }
            end = first + len;
        }
        Ok(())
    }

    fn check_state(&self, batch: &Batch) -> Result<(), EngineError> {
        let due = if self.kv.has_state() { batch.num_seqs() } else { 0 };
        if batch.state_slots.len() != due {
            return fault(format!("it names {} state slots, expected {due}", batch.state_slots.len()));
        }
        if !differ(&batch.state_slots, self.kv.num_state_slots) {
            return fault("it names a state slot twice, or one that does not exist");
        }
        check_copies(&batch.state_copies, self.kv.num_state_slots, "state slot")
    }

    fn check_sampled(&self, batch: &Batch) -> Result<(), EngineError> {
        let in_batch = batch.sampled_rows.last().is_none_or(|&row| (row as usize) < batch.num_tokens());
        if !in_batch || !batch.sampled_rows.is_sorted_by(|a, b| a < b) {
            return fault("its sampled rows are not in order, or not in the batch");
        }
        if ![0, batch.num_sampled()].contains(&batch.num_logprobs.len()) {
            return fault("its log-probabilities are not one per sampled row");
        }
        match batch.num_logprobs.iter().flatten().find(|&&n| usize::from(n) > MAX_LOGPROBS) {
            Some(n) => fault(format!("a row asks for {n} log-probabilities, expected at most {MAX_LOGPROBS}")),
            None => Ok(()),
        }
    }

    /// Checks scored rows and vectors.
    fn check_prompts(&self, batch: &Batch) -> Result<(), EngineError> {
        if let Some(s) = batch.scored.iter().find(|s| s.row as usize >= batch.num_tokens() || s.id as usize >= self.vocab_size) {
            return fault(format!("row {} with token {} cannot be scored", s.row, s.id));
        }
        if !batch.scored.is_sorted_by(|a, b| a.row < b.row) || batch.scored.iter().any(|s| usize::from(s.num_logprobs) > MAX_LOGPROBS) {
            return fault(format!("its scored rows are not in order, or ask for more than {MAX_LOGPROBS} log-probabilities"));
        }
        if ![0, batch.num_seqs()].contains(&batch.vectors.len()) {
            return fault("its vectors are not one per sequence");
        }
        Ok(())
    }

    /// Checks the masks of a step with `num_sampled` sampled rows.
    pub fn check_masks(&self, masks: &Masks, num_sampled: usize) -> Result<(), EngineError> {
        if masks.of.len() != num_sampled {
            return fault(format!("it has masks for {} rows, expected {num_sampled}", masks.of.len()));
        }
        let (words, num_masks) = (masks.words.len(), masks.words.len() / mask_words(self.vocab_size));
        if words != num_masks * mask_words(self.vocab_size) || num_masks > num_sampled {
            return fault(format!("{words} words are not masks of {} ids for {num_sampled} rows", self.vocab_size));
        }
        if masks.of.iter().flatten().any(|&mask| mask as usize >= num_masks) {
            return fault("it names a mask that does not exist");
        }
        Ok(())
    }
}

/// Checks that copies may run in parallel: none reads or writes what another one writes.
fn check_copies(copies: &[(u32, u32)], count: usize, what: &str) -> Result<(), EngineError> {
    if are_apart(copies.iter().map(|&(_, to)| to), copies.iter().map(|&(from, _)| from), count) {
        return Ok(());
    }
    fault(format!("it copies a {what} that does not exist, or over one that another copy reads or writes"))
}

thread_local! {
    /// One bit per index, all 0 between two checks. A thread owns its engine, so each step reuses the memory of the step before.
    static MARKS: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Whether all indices are below `count` and distinct.
fn differ(indices: &[u32], count: usize) -> bool {
    are_apart(indices.iter().copied(), std::iter::empty(), count)
}

/// Whether all indices are below `count`, and no written index is written twice or read.
fn are_apart(written: impl Iterator<Item = u32> + Clone, mut read: impl Iterator<Item = u32>, count: usize) -> bool {
    let exists = |index: u32| (index as usize) < count;
    let place = |index: u32| (index as usize / 64, 1 << (index % 64));
    MARKS.with_borrow_mut(|marks| {
        if marks.len() < count.div_ceil(64) {
            marks.resize(count.div_ceil(64), 0);
        }
        let mut mark = |index| {
            let (word, bit) = place(index);
            let is_new = marks[word] & bit == 0;
            marks[word] |= bit;
            is_new
        };
        let differ = written.clone().all(|index| exists(index) && mark(index));
        let is_unmarked = |index| marks[place(index).0] & place(index).1 == 0;
        let are_apart = differ && read.all(|index| exists(index) && is_unmarked(index));
        written.filter(|&index| exists(index)).for_each(|index| marks[place(index).0] = 0);
        are_apart
    })
}

fn fault(what: impl Into<String>) -> Result<(), EngineError> {
    Err(EngineError::InvalidBatch(what.into()))
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
