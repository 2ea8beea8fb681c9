//! The step: schedule → submit → collect → commit.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::block_manager::BlockManager;
use super::masks::{MaskWorkers, PATIENCE};
use super::sequence::Sequence;
use super::{Event, FinishReason, SchedulerOptions};
use crate::engine::{Batch, Engine, EngineError, Masks, Sampled, StepId, StepOutput};
use crate::logits::{Allowed, Logprobs};
use crate::metrics::ModelMetrics;

/// One sequence's part of a submitted step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub id: u64,
    /// In `running`, while the step is being built.
    pub index: usize,
    /// Tokens in the cache once the step has run.
    pub end: usize,
    pub sample: bool,
    /// Rows of the prompt that are scored.
    pub num_scored: usize,
}

#[derive(Debug)]
pub(super) struct InFlight {
    step: StepId,
    rows: Vec<Row>,
}

/// Owned by the engine thread.
pub(super) struct Scheduler {
    engine: Box<dyn Engine>,
    pub options: SchedulerOptions,
    pub metrics: Arc<ModelMetrics>,
    pub blocks: BlockManager,
    pub waiting: VecDeque<Sequence>, // in order of arrival
    pub running: Vec<Sequence>,      // in order of arrival
    pub free_slots: VecDeque<u32>,
    pub in_flight: VecDeque<InFlight>,
    max_in_flight: usize,
    next_id: u64,
    /// The count of block releases at which the queue's head last found too few blocks.
    pub blocked_at: Option<u64>,
    mask_workers: MaskWorkers,
    // Buffers, kept from step to step.
    pub batch: Batch,
    pub rows: Vec<Row>,
    spare_rows: Vec<Vec<Row>>,
    masks: Masks,
    output: StepOutput,
    pub scratch: Vec<u32>,
}

impl Scheduler {
    pub fn new(engine: Box<dyn Engine>, mut options: SchedulerOptions, metrics: Arc<ModelMetrics>) -> Self {
        options.max_batch_tokens = options.max_batch_tokens.max(1);
        // Every running sequence must find room for its decode row in every step.
        options.max_running = options.max_running.min(engine.max_slots()).min(options.max_batch_tokens).max(1);
        Self {
            blocks: BlockManager::new(engine.kv_capacity(), options.prefix_cache),
            waiting: VecDeque::new(),
            running: Vec::with_capacity(options.max_running),
            free_slots: (0..options.max_running as u32).collect(),
            in_flight: VecDeque::new(),
            max_in_flight: engine.max_in_flight().clamp(1, 2),
            next_id: 0,
            blocked_at: None,
            mask_workers: MaskWorkers::default(),
            batch: Batch::default(),
            rows: Vec::new(),
            spare_rows: Vec::new(),
            masks: Masks::default(),
            output: StepOutput::default(),
            scratch: Vec::new(),
            engine,
            options,
            metrics,
        }
    }

    /// Shows what a device's memory holds, where the engine has one.
    pub fn note_memory(&self) {
        if let Some(memory) = self.engine.memory() {
            for (kind, bytes) in [("free", memory.free), ("total", memory.total), ("held", memory.held)] {
                self.metrics.device_memory_bytes.with_label_values(&[kind]).set(bytes as i64);
            }
        }
    }

    pub fn has_work(&self) -> bool {
        !(self.waiting.is_empty() && self.running.is_empty() && self.in_flight.is_empty())
    }

    /// Puts a sequence at the end of the queue, or refuses it where it could never run.
    pub fn push(&mut self, mut sequence: Sequence) {
        sequence.id = self.next_id;
        self.next_id += 1;
        let (len, capacity) = (sequence.prompt.len(), self.blocks.num_tokens());
        let asks_nothing = sequence.max_tokens == 0 && sequence.score_prompt.is_none() && sequence.pool.is_none();
        if len == 0 || asks_nothing || sequence.pool.is_some() && sequence.max_tokens > 0 {
            self.fail(sequence, "a sequence needs a prompt, and at least one token to generate or something to say of the prompt");
        } else if len + usize::from(sequence.max_tokens > 0) > capacity {
            self.fail(sequence, &format!("the prompt has {len} tokens and the KV cache holds {capacity}"));
        } else {
            if let Some(masked) = &mut sequence.masked {
                masked.start(&mut self.mask_workers);
            }
            self.waiting.push_back(sequence);
        }
    }

    /// Drops the sequences whose clients have gone. A token of theirs that is still in flight is thrown away when it is collected.
    pub fn reap_cancelled(&mut self) {
        for index in (0..self.running.len()).rev() {
            if self.running[index].is_cancelled() {
                self.remove_running(index);
                self.count_end("abort");
            }
        }
        let before = self.waiting.len();
        self.waiting.retain(|sequence| !sequence.is_cancelled());
        if self.waiting.len() < before {
            self.blocked_at = None;
            (self.waiting.len()..before).for_each(|_| self.count_end("abort"));
        }
    }

    /// Submits one step if there is anything to do, and collects what the engine must have back first. A step that the engine refused
    /// costs its youngest sequence; after any other error all that ran are told. The engine may be used on unless the device is lost.
    pub fn step(&mut self) -> Result<(), EngineError> {
        let result = match self.try_step() {
            Ok(refused) => refused.map_or(Ok(()), Err),
            Err(error) => {
                self.abandon_steps();
                self.fail_running(&format!("the engine failed: {error}"));
                Err(error)
            }
        };
        self.metrics.num_requests_running.set(self.running.len() as i64);
        self.metrics.num_requests_waiting.set(self.waiting.len() as i64);
        self.metrics.kv_cache_usage_perc.set(self.blocks.usage());
        result
    }

    /// The error of a step that was refused and has cost one sequence.
    fn try_step(&mut self) -> Result<Option<EngineError>, EngineError> {
        let now = Instant::now();
        while !self.schedule(now) {
            self.collect()?;
        }
        if self.rows.is_empty() {
            self.await_mask();
            return self.collect().map(|()| None);
        }
        self.batch.sample_later = self.rows.iter().any(|row| row.sample && self.running[row.index].masked.is_some());
        let step = match self.engine.submit(&self.batch) {
            Ok(step) => step,
            Err(error @ EngineError::Device(_)) => return Err(error),
            Err(error) => return self.do_without_youngest(&error).map(|()| Some(error)),
        };
        let next = self.spare_rows.pop().unwrap_or_default();
        self.in_flight.push_back(InFlight { step, rows: std::mem::replace(&mut self.rows, next) });
        if self.batch.sample_later {
            self.sample(step)?;
        }
        while self.in_flight.len() >= self.max_in_flight {
            self.collect()?;
        }
        Ok(None)
    }

    /// The second half of a step: what the step before sampled moves the grammars on, whose masks are made while this one runs.
    fn sample(&mut self, step: StepId) -> Result<(), EngineError> {
        while self.in_flight.len() > 1 {
            self.collect()?;
        }
        let rows = self.in_flight.back_mut().map_or(&mut [][..], |flight| &mut flight.rows);
        let deadline = Instant::now() + PATIENCE;
        let (mut ends, mut late) = (Vec::new(), Vec::new());
        self.masks.words.clear();
        self.masks.of.clear();
        for row in rows {
            let index = self.running.binary_search_by_key(&row.id, |sequence| sequence.id).ok().filter(|_| row.sample);
            let masked = index.and_then(|index| self.running[index].masked.as_mut());
            let mask = match masked.map(|masked| masked.is_ready_by(deadline).then(|| masked.allowed())) {
                None | Some(Some(Ok(Allowed::All))) => None,
                Some(None) => {
                    // Sampled without a mask: its last row runs once more, when that is there.
                    (row.sample, row.end) = (false, row.end - 1);
                    late.push(row.id);
                    None
                }
                Some(Some(Ok(Allowed::Mask(words)))) => {
                    self.masks.words.extend_from_slice(words);
                    Some((self.masks.words.len() / words.len().max(1) - 1) as u32)
                }
                Some(Some(Ok(Allowed::End))) => {
                    ends.push((row.id, None));
                    None
                }
                Some(Some(Err(last))) => {
                    ends.push((row.id, Some(last)));
                    None
                }
            };
            self.masks.of.push(mask);
        }
        self.engine.sample(step, &self.masks)?;
        for id in late {
            let Ok(index) = self.running.binary_search_by_key(&id, |sequence| sequence.id) else { continue };
            let sequence = &mut self.running[index];
            sequence.num_computed -= 1;
            sequence.num_pending -= 1;
            // The slot has seen a token that is none.
            sequence.needs_init = true;
        }
        // What they sample in this step is surplus.
        for (id, last) in ends {
            let Ok(index) = self.running.binary_search_by_key(&id, |sequence| sequence.id) else { continue };
            match last {
                None => self.finish(index, FinishReason::Stop, Instant::now()),
                Some(last) => {
                    let sequence = self.remove_running(index);
                    self.count_end("error");
                    sequence.end(last);
                }
            }
        }
        Ok(())
    }

    /// Where all that run wait for their masks, there is nothing to do but wait, for as long as a new sequence may.
    fn await_mask(&mut self) {
        let held_back = self.running.iter_mut().position(Sequence::awaits_mask).filter(|_| self.in_flight.is_empty());
        if let Some(masked) = held_back.and_then(|index| self.running[index].masked.as_mut()) {
            masked.is_ready_by(Instant::now() + PATIENCE / 4);
        }
    }

    /// The engine refused the step, say for want of memory: nothing of it has run. The youngest sequence in it is failed and the others
    /// get on, in a smaller step; were it only preempted, the same step would come again.
    fn do_without_youngest(&mut self, error: &EngineError) -> Result<(), EngineError> {
        let youngest = self.rows.iter().map(|row| row.id).max();
        for (row, bounds) in self.rows.iter().zip(self.batch.cu_seqlens_q.windows(2)) {
            let sequence = &mut self.running[row.index];
            sequence.num_computed -= (bounds[1] - bounds[0]) as usize;
            sequence.num_pending -= usize::from(row.sample);
            sequence.needs_init |= self.batch.init.iter().any(|init| init.slot == sequence.slot);
            // A block that was to be copied: the next step computes what is in it.
            if self.batch.copies.iter().any(|(_, to)| sequence.block_table.last() == Some(to)) {
                sequence.num_computed -= sequence.num_computed % self.blocks.block_size();
            }
        }
        // What the step before sampled is not "the step before" of the next one any more: its ids must be known.
        while !self.in_flight.is_empty() {
            self.collect()?;
        }
        // It may have ended just now; then the next step is another one already.
        if let Ok(index) = self.running.binary_search_by_key(&youngest, |sequence| Some(sequence.id)) {
            let sequence = self.remove_running(index);
            self.fail(sequence, &format!("the engine failed: {error}"));
        }
        Ok(())
    }

    /// Collects and commits the oldest step in flight, if any.
    fn collect(&mut self) -> Result<(), EngineError> {
        let Some(InFlight { step, rows }) = self.in_flight.pop_front() else { return Ok(()) };
        self.engine.collect(step, &mut self.output)?;
        if self.output.sampled.len() != rows.len() {
            let (got, want) = (self.output.sampled.len(), rows.len());
            return Err(EngineError::InvalidBatch(format!("a step of {want} sequences gave {got} results")));
        }
        let due: usize = rows.iter().map(|row| row.num_scored).sum();
        if self.output.scored.len() != due {
            return Err(EngineError::InvalidBatch(format!("a step of {due} scored rows gave {} scores", self.output.scored.len())));
        }
        let now = Instant::now();
        let mut scored = std::mem::take(&mut self.output.scored).into_iter();
        for (index, row) in rows.iter().enumerate() {
            let logprobs = self.output.logprobs.get_mut(index).and_then(Option::take);
            let scored: Vec<Option<Logprobs>> = scored.by_ref().take(row.num_scored).collect();
            let pooled = self.output.pooled.get_mut(index).map(std::mem::take).unwrap_or_default();
            self.commit_prompt(*row, scored, pooled);
            self.commit(*row, self.output.sampled[index], logprobs, now);
        }
        self.spare_rows.push(rows);
        Ok(())
    }

    /// What a step tells of one sequence's prompt: scores of its tokens, or its vector.
    fn commit_prompt(&mut self, row: Row, scored: Vec<Option<Logprobs>>, pooled: Vec<f32>) {
        let Ok(index) = self.running.binary_search_by_key(&row.id, |sequence| sequence.id) else { return };
        let sequence = &mut self.running[index];
        let num_scored = scored.len();
        let Some(scored) = scored.into_iter().collect::<Option<Vec<_>>>().filter(|_| pooled.iter().all(|x| x.is_finite())) else {
            let sequence = self.remove_running(index);
            return self.fail(sequence, "the logits are not finite");
        };
        if num_scored > 0 {
            sequence.num_scored += num_scored;
            let _ = sequence.events.send(Event::Scored(scored));
        }
        if !pooled.is_empty() {
            let _ = sequence.events.send(Event::Pooled(pooled));
        }
    }

    /// What one sequence got from a step: full blocks go to the prefix cache, the token to the client.
    fn commit(&mut self, row: Row, sampled: Sampled, logprobs: Option<Logprobs>, now: Instant) {
        // Gone: it ended or was cancelled after this step was submitted, and this token is surplus.
        let Ok(index) = self.running.binary_search_by_key(&row.id, |sequence| sequence.id) else { return };
        if sampled == Sampled::NotFinite {
            let sequence = self.remove_running(index);
            return self.fail(sequence, "the logits are not finite");
        }
        self.register_blocks(index, row.end);
        if !row.sample {
            let sequence = &self.running[index];
            if sequence.max_tokens == 0 && row.end == sequence.prompt.len() {
                self.finish(index, FinishReason::Length, now);
            }
            return;
        }
        let Sampled::Token(token) = sampled else {
            let sequence = self.remove_running(index);
            return self.fail(sequence, "the engine gave no token");
        };
        let sequence = &mut self.running[index];
        sequence.num_pending -= 1;
        if sequence.stop_ids.contains(&token) {
            return self.finish(index, FinishReason::Stop, now);
        }
        sequence.generated.push(token);
        let _ = sequence.events.send(Event::Token { id: token, logprobs: logprobs.map(Box::new) });
        self.metrics.generation_tokens_total.inc();
        match sequence.last_token.replace(now) {
            Some(last) => self.metrics.inter_token_latency_seconds.observe((now - last).as_secs_f64()),
            None => self.note_first_token(index, now),
        }
        let sequence = &mut self.running[index];
        if sequence.generated.len() >= sequence.max_tokens || sequence.num_known() > self.blocks.num_tokens() {
            return self.finish(index, FinishReason::Length, now);
        }
        if let Some(masked) = &mut sequence.masked {
            masked.accept(token, &mut self.mask_workers);
        }
    }

    fn note_first_token(&mut self, index: usize, now: Instant) {
        let sequence = &mut self.running[index];
        if sequence.first_token.is_some() {
            return;
        }
        sequence.first_token = Some(now);
        if !sequence.is_fork {
            self.metrics.prompt_tokens_total.inc_by(sequence.prompt.len() as u64);
        }
        self.metrics.time_to_first_token_seconds.observe((now - sequence.arrived).as_secs_f64());
        if let Some(admitted) = sequence.admitted {
            self.metrics.request_prefill_time_seconds.observe((now - admitted).as_secs_f64());
        }
    }

    /// Blocks full of the first `num_tokens` tokens become reusable: their K and V are computed.
    fn register_blocks(&mut self, index: usize, num_tokens: usize) {
        let sequence = &mut self.running[index];
        let num_full = num_tokens / self.blocks.block_size();
        if !self.blocks.caches_prefixes() {
            return;
        }
        while sequence.num_registered < num_full {
            let (full, block) = (sequence.num_registered, sequence.block_table[sequence.num_registered]);
            sequence.copy_block(full, self.blocks.block_size(), &mut self.scratch);
            sequence.last_content = self.blocks.register(block, sequence.salt, sequence.last_content, &self.scratch);
            sequence.num_registered += 1;
        }
    }

    fn finish(&mut self, index: usize, reason: FinishReason, now: Instant) {
        // A sequence that stops at once has no token to mark the end of its prefill.
        self.note_first_token(index, now);
        let sequence = self.remove_running(index);
        let num_generated = sequence.generated.len();
        self.metrics.e2e_request_latency_seconds.observe((now - sequence.arrived).as_secs_f64());
        let first = sequence.first_token.unwrap_or(now);
        self.metrics.request_decode_time_seconds.observe((now - first).as_secs_f64());
        self.metrics.request_prompt_tokens.observe(sequence.prompt.len() as f64);
        self.metrics.request_generation_tokens.observe(num_generated as f64);
        self.count_end(match reason {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
        });
        let (prompt_tokens, cached_tokens) = (sequence.prompt.len() as u32, sequence.num_cached.load(Ordering::Relaxed));
        sequence.end(Event::Finished { reason, prompt_tokens, cached_tokens, generated_tokens: num_generated as u32 });
    }

    /// Takes a sequence out of the running; its blocks and its slot are free.
    fn remove_running(&mut self, index: usize) -> Sequence {
        let mut sequence = self.running.remove(index);
        self.release_blocks(&mut sequence);
        self.free_slots.push_back(sequence.slot);
        sequence
    }

    fn fail(&self, sequence: Sequence, message: &str) {
        self.count_end("error");
        sequence.end(Event::Failed(message.to_owned()));
    }

    fn fail_running(&mut self, message: &str) {
        while !self.running.is_empty() {
            let sequence = self.remove_running(self.running.len() - 1);
            self.fail(sequence, message);
        }
    }

    /// Tells everyone of the end. Leaves the blocks alone: after a panic their books may not balance.
    pub fn fail_all(&mut self, message: &str) {
        let sequences: Vec<_> = self.running.drain(..).chain(self.waiting.drain(..)).collect();
        sequences.into_iter().for_each(|sequence| self.fail(sequence, message));
        self.in_flight.clear();
        self.metrics.num_requests_running.set(0);
        self.metrics.num_requests_waiting.set(0);
        self.metrics.kv_cache_usage_perc.set(0.0);
    }

    /// Collects and ignores what is still in flight, so that the engine's order holds for the steps to come.
    fn abandon_steps(&mut self) {
        while let Some(InFlight { step, .. }) = self.in_flight.pop_front() {
            // The first error is the one that is reported.
            let _ = self.engine.collect(step, &mut self.output);
        }
    }

    fn count_end(&self, reason: &str) {
        self.metrics.request_success_total.with_label_values(&[reason]).inc();
    }

    /// Panics unless the books balance.
    #[cfg(test)]
    pub fn check(&self) {
        self.blocks.check(self.running.iter().chain(&self.waiting).map(|sequence| &sequence.block_table[..]));
        assert!(self.waiting.iter().all(|sequence| sequence.block_table.is_empty() && sequence.num_pending == 0));
        let ids: Vec<u64> = self.running.iter().chain(&self.waiting).map(|sequence| sequence.id).collect();
        assert!(ids.is_sorted(), "not in order of arrival: {ids:?}");
        let mut slots: Vec<u32> = self.running.iter().map(|sequence| sequence.slot).chain(self.free_slots.iter().copied()).collect();
        slots.sort_unstable();
        assert!(slots.iter().copied().eq(0..self.options.max_running as u32), "slots: {slots:?}");
        assert!(self.in_flight.len() < self.max_in_flight);
    }
}
