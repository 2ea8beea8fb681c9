//! Who runs in the next step, with how many rows.
//!
//! Decode rows come first, then running prompts in chunks within the budget, then new sequences in order of arrival. If the members of
//! a family share a prompt, one of them computes it and the others are forks: they start with its blocks and, for models with recurrent
//! state, with a copy of its state.

use std::time::Instant;

use crate::batch::{self, Chunk};
use crate::block_manager::BlockManager;
use crate::running::Running;
use crate::sequence::Sequence;
use crate::sequences::Sequences;
use engine::Batch;

/// One sequence's part of a step.
#[derive(Clone, Copy, Debug)]
pub struct Scheduled {
    pub id: u64,
    pub num_rows: usize,
    /// Tokens in the cache after the step.
    pub end: usize,
    /// Whether the engine samples the last row.
    pub sampled: bool,
    /// Rows of the prompt that are scored.
    pub num_scored: usize,
    /// The mask was late: the sampled id is ignored, and the last row runs again.
    pub withheld: bool,
}

/// The next step. Its buffers are kept from step to step.
#[derive(Default)]
pub struct Plan {
    pub batch: Batch,
    pub scheduled: Vec<Scheduled>,
}

impl Plan {
    /// Schedules up to `max_rows` rows. Blocks for the decode rows must be available: see [`Sequences::is_short_of_blocks`].
    pub fn fill(&mut self, sequences: &mut Sequences, max_rows: usize, now: Instant) {
        batch::clear(&mut self.batch);
        self.scheduled.clear();
        let (capacity, mut budget) = (sequences.blocks.num_tokens(), max_rows);
        for sequence in sequences.running.iter_mut().filter(|sequence| sequence.num_remaining(capacity) == 1) {
            budget -= self.push(sequence, &mut sequences.blocks, 1, now);
        }
        for sequence in sequences.running.iter_mut().filter(|sequence| sequence.num_remaining(capacity) > 1) {
            budget -= self.push(sequence, &mut sequences.blocks, budget, now);
        }
        while budget > 0 && self.admit(sequences, now) {
            let Some(sequence) = sequences.running.youngest_mut() else { break };
            budget -= self.push(sequence, &mut sequences.blocks, budget, now);
        }
        let running = &sequences.running;
        let tables = self.scheduled.iter().filter_map(|part| running.get(part.id)).map(|sequence| sequence.cache.block_table());
        batch::set_block_tables(&mut self.batch, tables);
    }

    /// Adds up to `budget` rows of a running sequence. Returns how many.
    fn push(&mut self, sequence: &mut Sequence, blocks: &mut BlockManager, budget: usize, now: Instant) -> usize {
        let (start, remaining) = (sequence.num_computed(), sequence.num_remaining(blocks.num_tokens()));
        let num_rows = sequence.chunk_boundary().map_or(remaining, |boundary| boundary - start).min(budget);
        let is_held_back = remaining == 1 && sequence.awaits_mask(now);
        if num_rows == 0 || is_held_back || !sequence.cache.grow(start, blocks) {
            return 0;
        }
        let (end, is_complete) = (start + num_rows, num_rows == remaining);
        let sampled = is_complete && sequence.generates();
        self.batch.sample_later |= sampled && sequence.grammar.is_some();
        if let Some(init) = sequence.take_init() {
            self.batch.init.push(init);
        }
        let (first, scored_before) = (self.batch.num_tokens(), self.batch.scored.len());
        self.batch.scored.extend(sequence.rows_to_score(start, end, first));
        let num_scored = self.batch.scored.len() - scored_before;
        let chunk = Chunk {
            engine_slot: sequence.engine_slot(),
            state_slot: sequence.cache.state_slot(),
            start,
            block_table: sequence.cache.block_table(),
            sampled,
            num_logprobs: sequence.num_logprobs,
            vector: sequence.vector(is_complete),
        };
        batch::push(&mut self.batch, chunk, (start..end).map(|position| sequence.input(position)), blocks.block_size());
        sequence.advance(num_rows, sampled);
        self.scheduled.push(Scheduled { id: sequence.id, num_rows, end, sampled, num_scored, withheld: false });
        num_rows
    }

    /// Moves the head of the queue to the running sequences, with memory for all tokens it has. False if it must wait.
    fn admit(&mut self, sequences: &mut Sequences, now: Instant) -> bool {
        let Some(mut sequence) = sequences.next_waiting() else { return false };
        // Each running sequence will need a block soon. Without this headroom the newcomer would be preempted at once.
        let headroom = sequences.running.len();
        let num_found = match self.relative(&sequence, &sequences.running, sequences.blocks.has_state()) {
            Some(relative) if self.num_computed_before(relative) < sequence.num_shared() => {
                sequences.put_back(sequence);
                return false;
            }
            Some(relative) => {
                let num_shared = sequence.num_shared();
                let copies = sequence.cache.fork(&relative.cache, num_shared, &mut sequences.blocks, headroom);
                sequence.is_fork |= copies.is_some();
                self.batch.copies.extend(copies.and_then(|copies| copies.block));
                self.batch.state_copies.extend(copies.and_then(|copies| copies.state));
                copies.map(|_| num_shared)
            }
            None => {
                let may_reuse = !sequence.needs_whole_prompt();
                sequence.cache.take(&mut sequences.blocks, &sequence.tokens, sequence.salt, may_reuse, headroom)
            }
        };
        let Some(num_found) = num_found else {
            sequences.put_back_until_release(sequence);
            return false;
        };
        sequence.admit(num_found);
        if sequence.timeline.admit(now, &sequences.metrics) {
            sequence.set_cached(num_found);
            if sequences.blocks.caches_prefixes() && !sequence.is_fork {
                sequences.metrics.prefix_cache_queries_total.inc_by(sequence.tokens.prompt.len() as u64);
                sequences.metrics.prefix_cache_hits_total.inc_by(num_found as u64);
            }
        }
        sequences.running.push(sequence);
        true
    }

    /// The running member of the sequence's family to fork from. It may still have to compute the prompt.
    fn relative<'a>(&self, sequence: &Sequence, running: &'a Running, has_state: bool) -> Option<&'a Sequence> {
        let shares = sequence.family.is_some() && sequence.num_shared() > 0 && sequence.tokens.generated.is_empty();
        if !shares || sequence.needs_whole_prompt() {
            return None;
        }
        let relatives = running.iter().filter(|relative| relative.family == sequence.family);
        // Earlier blocks stay as they are, but a state moves on: it can be copied only at the end of the shared tokens.
        let forkable = relatives.filter(|relative| !has_state || self.num_computed_before(relative) <= sequence.num_shared());
        forkable.max_by_key(|relative| self.num_computed_before(relative))
    }

    /// Tokens of a running sequence that are in the cache before this step. What this step computes or copies cannot be copied or read.
    fn num_computed_before(&self, sequence: &Sequence) -> usize {
        let is_copied = self.batch.copies.iter().any(|(_, to)| sequence.cache.block_table().last() == Some(to))
            || self.batch.state_copies.iter().any(|(_, to)| sequence.cache.state_slot() == Some(*to));
        if is_copied {
            return 0;
        }
        let part = self.scheduled.iter().find(|part| part.id == sequence.id);
        sequence.num_computed() - part.map_or(0, |part| part.num_rows)
    }

    /// Takes the step back after the engine refused it: nothing of it has run.
    pub fn undo(&self, sequences: &mut Sequences) {
        let block_size = sequences.blocks.block_size();
        for part in &self.scheduled {
            let Some(sequence) = sequences.running.get_mut(part.id) else { continue };
            let needs_init = self.batch.init.iter().any(|init| init.slot == sequence.engine_slot());
            sequence.revert(part.num_rows, part.sampled, needs_init);
            // The next step computes the tokens of a block that was to be copied.
            if self.batch.copies.iter().any(|(_, to)| sequence.cache.block_table().last() == Some(to)) {
                sequence.revert(sequence.num_computed() % block_size, false, false);
            }
        }
    }

    /// The youngest sequence of the step.
    pub fn youngest(&self) -> Option<u64> {
        self.scheduled.iter().map(|part| part.id).max()
    }

    /// The oldest sequence of the step that starts with a copy of another one's recurrent state.
    pub fn oldest_with_copied_state(&self, sequences: &Sequences) -> Option<u64> {
        let is_copied = |sequence: &&Sequence| self.batch.state_copies.iter().any(|(_, to)| sequence.cache.state_slot() == Some(*to));
        sequences.running.iter().find(is_copied).map(|sequence| sequence.id)
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
