//! What the next step carries: decode rows first, then prompts in chunks within the budget, then new sequences in their order
//! of arrival. Where blocks run out, the youngest sequence gives up its own and is recomputed later.
//!
//! Invariant: every running sequence arrived before every waiting one. Admission is strictly first come, first served, and a
//! preempted sequence, the youngest, returns to the queue's head. So the oldest always gets on, and nobody starves.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::batch::{self, Rows};
use super::prefix::ROOT;
use super::scheduler::{Row, Scheduler};
use super::sequence::Sequence;
use crate::engine::Pool;

impl Scheduler {
    /// Fills the batch. False, and nothing is scheduled: blocks ran out while steps are in flight, which must be collected before
    /// a sequence can be preempted, since its last token is not known yet.
    pub(super) fn schedule(&mut self, now: Instant) -> bool {
        batch::clear(&mut self.batch);
        self.rows.clear();
        while self.num_blocks_to_grow() > self.blocks.num_available() {
            if !self.in_flight.is_empty() {
                return false;
            }
            self.preempt_youngest();
        }
        let mut budget = self.options.max_batch_tokens;
        for index in 0..self.running.len() {
            if self.running[index].num_remaining(self.blocks.num_tokens()) == 1 && !self.running[index].awaits_mask() {
                budget -= self.push_rows(index, 1);
            }
        }
        for index in 0..self.running.len() {
            if self.running[index].num_remaining(self.blocks.num_tokens()) > 1 && budget > 0 {
                budget -= self.push_rows(index, budget);
            }
        }
        while budget > 0 && self.admit(now) {
            budget -= self.push_rows(self.running.len() - 1, budget);
        }
        batch::set_block_tables(&mut self.batch, self.rows.iter().map(|row| &self.running[row.index].block_table[..]));
        true
    }

    /// Blocks that this step's decode rows need beyond those held. Prompts got theirs at admission.
    fn num_blocks_to_grow(&self) -> usize {
        let (capacity, block_size) = (self.blocks.num_tokens(), self.blocks.block_size());
        let grows = |s: &&Sequence| s.num_computed == s.block_table.len() * block_size && s.num_remaining(capacity) > 0;
        self.running.iter().filter(grows).count()
    }

    /// Adds up to `budget` rows of a running sequence; how many. Its blocks are there, or free (see `num_blocks_to_grow`).
    fn push_rows(&mut self, index: usize, budget: usize) -> usize {
        let sequence = &mut self.running[index];
        let remaining = sequence.num_remaining(self.blocks.num_tokens());
        let start = sequence.num_computed;
        // A family's prompt is first computed as far as it is shared, so that its last token's rows run side by side.
        let shared = if sequence.family.is_some() { sequence.num_shared() } else { 0 };
        let whole = if start < shared { shared - start } else { remaining };
        let count = whole.min(budget);
        let (end, sample) = (start + count, count == remaining && sequence.max_tokens > 0);
        if start == sequence.block_table.len() * self.blocks.block_size() {
            match self.blocks.allocate() {
                Some(block) => sequence.block_table.push(block),
                None => return 0,
            }
        }
        if std::mem::take(&mut sequence.needs_init) {
            self.batch.init.push(sequence.slot_init());
        }
        let (first, scored_before) = (self.batch.num_tokens(), self.batch.scored.len());
        self.batch.scored.extend(sequence.rows_to_score(start, end, first));
        let num_scored = self.batch.scored.len() - scored_before;
        let pool = sequence.pool.map(|kind| Pool { kind, complete: count == remaining });
        let num_logprobs = sequence.num_logprobs;
        let rows = Rows { slot: sequence.slot, start, block_table: &sequence.block_table, sample, num_logprobs, pool };
        batch::push(&mut self.batch, rows, (start..end).map(|position| sequence.input(position)), self.blocks.block_size());
        sequence.num_computed = end;
        sequence.num_pending += usize::from(sample);
        self.rows.push(Row { id: sequence.id, index, end, sample, num_scored });
        count
    }

    /// Moves the queue's head among the running, with blocks for all of its known tokens; false where it must wait.
    fn admit(&mut self, now: Instant) -> bool {
        if self.running.len() >= self.options.max_running || self.blocked_at == Some(self.blocks.num_releases()) {
            return false;
        }
        let Some(mut sequence) = self.waiting.pop_front() else { return false };
        let relative = self.relative(&sequence);
        if relative.is_some_and(|index| self.num_computed_before(index) < sequence.num_shared()) {
            self.waiting.push_front(sequence);
            return false;
        }
        let found = match relative {
            Some(index) => self.fork_blocks(index, &mut sequence),
            None => self.take_blocks(&mut sequence),
        };
        if !found {
            self.waiting.push_front(sequence);
            self.blocked_at = Some(self.blocks.num_releases());
            return false;
        }
        let Some(slot) = self.free_slots.pop_front() else { unreachable!("fewer sequences run than there are slots") };
        sequence.slot = slot;
        sequence.needs_init = true;
        if sequence.admitted.is_none() {
            sequence.admitted = Some(now);
            sequence.num_cached.store(sequence.num_computed as u32, Ordering::Release);
            self.metrics.request_queue_time_seconds.observe((now - sequence.arrived).as_secs_f64());
            if self.blocks.caches_prefixes() && !sequence.is_fork {
                self.metrics.prefix_cache_queries_total.inc_by(sequence.prompt.len() as u64);
                self.metrics.prefix_cache_hits_total.inc_by(sequence.num_computed as u64);
            }
        }
        sequence.leave_queue();
        self.running.push(sequence);
        true
    }

    /// The running sequence whose prompt's blocks `sequence` may share, be it that they are not computed yet.
    fn relative(&self, sequence: &Sequence) -> Option<usize> {
        let shares = sequence.family.is_some() && sequence.num_shared() > 0 && sequence.generated.is_empty();
        if !shares || sequence.needs_whole_prompt() {
            return None;
        }
        // the one that got furthest
        let relatives = (0..self.running.len()).filter(|&index| self.running[index].family == sequence.family);
        relatives.max_by_key(|&index| self.num_computed_before(index))
    }

    /// Tokens of a running sequence that are in the cache before this step runs: what it computes or copies can be neither copied nor read.
    fn num_computed_before(&self, index: usize) -> usize {
        if self.batch.copies.iter().any(|(_, to)| self.running[index].block_table.last() == Some(to)) {
            return 0;
        }
        let rows = self.rows.iter().zip(self.batch.cu_seqlens_q.windows(2)).find(|(row, _)| row.index == index);
        self.running[index].num_computed - rows.map_or(0, |(_, bounds)| (bounds[1] - bounds[0]) as usize)
    }

    /// The blocks of a relative's prompt, of which the last, that this one will write to, is copied where it is begun.
    fn fork_blocks(&mut self, relative: usize, sequence: &mut Sequence) -> bool {
        // Headroom as in `take_blocks`.
        if 1 + self.running.len() > self.blocks.num_available() {
            return false;
        }
        let Some(own) = self.blocks.allocate() else { return false };
        let (num_shared, block_size) = (sequence.num_shared(), self.blocks.block_size());
        let table = &self.running[relative].block_table;
        let num_full = num_shared / block_size;
        for &block in &table[..num_full] {
            self.blocks.share(block);
            sequence.block_table.push(block);
        }
        if !num_shared.is_multiple_of(block_size) {
            self.batch.copies.push((table[num_full], own));
        }
        sequence.block_table.push(own);
        sequence.num_computed = num_shared;
        sequence.num_registered = 0;
        sequence.last_content = ROOT;
        sequence.is_fork = true;
        true
    }

    /// Cached blocks of the longest known prefix (at least one token is left to compute, for its logits), then blocks of its own.
    fn take_blocks(&mut self, sequence: &mut Sequence) -> bool {
        let (block_size, num_known) = (self.blocks.block_size(), sequence.num_known());
        debug_assert!(sequence.block_table.is_empty());
        let mut content = ROOT;
        let num_reusable = if sequence.needs_whole_prompt() { 0 } else { (num_known - 1) / block_size };
        for index in 0..num_reusable {
            sequence.copy_block(index, block_size, &mut self.scratch);
            let Some((block, id)) = self.blocks.acquire_cached(sequence.salt, content, &self.scratch) else { break };
            sequence.block_table.push(block);
            content = id;
        }
        let needed = num_known.div_ceil(block_size) - sequence.block_table.len();
        // Each running sequence will want a block soon: without headroom the newcomer would be preempted at once.
        if needed + self.running.len() > self.blocks.num_available() {
            self.release_blocks(sequence);
            return false;
        }
        sequence.num_registered = sequence.block_table.len();
        sequence.last_content = content;
        sequence.num_computed = sequence.num_registered * block_size;
        sequence.block_table.extend((0..needed).map_while(|_| self.blocks.allocate()));
        true
    }

    fn preempt_youngest(&mut self) {
        let Some(mut sequence) = self.running.pop() else { return };
        debug_assert_eq!(sequence.num_pending, 0, "preempted with a token in flight");
        self.release_blocks(&mut sequence);
        self.free_slots.push_back(sequence.slot);
        self.metrics.num_preemptions_total.inc();
        self.waiting.push_front(sequence);
    }

    /// Takes a sequence's blocks back, last first, so that the prefix cache evicts what follows before what precedes.
    pub(super) fn release_blocks(&mut self, sequence: &mut Sequence) {
        while let Some(block) = sequence.block_table.pop() {
            self.blocks.release(block);
        }
        sequence.num_computed = 0;
        sequence.num_registered = 0;
    }
}
