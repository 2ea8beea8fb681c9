//! Plans the next step: which sequences run, and with how many rows.
//!
//! Decode rows come first. A step with decode rows takes half as many rows as a step of prompts alone, because decoding sequences wait for
//! the whole step. The oldest running prompt gets the remaining rows, but shorter prompts that wait or run get half of these. So a long
//! prompt delays a short one by little, and is itself delayed by at most its own length. A prompt that is not shorter waits until no other
//! prompt runs. `waiting.rs` decides which sequence is admitted. If the members of a sequence group share a prompt, one of them computes
//! the prompt and the others are forks: they start with its blocks and, for models with recurrent state, with a copy of its state.
//!
//! A decode row may be followed by rows that verify drafts (`drafts/`). They are few, and they take no memory that another row needs.

use std::time::Instant;

use crate::batch;
use crate::block_manager::BlockManager;
use crate::drafts::{DraftCost, StepCost};
use crate::queue_permits::RequestKey;
use crate::running::Running;
use crate::sequence::Sequence;
use crate::sequences::Sequences;
use engine::Batch;

/// One sequence's part of a step.
#[derive(Clone, Copy, Debug)]
pub struct Scheduled {
    pub id: u64,
    pub request: RequestKey,
    /// Number of rows without those of drafts.
    pub num_rows: usize,
    /// Number of the sequence's tokens in the cache after the step, without drafts.
    pub end: usize,
    /// Whether the engine samples the last row.
    pub sampled: bool,
    /// Number of prompt rows that are scored.
    pub num_scored: usize,
    /// Whether the mask was late, so that the sampled id is ignored and the last row runs again.
    pub withheld: bool,
    /// Number of drafts that the step verifies. Each has a sampled row of its own after the last row.
    pub num_drafts: usize,
    /// Number of sampled rows whose masks are known. Later rows do not count.
    pub num_masked: usize,
    /// Number of steps that run the sequence: 1, or in a loop those that are not collected and for which the sequence has room.
    pub num_steps: usize,
}

impl Scheduled {
    /// Number of rows that the engine samples.
    pub fn num_sampled(&self) -> usize {
        usize::from(self.sampled) + self.num_drafts
    }
}

/// The outcome of an attempt to start a sequence.
enum Admission {
    Done,
    Waits,
}

/// What drafts cost on an engine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Drafting {
    /// The time that drafts take. None: no drafts.
    pub cost: Option<DraftCost>,
    /// The most drafts of a step.
    pub most: usize,
    /// Whether a step is submitted before the results of the step before are known. A sequence whose drafts are in flight misses it.
    pub misses_steps: bool,
}

/// The most rows of a step with drafts, because kernels for few rows are what makes rows cheap.
const MAX_ROWS: usize = 32;

/// The next step. The buffers are reused by every step.
#[derive(Default)]
pub struct StepPlan {
    pub batch: Batch,
    pub scheduled: Vec<Scheduled>,
    block_size: usize,
    /// Number of blocks that prompt rows must leave available to other sequences.
    headroom: usize,
    drafting: Drafting,
    /// Whether the last step left out the decode rows, to make room for rows that must run in one step.
    left_out_decodes: bool,
}

impl StepPlan {
    pub fn new(drafting: Drafting) -> Self {
        Self { drafting, ..Self::default() }
    }

    /// The time that drafts take. None if nothing is drafted.
    pub fn draft_cost(&self) -> Option<DraftCost> {
        self.drafting.cost
    }

    /// Schedules up to `max_rows` rows. Blocks for the decode rows must be available, see [`Sequences::num_missing_blocks`].
    pub fn fill(&mut self, sequences: &mut Sequences, max_rows: usize, now: Instant) {
        batch::clear(&mut self.batch);
        self.scheduled.clear();
        sequences.waiting.begin_step();
        sequences.blocks.begin_step();
        self.block_size = sequences.blocks.block_size();
        self.headroom = sequences.running.len() * sequences.blocks.groups().len();
        let (capacity, mut budget) = (sequences.blocks.max_tokens(), max_rows);
        let most_together = sequences.most_together();
        self.left_out_decodes = most_together > 1 && !self.left_out_decodes && sequences.num_decodes() + most_together > max_rows;
        if !self.left_out_decodes {
            budget -= self.push_decodes(sequences, max_rows, now);
        }
        let num_decodes = max_rows - budget;
        if num_decodes > 0 {
            // At least as many prompt rows as decode rows, so that prompts make progress however many sequences decode.
            budget = budget.min(((max_rows / 2).max(2 * num_decodes) - num_decodes).max(most_together));
        }
        let first_prompt = sequences.running.iter().find(|sequence| sequence.num_remaining(capacity) > 1);
        if let Some((remaining, num_together)) = first_prompt.map(|first| (first.num_remaining(capacity), first.num_together())) {
            let room = (budget / 2).min(budget.saturating_sub(num_together));
            budget -= self.push_shorter(sequences, remaining, room, now);
            for sequence in sequences.running.iter_mut().filter(|sequence| sequence.num_remaining(capacity) > 1) {
                if self.scheduled.iter().all(|part| part.id != sequence.id) {
                    budget -= self.push(sequence, &mut sequences.blocks, budget, now);
                }
            }
        }
        while budget > 0 && self.admit(sequences, (usize::MAX, budget), now) {
            let Some(sequence) = sequences.running.youngest_mut() else { break };
            budget -= self.push(sequence, &mut sequences.blocks, budget, now);
        }
        self.scheduled.iter().for_each(|part| sequences.waiting.charge(part.request, part.num_rows + part.num_drafts));
        self.set_tables(sequences);
    }

    /// Number of blocks that rows which need not run must leave available.
    pub fn headroom(&self) -> usize {
        self.headroom
    }

    /// Writes the block tables of the step's sequences.
    pub fn set_tables(&mut self, sequences: &Sequences) {
        let Sequences { running, blocks, .. } = sequences;
        let caches = || self.scheduled.iter().filter_map(|part| running.get(part.id)).map(|sequence| &sequence.cache);
        let groups = (0..blocks.groups().len()).map(|group| caches().map(move |cache| cache.block_table(group)));
        batch::set_tables(&mut self.batch, groups, blocks.block_size());
    }

    /// Adds the row of each decoding sequence, with its drafts. Returns the number of rows added.
    fn push_decodes(&mut self, sequences: &mut Sequences, max_rows: usize, now: Instant) -> usize {
        let (capacity, num_decodes) = (sequences.blocks.max_tokens(), sequences.num_decodes());
        let Drafting { cost, most, misses_steps } = self.drafting;
        let mut cost = cost.map(|cost| StepCost::new(num_decodes, cost.row));
        // Prompts keep most of a step's rows.
        let mut spare = (max_rows / 2).min(MAX_ROWS).saturating_sub(num_decodes).min(most);
        // A sequence that misses the next step must get the tokens of both from this one.
        let least_gain = if misses_steps && num_decodes > 1 { 1.5 } else { 0.0 };
        let mut num_rows = 0;
        for sequence in sequences.running.iter_mut().filter(|sequence| sequence.num_remaining(capacity) == 1) {
            let is_there = self.push(sequence, &mut sequences.blocks, 1, now) > 0;
            num_rows += usize::from(is_there);
            if let Some(cost) = cost.as_mut().filter(|_| is_there) {
                let num_drafts = self.push_drafts(sequence, &mut sequences.blocks, spare, (least_gain, cost));
                (num_rows, spare) = (num_rows + num_drafts, spare - num_drafts);
            }
        }
        num_rows
    }

    /// Adds up to `spare` drafts of the sequence that was added last. Returns the number of rows added.
    fn push_drafts(&mut self, sequence: &mut Sequence, blocks: &mut BlockManager, spare: usize, cost: (f64, &mut StepCost)) -> usize {
        let Some(part) = self.scheduled.last_mut().filter(|part| part.sampled) else { return 0 };
        // The row's own token is pending now. Those before it come before the drafts, too.
        let skip = sequence.num_pending() - 1;
        let prepared = sequence.grammar.as_ref().map_or(usize::MAX, |grammar| if skip == 0 { grammar.num_prepared() } else { 0 });
        let most = sequence.max_drafts(blocks.max_tokens()).min(spare).min(prepared);
        // A state is kept at the border of a block, so a step ends there.
        let most = if blocks.keeps_checkpoints() { most.min(part.end.next_multiple_of(self.block_size) - part.end) } else { most };
        let (start, position) = (part.end, sequence.prompt().next_position() + (part.end - sequence.prompt().len()) as u32);
        if most == 0 || sequence.drafts.is_none() {
            return 0;
        }
        let most = sequence.cache.grow_spare(start..start + most, blocks, self.headroom) - start;
        let Some(drafts) = &mut sequence.drafts else { return 0 };
        let drafts = drafts.send(skip, most, cost.0, cost.1);
        if !drafts.is_empty() {
            batch::push_drafts(&mut self.batch, drafts, position);
            (part.num_drafts, part.num_masked) = (drafts.len(), 1 + drafts.len());
        }
        drafts.len()
    }

    /// Adds up to `budget` rows of prompts with at most `longest` rows, which is what the oldest running prompt has left. The shortest
    /// running prompt comes first, then new ones. Returns the number of rows added.
    ///
    /// At most one of these prompts is left unfinished. It gets as many rows per step as the oldest prompt and has fewer left, so it ends
    /// no later. So shorter prompts cannot delay a prompt that is not shorter without end.
    fn push_shorter(&mut self, sequences: &mut Sequences, longest: usize, budget: usize, now: Instant) -> usize {
        let capacity = sequences.blocks.max_tokens();
        let remaining = |sequence: &Sequence| sequence.num_remaining(capacity);
        let prompts = || sequences.running.iter().filter(|sequence| remaining(sequence) > 1).skip(1);
        let (num_shorter, shortest) = (prompts().count(), prompts().min_by_key(|sequence| remaining(sequence)).map(|sequence| sequence.id));
        let mut left = budget;
        if let Some(sequence) = shortest.and_then(|id| sequences.running.get_mut(id)) {
            left -= self.push(sequence, &mut sequences.blocks, left, now);
        }
        let mut is_unfinished = num_shorter > 1 || left == 0;
        while left > 0 && !is_unfinished && self.admit(sequences, (longest, left), now) {
            let Some(sequence) = sequences.running.youngest_mut() else { break };
            let num_rows = self.push(sequence, &mut sequences.blocks, left, now);
            is_unfinished = sequence.num_remaining(capacity) > 1;
            left -= num_rows;
        }
        budget - left
    }

    /// Adds up to `budget` rows of a running sequence. Returns the number of rows added.
    fn push(&mut self, sequence: &mut Sequence, blocks: &mut BlockManager, budget: usize, now: Instant) -> usize {
        let (start, remaining) = (sequence.num_computed(), sequence.num_remaining(blocks.max_tokens()));
        let wanted = sequence.chunk_boundary(blocks).map_or(remaining, |boundary| boundary - start).min(budget);
        if wanted == 0 || sequence.is_at_last() && sequence.awaits_mask(now, blocks.has_state()) {
            return 0;
        }
        let num_together = sequence.num_together();
        let end = sequence.cache.grow(start..start + wanted, num_together, blocks, self.headroom);
        let num_rows = sequence.prompt().boundary_before(end).saturating_sub(start);
        if num_rows == 0 {
            return 0;
        }
        if sequence.checkpoints(blocks).is_some_and(|borders| borders.contains(start)) && !self.copies_state_to(sequence) {
            self.batch.state_copies.extend(sequence.cache.save(start, blocks));
        }
        let (end, scored_before) = (start + num_rows, self.batch.scored.len());
        let sampled = batch::push(&mut self.batch, sequence, start..end, num_rows == remaining);
        let num_scored = self.batch.scored.len() - scored_before;
        sequence.advance(num_rows, sampled);
        let (id, request) = (sequence.id, sequence.request());
        self.scheduled.push(Scheduled {
            id,
            request,
            num_rows,
            end,
            sampled,
            num_scored,
            withheld: false,
            num_drafts: 0,
            num_masked: 1,
            num_steps: 1,
        });
        num_rows
    }

    /// Admits the next sequence of at most `max_tokens` tokens, with memory for all its tokens. Its first rows must fit `budget`, since a
    /// step that copies a state or a block for a sequence runs a row of it. A whole prompt copies nothing. False if none can start.
    fn admit(&mut self, sequences: &mut Sequences, (max_tokens, budget): (usize, usize), now: Instant) -> bool {
        while let Some(sequence) = sequences.next_waiting(max_tokens) {
            let was_preempted = sequence.id > 0;
            let prompt = sequence.prompt();
            if !prompt.is_whole() && prompt.most_together() > budget {
                sequences.waiting.put_back(sequence);
                // Only prompts that are shorter than a running one may overtake it, so that the next prompt to start finds room.
                if was_preempted || max_tokens == usize::MAX {
                    return false;
                }
                continue;
            }
            match self.start(sequences, sequence, now) {
                Admission::Done => return true,
                // If a sequence waits, other requests may go first, but not before a preempted sequence.
                Admission::Waits if was_preempted => return false,
                Admission::Waits => {}
            }
        }
        false
    }

    /// Starts a sequence, or puts it back if it must wait for memory or for the prompt of its sequence group.
    fn start(&mut self, sequences: &mut Sequences, mut sequence: Sequence, now: Instant) -> Admission {
        let (headroom, num_releases) = (sequences.headroom(&sequence), sequences.blocks.num_releases());
        let Some(adapters) = sequences.adapters.take(&sequence.asked.adapters) else {
            sequences.put_back_until_release(sequence, num_releases);
            return Admission::Waits;
        };
        let num_found = match self.relative(&sequence, &sequences.running, &sequences.blocks) {
            // The copies must be made in a step that runs a row of the fork.
            Some(relative)
                if self.num_computed_before(relative) < sequence.num_shared()
                    || sequence.awaits_mask(now, sequences.blocks.has_state()) =>
            {
                sequences.adapters.leave(&adapters);
                sequences.waiting.put_back(sequence);
                return Admission::Waits;
            }
            Some(relative) => {
                let num_shared = sequence.num_shared();
                let next = num_shared..num_shared + sequence.prompt().num_together(num_shared);
                let copies = sequence.cache.fork(&relative.cache, next, &mut sequences.blocks, self.headroom);
                copies.map(|copies| {
                    sequence.is_fork = true;
                    self.batch.copies.extend(copies.blocks);
                    self.batch.state_copies.extend(copies.state);
                    num_shared
                })
            }
            None => {
                let found = sequence.take_cache(&mut sequences.blocks, headroom);
                found.map(|found| {
                    self.batch.state_copies.extend(found.state_copy);
                    found.num_tokens
                })
            }
        };
        let Some(num_found) = num_found else {
            sequences.adapters.leave(&adapters);
            sequences.put_back_until_release(sequence, num_releases);
            return Admission::Waits;
        };
        sequence.adapters = adapters;
        sequence.admit(num_found);
        if sequence.timeline.admit(now, &sequences.metrics) {
            sequence.set_cached(num_found);
            if sequences.blocks.caches_prefixes() && !sequence.is_fork {
                sequences.metrics.prefix_cache_queries_total.inc_by(sequence.prompt().len() as u64);
                sequences.metrics.prefix_cache_hits_total.inc_by(num_found as u64);
            }
        }
        sequences.start(sequence);
        Admission::Done
    }

    /// Finds the running member of the sequence group to fork from. That member may still have to compute the prompt.
    fn relative<'a>(&self, sequence: &Sequence, running: &'a Running, blocks: &BlockManager) -> Option<&'a Sequence> {
        let group = sequence.asked.sequence_group;
        let shares = group.is_some() && sequence.num_shared() > 0 && sequence.num_generated() == 0;
        if !shares || sequence.needs_whole_prompt() {
            return None;
        }
        let relatives = running.iter().filter(|relative| relative.asked.sequence_group == group);
        // States and windows advance. A state can be copied, and a window's blocks shared, only near the end of the shared tokens.
        let forkable = relatives.filter(|relative| {
            let is_there = !blocks.has_state() || self.num_computed_before(relative) <= sequence.num_shared();
            is_there && relative.cache.covers(sequence.num_shared(), blocks)
        });
        forkable.max_by_key(|relative| self.num_computed_before(relative))
    }

    /// Number of a running sequence's tokens that are in the cache before this step. Tokens that this step computes or copies cannot be
    /// copied or read by it.
    fn num_computed_before(&self, sequence: &Sequence) -> usize {
        if self.copies_block_to(sequence) || self.copies_state_to(sequence) {
            return 0;
        }
        let part = self.scheduled.iter().find(|part| part.id == sequence.id);
        sequence.num_computed() - part.map_or(0, |part| part.num_rows)
    }

    fn copies_block_to(&self, sequence: &Sequence) -> bool {
        let index = sequence.num_shared() / self.block_size;
        self.batch.copies.iter().any(|(_, to)| sequence.cache.holds_at(index, *to))
    }

    fn copies_state_to(&self, sequence: &Sequence) -> bool {
        self.batch.state_copies.iter().any(|(_, to)| sequence.cache.state_slot() == Some(*to))
    }

    /// Reverts the step after the engine refused it, since no part of it has run.
    pub fn undo(&self, sequences: &mut Sequences) {
        for part in &self.scheduled {
            let Some(sequence) = sequences.running.get_mut(part.id) else { continue };
            let needs_init = self.batch.init.iter().any(|init| init.slot == sequence.sequence_slot());
            sequence.take_back(part.num_steps - 1);
            sequence.revert(part.num_rows, part.sampled, needs_init);
            sequence.cache.forget_saved(sequence.num_computed(), &mut sequences.blocks);
        }
        for sequence in sequences.running.iter_mut() {
            if self.lacks_copy(sequence) {
                sequence.restart();
            } else if self.copies_block_to(sequence) {
                // The next step computes the tokens of the block that was to be copied.
                sequence.revert(sequence.num_computed() % self.block_size, false, false);
            }
        }
    }

    /// The youngest sequence of the step.
    pub fn youngest(&self) -> Option<u64> {
        self.scheduled.iter().map(|part| part.id).max()
    }

    /// Whether a sequence must start again if the step's copies are not made: a state that was not copied is uninitialised, and rows of a
    /// block that was not copied cannot run alone if they see rows of the block before.
    fn lacks_copy(&self, sequence: &Sequence) -> bool {
        let start = sequence.num_shared() / self.block_size * self.block_size;
        self.copies_state_to(sequence) || self.copies_block_to(sequence) && sequence.prompt().boundary_before(start) < start
    }

    /// The oldest sequence of the step that must start again because the step's copies were not made.
    pub fn oldest_without_copy(&self, sequences: &Sequences) -> Option<u64> {
        sequences.running.iter().find(|sequence| self.lacks_copy(sequence)).map(|sequence| sequence.id)
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
