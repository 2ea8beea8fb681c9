//! Decode steps that the device runs in loops, without waiting for the host ([`engine::Batch::loop_steps`]).
//!
//! A loop begins once the same sequences have decoded for a few steps and nothing waits. A second one is queued behind it, so the device
//! never waits for the host, however late that is. Each step's tokens are delivered as they come. A sequence that ends leaves its row to
//! the loop, and what the row samples is dropped. Loops end early if a sequence is to be admitted, if memory is to be given back, if
//! another model or a picture encoder needs the device, or once half of the rows are of no use.

use crate::plan::StepPlan;
use crate::sequences::Sequences;
use engine::LoopLimits;

/// The number of equal steps after which a loop begins.
const CALM: u32 = 3;
/// The largest number of equal steps after which a loop begins, if loops keep ending early.
const MOST_CALM: u32 = 96;
/// A loop that ends after fewer steps was not worth it.
const FEW_STEPS: u32 = 16;

/// Decides when loops begin and end.
#[derive(Debug, Default)]
pub struct Loops {
    /// None: there are no loops.
    limits: Option<LoopLimits>,
    /// The sequences of the latest plain step, and for how many steps they have been the same.
    ids: Vec<u64>,
    num_equal: u32,
    /// The number of equal steps after which a loop begins.
    calm: u32,
    /// Number of steps collected since the first of the loops in flight began.
    num_collected: u32,
}

impl Loops {
    pub fn new(limits: Option<LoopLimits>) -> Self {
        Self { limits, calm: CALM, ..Self::default() }
    }

    /// Stops using loops.
    pub fn give_up(&mut self) {
        tracing::warn!("the device lacks memory for loops of decode steps: steps start from the host");
        self.limits = None;
    }

    /// Counts a step of loops.
    pub fn collect(&mut self) {
        self.num_collected += 1;
    }

    /// Records that no loop is in flight any more.
    pub fn end(&mut self) {
        self.calm = if self.num_collected < FEW_STEPS { (self.calm * 2).min(MOST_CALM) } else { CALM };
        (self.num_collected, self.num_equal) = (0, 0);
        self.ids.clear();
    }

    /// Whether a planned step may be the first one of a loop.
    pub fn may_begin(&mut self, plan: &StepPlan, sequences: &Sequences) -> bool {
        if self.limits.is_none() {
            return false;
        }
        let ids = || plan.scheduled.iter().map(|part| part.id);
        let is_equal = self.ids.iter().copied().eq(ids());
        if !is_equal {
            self.ids.clear();
            self.ids.extend(ids());
        }
        self.num_equal = if is_equal { self.num_equal + 1 } else { 0 };
        self.num_equal >= self.calm && sequences.waiting.is_empty()
    }

    /// Number of blocks that the sequences of a planned step need for a loop and do not hold.
    pub fn num_missing_blocks(&self, plan: &StepPlan, sequences: &Sequences) -> usize {
        let (most, block_size) = (self.limits.map_or(0, |limits| limits.most_steps), sequences.blocks.block_size());
        let running = plan.scheduled.iter().filter_map(|part| Some((part, sequences.running.get(part.id)?)));
        running
            .map(|(part, sequence)| {
                let more = sequence.num_more(sequences.blocks.max_tokens()).min(most.saturating_sub(1));
                sequence.cache.num_missing(part.end + more, block_size)
            })
            .sum()
    }

    /// Makes a planned step a loop, if it can be one: a step of decode rows alone, which need nothing from the host. Takes blocks that are
    /// available now. Returns whether it is a loop.
    pub fn lengthen(&self, plan: &mut StepPlan, sequences: &mut Sequences) -> bool {
        let Some(limits) = self.limits.filter(|limits| can_loop(plan, sequences, *limits)) else { return false };
        let (capacity, headroom) = (sequences.blocks.max_tokens(), plan.headroom());
        let mores: Vec<usize> =
            plan.scheduled.iter().map(|part| sequences.running.get(part.id).map_or(0, |sequence| sequence.num_more(capacity))).collect();
        // Beyond the end of all sequences, ids have no meaning, so the last turn may be longer than the longest of them.
        let longest = 1 + mores.iter().copied().max().unwrap_or(0);
        let mut num_steps = longest.next_multiple_of(limits.turn).min(limits.most_steps);
        for (part, more) in plan.scheduled.iter().zip(&mores) {
            let Some(sequence) = sequences.running.get_mut(part.id) else { return false };
            let wanted = (*more).min(num_steps - 1);
            let granted = sequence.cache.grow_spare(part.end..part.end + wanted, &mut sequences.blocks, headroom) - part.end;
            if granted < wanted {
                num_steps = (1 + granted) / limits.turn * limits.turn;
            }
            if num_steps < 2 {
                return false;
            }
        }
        plan.batch.loop_steps = num_steps as u32;
        for (part, more) in plan.scheduled.iter_mut().zip(mores) {
            let Some(sequence) = sequences.running.get_mut(part.id) else { continue };
            part.num_steps = num_steps.min(1 + more);
            sequence.advance_ahead(part.num_steps - 1);
            plan.batch.rooms.push((part.end + part.num_steps - 1) as u32);
        }
        plan.set_tables(sequences);
        true
    }

    /// Whether loops in flight must end. `num_rows`: the rows of the latest one.
    pub fn must_end(&self, num_rows: usize, sequences: &Sequences) -> bool {
        !sequences.waiting.is_empty() || 2 * sequences.running.len() <= num_rows && num_rows > 1 || sequences.running.is_empty()
    }
}

/// Whether a planned step may be repeated without the host.
fn can_loop(plan: &StepPlan, sequences: &Sequences, limits: LoopLimits) -> bool {
    let batch = &plan.batch;
    let is_plain = |id: u64| sequences.running.get(id).is_some_and(|sequence| sequence.drafts.is_none() && sequence.grammar.is_none());
    let decodes = plan.scheduled.iter().all(|part| part.num_rows == 1 && part.sampled && part.num_drafts == 0 && is_plain(part.id));
    let asks = batch.num_logprobs.iter().any(Option::is_some) || batch.vectors.iter().any(Option::is_some);
    let has_prompts = !(batch.init.is_empty() && batch.copies.is_empty() && batch.state_copies.is_empty() && batch.scored.is_empty());
    let has_rows =
        !(batch.adapters.is_empty() && batch.embeddings.is_empty() && batch.token_types.is_empty() && batch.grid_positions.is_empty());
    // A sequence that is not in the step, but has rows to run, would wait for the loop's end.
    let is_planned = |id: u64| plan.scheduled.binary_search_by_key(&id, |part| part.id).is_ok();
    let capacity = sequences.blocks.max_tokens();
    let is_alone = sequences.running.iter().all(|sequence| is_planned(sequence.id) || sequence.num_remaining(capacity) == 0);
    let fits = !plan.scheduled.is_empty() && plan.scheduled.len() <= limits.most_seqs && !sequences.blocks.has_state();
    fits && is_alone && decodes && !asks && !has_prompts && !has_rows && !batch.sample_later
}

#[cfg(test)]
#[path = "loops_tests.rs"]
mod tests;
