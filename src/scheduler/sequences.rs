//! The running and the waiting sequences of one model, and the cache memory that they share.
//!
//! Invariant: running sequences are in the order of their first admission, and every running sequence was admitted before every preempted
//! one. `waiting.rs` decides which sequence is admitted.

use std::sync::Arc;
use std::time::Instant;

use crate::adapters::AdapterPlaces;
use crate::block_manager::BlockManager;
use crate::event::{Event, FinishReason};
use crate::mailbox::WakeBatch;
use crate::mask_threads::MaskThreads;
use crate::running::Running;
use crate::sequence::Sequence;
use crate::waiting::{AdmissionLimits, Waiting};
use metrics::{EngineGauges, EngineLoad, ModelMetrics};

pub struct Sequences {
    pub running: Running,
    pub blocks: BlockManager,
    pub metrics: Arc<ModelMetrics>,
    /// This engine's part of the model's gauges.
    pub gauges: Arc<EngineGauges>,
    pub waiting: Waiting,
    pub adapters: AdapterPlaces,
    num_admitted: u64,
    /// Whether any sequence so far had rows that must run in one step.
    has_whole_runs: bool,
}

impl Sequences {
    pub fn new(blocks: BlockManager, max_running: usize, adapters: AdapterPlaces, metrics: Arc<ModelMetrics>) -> Self {
        let (running, waiting) = (Running::new(max_running), Waiting::default());
        let (block_size, caches_prefixes) = (blocks.block_size(), blocks.caches_prefixes());
        let load = EngineLoad { block_size, num_blocks: blocks.max_tokens() / block_size, caches_prefixes, ..EngineLoad::default() };
        let gauges = Arc::new(metrics.add_engine(load));
        Self { running, blocks, metrics, gauges, waiting, adapters, num_admitted: 0, has_whole_runs: false }
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Queues a sequence. A sequence that could never run in steps of at most `max_rows` rows fails at once.
    pub fn push(&mut self, mut sequence: Sequence, threads: &mut MaskThreads, max_rows: usize) {
        let checked = sequence.check(&self.blocks, max_rows).and_then(|()| self.adapters.check(&sequence.asked.adapters));
        if let Err(message) = checked {
            return self.end(sequence, Event::Failed(message));
        }
        if let Some(grammar) = &mut sequence.grammar {
            grammar.start(threads);
        }
        self.has_whole_runs |= sequence.prompt().most_together() > 1;
        self.waiting.push(sequence);
    }

    /// Drops the sequences whose clients are gone. If a step in flight still samples for one, the token is discarded when the step is
    /// collected.
    pub fn reap_cancelled(&mut self) {
        let _batch = WakeBatch::open();
        while let Some(id) = self.running.youngest_cancelled() {
            self.remove(id, true);
            self.count_end("abort");
        }
        (0..self.waiting.reap_cancelled()).for_each(|_| self.count_end("abort"));
    }

    /// Number of blocks that the next rows need and their sequences do not hold. Prompts got theirs on admission, except in groups with
    /// windows.
    pub fn num_missing_blocks(&self) -> usize {
        let (capacity, block_size) = (self.blocks.max_tokens(), self.blocks.block_size());
        self.running.iter().map(|sequence| sequence.num_missing_blocks(capacity, block_size)).sum()
    }

    /// Whether any sequence so far had rows that must run in one step.
    pub fn has_whole_runs(&self) -> bool {
        self.has_whole_runs
    }

    /// The most rows that a prompt, running or waiting, must run in one step.
    pub fn most_together(&self) -> usize {
        if !self.has_whole_runs {
            return 1;
        }
        let prompts = self.running.iter().filter(|sequence| sequence.num_computed() < sequence.prompt().len());
        let running = prompts.map(|sequence| sequence.prompt().most_together()).max().unwrap_or(1);
        running.max(self.waiting.most_together())
    }

    /// Number of running sequences whose next step runs one row.
    pub fn num_decodes(&self) -> usize {
        let capacity = self.blocks.max_tokens();
        self.running.iter().filter(|sequence| sequence.num_remaining(capacity) == 1).count()
    }

    /// Preempts the running sequence that was admitted last: takes its memory, and queues it to be computed again. The sequence must have
    /// no token in flight.
    pub fn preempt_youngest(&mut self) {
        let Some(mut sequence) = self.running.youngest().and_then(|id| self.stop(id, true)) else { return };
        sequence.restart();
        self.metrics.num_preemptions_total.inc();
        self.waiting.push_preempted(sequence);
    }

    /// Takes the next sequence to admit, which has at most `max_tokens` tokens. None if no such sequence waits or there is no room for it.
    pub fn next_waiting(&mut self, max_tokens: usize) -> Option<Sequence> {
        let unreserved = self.running.has_unreserved();
        let room = AdmissionLimits { unreserved, num_releases: self.blocks.num_releases(), max_tokens };
        if self.running.is_full() { None } else { self.waiting.next(room) }
    }

    /// Number of blocks that must stay available when this sequence is admitted. Each running sequence will soon need one per group. If the
    /// sequence's request or tenant already runs something, the reserve for others stays untouched, too.
    pub fn headroom(&self, sequence: &Sequence) -> usize {
        let is_further = sequence.id == 0 && self.waiting.has_started(sequence);
        self.running.len() * self.blocks.groups().len() + if is_further { self.blocks.num_reachable() / 8 } else { 0 }
    }

    /// Admits a sequence that already holds its memory.
    pub fn start(&mut self, mut sequence: Sequence) {
        self.waiting.start(&sequence);
        if sequence.id == 0 {
            self.num_admitted += 1;
            sequence.id = self.num_admitted;
        }
        self.running.push(sequence);
    }

    /// Puts back a sequence that found too little memory after `num_releases` releases. It stays back until the next release.
    pub fn put_back_until_release(&mut self, sequence: Sequence, num_releases: u64) {
        self.blocks.forget_releases_since(num_releases);
        self.waiting.put_back_until_release(sequence, num_releases);
    }

    /// Ends a running sequence successfully.
    pub fn finish(&mut self, id: u64, reason: FinishReason, now: Instant) {
        let Some(mut sequence) = self.remove(id, true) else { return };
        // A sequence that stops at once has no token to mark the end of its prefill.
        sequence.end_prefill(now, &self.metrics);
        sequence.timeline.finish(now, &self.metrics);
        let (num_prompt, num_generated) = (sequence.prompt().len(), sequence.num_generated());
        self.metrics.request_prompt_tokens.observe(num_prompt as f64);
        self.metrics.request_generation_tokens.observe(num_generated as f64);
        self.metrics.request_max_generation_tokens.observe(sequence.max_tokens() as f64);
        self.count_end(match reason {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
        });
        let (prompt_tokens, cached_tokens, generated_tokens) = (num_prompt as u32, sequence.num_cached(), num_generated as u32);
        let stopped_by = sequence.stopped_by();
        sequence.end(Event::Finished { reason, stopped_by, prompt_tokens, cached_tokens, generated_tokens });
    }

    /// Ends a running sequence with an error. `last` is the event that tells the client.
    pub fn fail(&mut self, id: u64, last: Event) {
        if let Some(sequence) = self.remove(id, false) {
            self.end(sequence, last);
        }
    }

    pub fn fail_running(&mut self, message: &str) {
        while let Some(youngest) = self.running.youngest() {
            self.fail(youngest, Event::Failed(message.to_owned()));
        }
    }

    /// Fails every sequence without releasing memory, because the block manager may be inconsistent after a panic.
    /// `others`: those that wait elsewhere.
    pub fn fail_all(&mut self, others: impl Iterator<Item = Sequence>, message: &str) {
        let sequences: Vec<_> = self.running.drain().chain(self.waiting.drain()).chain(others).collect();
        sequences.into_iter().for_each(|sequence| self.end(sequence, Event::Failed(message.to_owned())));
        self.gauges.set(|load| (load.num_running, load.num_waiting, load.cache_usage) = (0, 0, 0.0));
    }

    /// Updates the gauges. `num_loading`: sequences that wait for files.
    pub fn show_load(&self, num_loading: usize) {
        let now = (self.running.len(), self.waiting.len() + num_loading, self.blocks.usage());
        self.gauges.set(|load| (load.num_running, load.num_waiting, load.cache_usage) = now);
    }

    /// Removes a running sequence and releases its memory. `keeps_state`: whether other sequences may continue from its state.
    fn stop(&mut self, id: u64, keeps_state: bool) -> Option<Sequence> {
        let mut sequence = self.running.remove(id)?;
        self.adapters.leave(&std::mem::take(&mut sequence.adapters));
        sequence.cache.release(&mut self.blocks, if keeps_state { sequence.num_computed() } else { 0 });
        Some(sequence)
    }

    /// Like [`stop`](Self::stop), for a sequence that will not run again.
    fn remove(&mut self, id: u64, keeps_state: bool) -> Option<Sequence> {
        let sequence = self.stop(id, keeps_state)?;
        self.waiting.leave(sequence.request());
        if keeps_state {
            sequence.remember();
        }
        Some(sequence)
    }

    fn end(&self, sequence: Sequence, last: Event) {
        self.count_end("error");
        sequence.end(last);
    }

    /// Counts a sequence that has ended.
    pub fn count_end(&self, reason: &str) {
        self.metrics.request_success_total.with_label_values(&[reason]).inc();
    }

    #[cfg(test)]
    pub fn num_waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Checks the invariants; panics if one is broken. `held`: blocks that are held for sequences that wait for files.
    #[cfg(test)]
    pub fn check<'a>(&'a self, held: impl Iterator<Item = &'a [u32]>) {
        self.blocks.check_blocks(self.running.iter().flat_map(|sequence| sequence.cache.held_blocks()).chain(held));
        self.blocks.check_state_slots(self.running.iter().flat_map(|sequence| sequence.cache.held_slots()));
        assert!(self.running.iter().all(|sequence| sequence.cache.state_slot().is_some() == self.blocks.has_state()));
        self.adapters.check_users(self.running.iter().map(|sequence| &sequence.adapters));
        self.waiting.check(self.running.iter());
        self.running.check();
    }
}
