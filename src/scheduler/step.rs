//! One step of the engine thread: schedule → submit → collect → commit.
//!
//! An engine on a device has two steps in flight: the next step is scheduled and submitted while the last one runs, and only then is the
//! last one collected and committed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

use crate::adapters::AdapterPlaces;
use crate::block_manager::BlockManager;
use crate::cache_size::{CacheSize, Cost};
use crate::commit::{self, Advanced};
use crate::disk_tier::DiskTier;
use crate::drafts::{DraftCost, Drafts};
use crate::event::Event;
use crate::guesser::{Engines, Guesser};
use crate::loops::Loops;
use crate::mask_threads::MaskThreads;
use crate::masks::PATIENCE;
use crate::options::SchedulerOptions;
use crate::plan::{Drafting, Scheduled, StepPlan};
use crate::sequence::Sequence;
use crate::sequences::Sequences;
use crate::shared_device::{CacheHandle, MemoryRequest};
use crate::step_masks::StepMasks;
use crate::time_slicing::{StepRowLimit, TimeSlice, TimeSliceClient};
use crate::watchdog::Heartbeat;
use engine::{BackendKind, Engine, EngineError, Progress, StepId, StepOutput};
use metrics::{EngineGauges, ModelMetrics};

/// Runs the steps of one engine. Owned by the engine thread.
pub struct Scheduler {
    engine: Box<dyn Engine>,
    sequences: Sequences,
    cache_size: CacheSize,
    mask_threads: MaskThreads,
    /// The most rows per step.
    max_rows: usize,
    in_flight: VecDeque<InFlight>,
    max_in_flight: usize,
    /// Number of steps submitted, refused or collected so far.
    num_turns: u64,
    /// None if no other model is on the device.
    time_slices: Option<(TimeSliceClient, Arc<Heartbeat>)>,
    /// Held while this model has the device for a step.
    slice: Option<TimeSlice>,
    short_steps: StepRowLimit,
    loops: Loops,
    /// None: the prefix cache has no files.
    disk: Option<DiskTier>,
    /// Duration of the latest time slice.
    step_took: Duration,
    guesser: Guesser,
    // Buffers that every step reuses.
    plan: StepPlan,
    advanced: Vec<Advanced>,
    masks: StepMasks,
    output: StepOutput,
    spare: Vec<Vec<Scheduled>>,
}

/// A step that was submitted and not collected.
#[derive(Debug)]
struct InFlight {
    step: StepId,
    scheduled: Vec<Scheduled>,
    is_loop: bool,
    num_rows: usize,
    began: Instant,
}

enum StepError {
    /// The engine refused the step, and no part of it has run. One sequence has failed, and the others continue.
    Refused(EngineError),
    /// The results of every step in flight are lost.
    Failed(EngineError),
}

impl From<EngineError> for StepError {
    fn from(error: EngineError) -> Self {
        Self::Failed(error)
    }
}

impl Scheduler {
    pub fn new(Engines { engine, draft }: Engines, options: SchedulerOptions, metrics: Arc<ModelMetrics>) -> Self {
        let capacity = engine.kv_capacity();
        let max_rows = options.max_batch_tokens.max(1);
        // Every running sequence must find room for its decode row in every step.
        let mut max_running = options.max_running.min(engine.max_slots()).min(max_rows);
        if capacity.has_state() {
            max_running = max_running.min(capacity.num_state_slots);
        }
        let max_in_flight = engine.max_in_flight().clamp(1, 2);
        let info = engine.info();
        let goes_back = !capacity.has_state() || info.draft_states > 0 && max_in_flight == 1;
        let is_drafted = options.drafts && goes_back;
        // What is asked for comes between steps, when none is in flight.
        let guesser =
            if is_drafted && max_in_flight == 1 { Guesser::new(info.draft_head, draft, options.prefix_cache) } else { Guesser::default() };
        let cost = is_drafted.then(|| DraftCost { row: info.row_cost, guess: guesser.cost() });
        let most = if capacity.has_state() { info.draft_states } else { usize::MAX };
        let cache_size = CacheSize::new(&*engine);
        let blocks = BlockManager::new(capacity, engine.num_backed_blocks(), options.prefix_cache);
        Self {
            sequences: Sequences::new(blocks, max_running.max(1), AdapterPlaces::new(engine.max_adapters()), metrics),
            mask_threads: MaskThreads::default(),
            max_rows,
            in_flight: VecDeque::new(),
            cache_size,
            max_in_flight,
            num_turns: 0,
            time_slices: None,
            slice: None,
            short_steps: StepRowLimit::default(),
            // Loops are in flight while the host plans, so they need a second step in flight.
            loops: Loops::new(engine.loop_limits().filter(|_| max_in_flight > 1)),
            disk: None,
            step_took: Duration::ZERO,
            plan: StepPlan::new(Drafting { cost, most, misses_steps: max_in_flight > 1 }),
            guesser,
            advanced: Vec::new(),
            masks: StepMasks::default(),
            output: StepOutput::default(),
            spare: Vec::new(),
            engine,
        }
    }

    /// Queues a sequence. A sequence that could never run fails at once.
    fn queue(&mut self, mut sequence: Sequence) {
        // A row whose mask is late runs again, which a state does not allow.
        let runs_once = self.sequences.blocks.has_state() && sequence.grammar.is_some();
        if let Some(cost) = self.plan.draft_cost().filter(|_| sequence.generates() && !runs_once) {
            sequence.drafts = Some(Box::new(Drafts::new(&sequence.asked.drafts, cost)));
        }
        self.sequences.push(sequence, &mut self.mask_threads, self.max_rows);
    }

    /// Drops the sequences whose clients are gone.
    pub fn reap_cancelled(&mut self) {
        self.sequences.reap_cancelled();
    }

    pub fn has_work(&self) -> bool {
        self.is_exchanging() || !(self.sequences.is_empty() && self.in_flight.is_empty())
    }

    /// Runs one step if there is anything to do.
    ///
    /// # Errors
    /// If the engine refused the step, the youngest sequence in it has failed. If the error is final ([`EngineError::is_final`]), no client
    /// has been told yet, because the engine thread first refuses new sequences. After any other error, every running sequence has failed.
    pub fn step(&mut self) -> Result<(), EngineError> {
        let result = self.exchange().map_err(StepError::Failed).and_then(|()| self.run_step()).map_err(|error| match error {
            StepError::Refused(error) => error,
            StepError::Failed(error) => self.lose_steps(error),
        });
        self.slice = None;
        self.show_load();
        result
    }

    fn run_step(&mut self) -> Result<(), StepError> {
        let is_contended = self.time_slices.as_ref().is_some_and(|(time_slices, _)| time_slices.is_contended());
        if is_contended {
            return self.run_in_turn();
        }
        if self.has_loop() {
            return self.run_in_loop();
        }
        self.schedule(self.max_rows)?;
        if self.plan.scheduled.is_empty() {
            self.wait_for_mask();
            self.wait_briefly();
            return Ok(self.collect_until(self.in_flight.len().saturating_sub(1))?);
        }
        if !self.engine.is_shared() && self.loops.may_begin(&self.plan, &self.sequences) {
            self.lengthen()?;
        }
        self.submit()?;
        Ok(self.collect_until(self.max_in_flight - 1)?)
    }

    /// Whether loops are in flight. Then nothing else is.
    fn has_loop(&self) -> bool {
        self.in_flight.front().is_some_and(|step| step.is_loop)
    }

    /// Collects a step of the loops in flight, and queues another loop. Ends them if there is a reason.
    fn run_in_loop(&mut self) -> Result<(), StepError> {
        let num_rows = self.in_flight.back().map_or(0, |step| step.scheduled.len());
        if self.engine.is_shared() || self.loops.must_end(num_rows, &self.sequences) {
            return Ok(self.collect_until(0)?);
        }
        if self.in_flight.len() < self.max_in_flight {
            self.schedule(self.max_rows)?;
            // The loop has ended if memory is short.
            let is_behind = self.has_loop();
            if !self.plan.scheduled.is_empty() && (self.lengthen()? || !is_behind) {
                self.submit()?;
            } else {
                self.plan.undo(&mut self.sequences);
            }
        }
        if self.has_loop() && !self.collect_next()? {
            self.loops.give_up();
            self.collect_until(0)?;
        }
        Ok(())
    }

    /// Makes the planned step a loop, if it can be one. Returns whether it is.
    fn lengthen(&mut self) -> Result<bool, EngineError> {
        let missing = self.loops.num_missing_blocks(&self.plan, &self.sequences);
        self.grow(missing + self.plan.headroom())?;
        Ok(self.loops.lengthen(&mut self.plan, &mut self.sequences))
    }

    /// Discards the steps in flight, whose results are lost. Their sequences fail, unless the error is final.
    fn lose_steps(&mut self, error: EngineError) -> EngineError {
        self.abandon_in_flight();
        if !error.is_final() {
            self.sequences.fail_running(&format!("the engine failed: {error}"));
        }
        error
    }

    /// Runs a step while other models wait for the device. The step is short and is collected before the time slice ends.
    fn run_in_turn(&mut self) -> Result<(), StepError> {
        self.collect_until(0)?;
        let num_decoding = self.sequences.running.len();
        let max_rows =
            if self.sequences.has_whole_runs() { self.max_rows } else { self.short_steps.max_rows(num_decoding).min(self.max_rows) };
        self.schedule(max_rows)?;
        if self.plan.scheduled.is_empty() {
            self.wait_for_mask();
            self.wait_briefly();
            return Ok(());
        }
        if let Some((time_slices, heartbeat)) = &self.time_slices {
            // Waiting is not a hang. The model that holds the device has a watchdog of its own.
            self.slice = time_slices.wait(|| heartbeat.tick());
        }
        let num_rows = self.plan.batch.num_tokens();
        self.submit()?;
        self.collect_until(0)?;
        self.short_steps.learn((num_rows, max_rows), num_decoding, std::mem::take(&mut self.step_took));
        Ok(())
    }

    /// Makes room for the decode rows, then plans a step of at most `max_rows` rows.
    fn schedule(&mut self, max_rows: usize) -> Result<(), EngineError> {
        let now = Instant::now();
        self.cache_size.begin_step(&mut self.sequences.blocks, now);
        loop {
            let needed = self.sequences.num_missing_blocks();
            // Prompt rows take blocks, too. While there is memory, growing is better than evicting cached contents for them.
            let groups = self.sequences.blocks.groups().len();
            let spare = groups * (max_rows.div_ceil(self.sequences.blocks.block_size()) + self.sequences.running.len());
            self.grow(needed + spare)?;
            if needed <= self.sequences.blocks.num_available() {
                break;
            }
            // A sequence with a token in flight cannot be preempted, because the token is not known yet.
            match self.in_flight.len() {
                0 => self.sequences.preempt_youngest(),
                in_flight => self.collect_until(in_flight - 1)?,
            }
        }
        self.plan.fill(&mut self.sequences, max_rows, now);
        let wanted = self.sequences.blocks.take_wanted();
        if wanted > 0 && self.grow(wanted)? && self.plan.scheduled.is_empty() {
            self.plan.fill(&mut self.sequences, max_rows, now);
        }
        self.load_adapters()
    }

    /// Loads the adapters of the sequences that were just admitted. If one cannot be loaded, its sequences fail, and the step is planned
    /// again by the next call of [`schedule`](Self::schedule).
    fn load_adapters(&mut self) -> Result<(), EngineError> {
        while let Some((place, adapter)) = self.sequences.adapters.next_due() {
            match self.engine.load_adapter(place, &adapter.adapter) {
                Ok(()) => tracing::debug!(adapter = &*adapter.name, place, "an adapter is loaded"),
                Err(error) if error.is_final() => return Err(error),
                Err(error) => {
                    tracing::warn!("the adapter {} cannot be loaded: {error}", adapter.name);
                    let uses = |sequence: &&Sequence| sequence.adapters.iter().any(|of| of.place == place);
                    let ids = self.sequences.running.iter().filter(uses).map(|sequence| sequence.id).collect();
                    self.drop_planned(ids, &format!("the adapter {} cannot be loaded: {error}", adapter.name))?;
                    self.sequences.adapters.forget(place);
                }
            }
        }
        Ok(())
    }

    /// Grows the cache until `count` blocks are free, if it can. Returns whether it has grown.
    fn grow(&mut self, count: usize) -> Result<bool, EngineError> {
        let Sequences { blocks, metrics, .. } = &mut self.sequences;
        self.cache_size.make_free(&mut *self.engine, blocks, metrics, count)
    }

    /// Gives cache memory back, until `bytes` bytes are given back or the rest is in use. Returns the number of bytes given back.
    ///
    /// # Errors
    /// Same as [`step`](Self::step).
    pub fn give_back(&mut self, bytes: u64, cost: Cost) -> Result<u64, EngineError> {
        self.collect_until(0).map_err(|error| self.lose_steps(error))?;
        if cost == Cost::Sequences {
            let kept = self.cache_size.kept_blocks(&self.sequences.blocks, bytes);
            while self.sequences.blocks.num_pinned(true) > kept && !self.sequences.running.is_empty() {
                self.sequences.preempt_youngest();
            }
        }
        if cost > Cost::Nothing {
            let emptied = self.sequences.adapters.empty_unused();
            emptied.into_iter().for_each(|place| self.engine.unload_adapter(place));
            self.guesser.give_back();
        }
        let Sequences { blocks, metrics, .. } = &mut self.sequences;
        let given = self.cache_size.give_back(&mut *self.engine, blocks, metrics, (bytes, cost > Cost::Nothing));
        self.show_load();
        given
    }

    /// Stops the cache from growing for a while, because another model needs memory.
    pub fn hold_back(&mut self) {
        self.cache_size.hold_back();
    }

    /// Makes the model share its device with others.
    pub fn join(&mut self, (time_slices, cache_handle): (TimeSliceClient, CacheHandle), heartbeat: Arc<Heartbeat>) {
        self.cache_size.join(cache_handle);
        self.time_slices = Some((time_slices, heartbeat));
    }

    /// Memory requests of other models to this one's cache.
    pub fn requests(&self) -> Receiver<MemoryRequest> {
        self.cache_size.requests()
    }

    /// Tells the other models on the device whether this one has work.
    pub fn show_work(&mut self) {
        let has_work = self.has_work();
        if let Some((time_slices, _)) = &mut self.time_slices {
            time_slices.set_busy(has_work);
        }
    }

    /// Sizes of the cache: in use, backed, and the most that can be backed [bytes]. Updates their gauges.
    pub fn cache_bytes(&self) -> [u64; 3] {
        self.cache_size.show(&self.sequences.blocks, &self.sequences.gauges, self.has_work())
    }

    fn submit(&mut self) -> Result<(), StepError> {
        let began = Instant::now();
        let submitted = self.engine.submit(&self.plan.batch);
        self.num_turns += 1;
        let step = match submitted {
            Ok(step) => step,
            Err(error) if error.is_final() => return Err(StepError::Failed(error)),
            Err(error) => {
                self.drop_youngest(&error)?;
                return Err(StepError::Refused(error));
            }
        };
        let is_loop = self.plan.batch.loop_steps > 0;
        if !is_loop {
            self.sequences.metrics.step_tokens.observe(self.plan.batch.inputs.len() as f64);
        }
        let next = self.spare.pop().unwrap_or_default();
        let (scheduled, num_rows) = (std::mem::replace(&mut self.plan.scheduled, next), self.plan.batch.inputs.len());
        self.in_flight.push_back(InFlight { step, scheduled, is_loop, num_rows, began });
        if self.plan.batch.sample_later { Ok(self.sample()?) } else { Ok(()) }
    }

    /// Runs the second half of a step with grammars. While the step's forward pass runs, the tokens of the previous step advance the
    /// grammars, and the masks are computed.
    fn sample(&mut self) -> Result<(), EngineError> {
        self.collect_until(1)?;
        let Some(InFlight { step, scheduled, .. }) = self.in_flight.back_mut() else { return Ok(()) };
        let masks = self.masks.gather(&mut self.sequences.running, scheduled, Instant::now() + PATIENCE);
        self.engine.sample(*step, masks)?;
        self.masks.settle(&mut self.sequences);
        Ok(())
    }

    /// Collects and commits the oldest steps until `num_left` steps are in flight. If a loop is among them, all loops end early.
    fn collect_until(&mut self, mut num_left: usize) -> Result<(), EngineError> {
        let num_collected = self.in_flight.len().saturating_sub(num_left);
        if self.in_flight.iter().take(num_collected).any(|step| step.is_loop) {
            self.engine.end_loops();
            num_left = 0;
        }
        while self.in_flight.len() > num_left {
            self.collect_next()?;
        }
        Ok(())
    }

    /// Prepares the next step of the sequences that go on: asks what follows them, and advances the grammars. While models take turns,
    /// nothing is asked, since no turn is for it.
    fn prepare_next(&mut self) -> Result<(), EngineError> {
        let is_contended = self.time_slices.as_ref().is_some_and(|(time_slices, _)| time_slices.is_contended());
        if !is_contended && self.in_flight.is_empty() && self.guesser.ask(&mut *self.engine, &mut self.sequences, &self.advanced)? {
            self.num_turns += 1;
        }
        for Advanced { id, tokens } in self.advanced.drain(..) {
            if let Some(sequence) = self.sequences.running.get_mut(id) {
                sequence.advance_grammar(&tokens, &mut self.mask_threads);
            }
        }
        Ok(())
    }

    /// Collects and commits the oldest step, or the next one of the oldest loop. Returns false if the loop has ended before it.
    fn collect_next(&mut self) -> Result<bool, EngineError> {
        let Some(InFlight { step, mut scheduled, is_loop, num_rows, began }) = self.in_flight.pop_front() else { return Ok(true) };
        self.engine.collect(step, &mut self.output)?;
        self.num_turns += 1;
        if let Some(disk) = self.disk.as_mut().filter(|_| !is_loop) {
            disk.learn(num_rows, began.elapsed());
        }
        // End the time slice first, so that other models compute while this step's tokens are handed out.
        if let Some(slice) = self.slice.take_if(|_| self.in_flight.is_empty()) {
            self.step_took = slice.elapsed();
        }
        let is_there = !(is_loop && self.output.sampled.is_empty());
        if is_there {
            commit::check(&scheduled, &self.output)?;
            commit::commit(&mut self.sequences, &mut self.advanced, &scheduled, &mut self.output);
        }
        if is_loop && self.move_on(&mut scheduled, is_there) {
            self.in_flight.push_front(InFlight { step, scheduled, is_loop, num_rows, began });
        } else {
            self.spare.push(scheduled);
        }
        self.prepare_next()?;
        Ok(is_there)
    }

    /// Moves the parts of a loop on, after one of its steps was collected or it has ended. Returns whether further steps follow.
    fn move_on(&mut self, scheduled: &mut [Scheduled], is_there: bool) -> bool {
        if is_there {
            self.loops.collect();
            self.sequences.metrics.step_tokens.observe(scheduled.len() as f64);
        }
        for part in scheduled.iter_mut() {
            let num_run = usize::from(is_there).min(part.num_steps);
            (part.end, part.num_steps) = (part.end + num_run, part.num_steps - num_run);
            let Some(sequence) = self.sequences.running.get_mut(part.id) else { continue };
            if !self.output.goes_on {
                sequence.take_back(std::mem::take(&mut part.num_steps));
            } else if num_run > 0 {
                self.sequences.waiting.charge(part.request, 1);
            }
        }
        if !self.output.goes_on && self.in_flight.is_empty() {
            self.loops.end();
        }
        self.output.goes_on
    }

    /// Waits briefly for a mask if nothing can run because running sequences wait for theirs. The wait is short, because it also delays new
    /// sequences.
    fn wait_for_mask(&mut self) {
        let (now, has_state) = (Instant::now(), self.sequences.blocks.has_state());
        if let Some(sequence) =
            self.sequences.running.iter_mut().find_map(|sequence| sequence.awaits_mask(now, has_state).then_some(sequence))
            && let Some(grammar) = sequence.grammar.as_mut().filter(|_| self.in_flight.is_empty())
        {
            // Waiting for a grammar is not a hang, because a grammar has its own time budget.
            self.num_turns += 1;
            grammar.is_ready_by(now + PATIENCE / 4);
        }
    }

    /// Waits briefly if nothing can run: for memory that other models hold and may give back, or for files.
    fn wait_briefly(&mut self) {
        let is_short = self.sequences.running.is_empty() && self.sequences.blocks.num_backed() < self.sequences.blocks.num_blocks();
        if is_short && self.in_flight.is_empty() && !self.sequences.waiting.is_empty() {
            std::thread::sleep(Duration::from_millis(2));
            // Waiting for other models' memory is not a hang.
            self.num_turns += 1;
        }
        self.wait_for_files();
    }

    /// Reverts a step that the engine refused, for example for lack of memory. Fails the youngest sequence in it, and the others continue
    /// in a smaller step. Preempting the youngest would not help, because the same step would be planned again.
    fn drop_youngest(&mut self, error: &EngineError) -> Result<(), EngineError> {
        self.drop_planned(self.plan.youngest().into_iter().collect(), &format!("the engine failed: {error}"))
    }

    /// Takes the planned step back, and fails some of its sequences.
    fn drop_planned(&mut self, ids: Vec<u64>, why: &str) -> Result<(), EngineError> {
        self.plan.undo(&mut self.sequences);
        // The next step no longer directly follows the one in flight, so it needs the sampled ids by value.
        self.collect_until(0)?;
        // A sequence may have ended just now. Then the next step differs anyway.
        ids.into_iter().for_each(|id| self.sequences.fail(id, Event::Failed(why.to_owned())));
        // Without its copy, a sequence may have to compute all tokens again, so it is preempted. Only the youngest sequences can be
        // preempted, so all that are younger are too.
        if let Some(oldest) = self.plan.oldest_without_copy(&self.sequences) {
            while self.sequences.running.youngest().is_some_and(|youngest| youngest >= oldest) {
                self.sequences.preempt_youngest();
            }
        }
        self.plan.scheduled.clear();
        Ok(())
    }

    /// Collects and ignores the steps in flight, because the engine requires that steps are collected in order.
    fn abandon_in_flight(&mut self) {
        self.engine.end_loops();
        while let Some(InFlight { step, .. }) = self.in_flight.pop_front() {
            // Later errors are ignored: only the first is reported.
            while self.engine.collect(step, &mut self.output).is_ok() && self.output.goes_on {}
        }
    }

    /// Fails every sequence without releasing memory, because the block manager may be inconsistent after a panic.
    pub fn fail_all(&mut self, message: &str) {
        self.slice = None;
        self.sequences.fail_all(self.disk.iter_mut().flat_map(DiskTier::drain), message);
        self.in_flight.clear();
    }

    /// Number of steps submitted, refused or collected so far. Also grows during waits that are not hangs.
    pub fn num_turns(&self) -> u64 {
        self.num_turns
    }

    /// A counter that grows while a step computes, if the engine has one.
    pub fn progress(&self) -> Option<Progress> {
        self.engine.progress()
    }

    /// Whether the steps run on a device, which waits while the engine thread does.
    pub fn has_device(&self) -> bool {
        self.engine.info().backend == BackendKind::Cuda
    }

    /// Updates the gauges of device memory, if the engine has a device.
    pub fn measure_memory(&self) {
        if let Some(memory) = self.engine.memory() {
            self.sequences.gauges.set(|load| load.device_bytes = Some([memory.free, memory.total, memory.held]));
        }
    }

    /// The engine's part of the model's gauges.
    pub fn gauges(&self) -> &Arc<EngineGauges> {
        &self.sequences.gauges
    }

    #[cfg(test)]
    pub fn sequences(&self) -> &Sequences {
        &self.sequences
    }

    /// Checks the invariants; panics if one is broken.
    #[cfg(test)]
    pub fn check(&self) {
        self.sequences.check(self.disk.iter().flat_map(DiskTier::held_blocks));
        assert!(self.in_flight.len() < self.max_in_flight || self.in_flight.iter().all(|step| step.is_loop));
    }
}

#[path = "exchange.rs"]
mod exchange;
