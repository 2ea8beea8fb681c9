//! The test engine. Its "logits" are a hash of the part of the context that each cache group sees, read back through the block tables from
//! a paged cache of token ids. With state slots it is also a small recurrent model, whose "logits" depend on a state that each row
//! advances. So a wrong table, a block shared or given back too early, a row at the wrong position or a wrong state changes the text or
//! fails an assertion here.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex};

use engine::{
    Adapter, Batch, CacheGroup, CachePart, DeviceMemory, DraftHeadInfo, DraftRequest, Engine, EngineError, EngineInfo, Input, KvCapacity,
    LoopLimits, Masks, Pooling, PortableCache, Progress, Sampled, Scored, SlotInit, StepId, StepOutput,
};
use logits::{Logprobs, SamplingParams, mask_words};
use model::ModelSpec;

use crate::new_sequence::NewSequence;
use entries::{FakeAdapters, adapted, entry};
pub use entries::{embedded, entries, fake_adapter};
use loops::FakeLoops;

pub const VOCAB: u32 = 50;
/// Floats per embedding.
pub const HIDDEN: usize = 2;
/// Cache entries from this value up stand for embeddings. Token ids are below it.
const EMBEDDED: u32 = 1 << 30;
const EMPTY: u32 = u32::MAX;
/// Memory per block [bytes].
pub const BLOCK_BYTES: u64 = 100;
/// Number of blocks that are backed together.
const PAGE_BLOCKS: usize = 2;

/// A bit of a sequence's seed: its third token gets logits that are not finite.
pub const NAN_SEED: u64 = 1 << 40;

/// Settings and observations of a test.
#[derive(Default)]
pub struct Control {
    /// The step that faults, with its error, or None for a panic.
    pub fault: Option<(u64, Option<EngineError>)>,
    /// Whether the fault happens in `collect` rather than in `submit`.
    pub fault_in_collect: bool,
    /// The most sequences that a step has memory for. 0: any number.
    pub max_seqs: usize,
    /// Duration of a step.
    pub step_time: std::time::Duration,
    /// Duration of a query of the device's memory.
    pub memory_time: std::time::Duration,
    /// The most blocks that can be backed. None: all.
    pub memory: Option<usize>,
    /// Additional time per row, on a device that runs one step at a time.
    pub row_time: std::time::Duration,
    pub device: Arc<Mutex<()>>,
    /// Number of parts of `step_time` after each of which the engine shows progress. 0: the engine shows none.
    pub num_pieces: u32,
    pub num_steps: u64,
    /// Number of steps that ran in loops.
    pub num_loop_steps: u64,
    pub num_rows: usize,
    pub max_rows: usize,
    /// Number of blocks copied.
    pub num_copies: usize,
    /// Number of state slots copied.
    pub num_state_copies: usize,
    /// Number of sequences for which the draft head was asked.
    pub num_asked: usize,
    /// Number of rows of each sequence in the latest step.
    pub last_rows: Vec<u32>,
}

/// The content of a sequence slot.
struct SequenceSlot {
    init: SlotInit,
    /// (step, id) of the latest sample
    sampled: Option<(u64, u32)>,
    /// Number of rows of the prompt that are embeddings. Known once a row was sampled.
    num_embedded: Option<usize>,
    /// The vector so far, for a sequence that is pooled.
    pooled: Vec<f32>,
    /// Whether the logits were not finite. Later steps in flight may still use this slot and must not disturb the others.
    broken: bool,
}

/// The state of a recurrent model after `len` rows.
#[derive(Clone, Copy, Debug, Default)]
struct RecurrentState {
    len: usize,
    hash: u64,
}

/// The content of one position of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CachedToken {
    /// The value that later rows see: a token id, or a hash of an embedding, or of a token at another position than its index.
    entry: u32,
    /// A token id, or a value that stands for an embedding.
    token: u32,
    group: usize,
    position: usize,
}

const NOTHING: CachedToken = CachedToken { entry: EMPTY, token: EMPTY, group: usize::MAX, position: 0 };

/// A step whose masks have not arrived.
struct Unsampled {
    step: StepId,
    batch: Batch,
    states: Vec<u64>, // [num_tokens] hash of the state after each row; 0 without recurrent state
}

pub struct FakeEngine {
    capacity: KvCapacity,
    max_slots: usize,
    max_in_flight: usize,
    kv: Vec<CachedToken>,        // [num_blocks * block_size]
    states: Vec<RecurrentState>, // [num_state_slots]
    slots: HashMap<u32, SequenceSlot>,
    done: VecDeque<(StepId, StepOutput)>,
    unsampled: Option<Unsampled>,
    progress: Progress,
    /// Number of leading blocks that are backed.
    num_backed: usize,
    draft_head: Option<DraftHeadInfo>,
    /// Whether every third token is another one than [`next_token`] says.
    is_draft: bool,
    adapters: FakeAdapters,
    loops: FakeLoops,
    control: Arc<Mutex<Control>>,
}

fn mix(hash: u64, token: u32) -> u64 {
    (hash ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23)
}

/// The next token. It depends only on the part of the context that each group sees and on the state (0 for models without state).
fn token_after<'a>(seen: impl Iterator<Item = &'a [u32]>, state: u64, seed: u64) -> u32 {
    ((seen.flatten().fold(seed, |hash, &token| mix(hash, token)) ^ state) >> 7) as u32 % VOCAB
}

/// The first position that a group's row at `position` sees.
fn first_seen(group: &CacheGroup, position: usize) -> usize {
    group.window.map_or(0, |window| window.first_seen(position))
}

/// The next token of a model with these cache groups after `context`. If the model has state slots, the recurrent state counts, too.
pub fn next_token(context: &[u32], params: &SamplingParams, capacity: &KvCapacity) -> u32 {
    let seen = capacity.groups.iter().map(|group| &context[first_seen(group, context.len() - 1)..]);
    let state = if capacity.has_state() { context.iter().fold(0, |hash, &token| mix(hash, token)) } else { 0 };
    token_after(seen, state, params.seed)
}

/// The second float of row `row` of a run of `num_rows` rows that see each other. The engine fails if a step has only a part of them.
pub fn whole_mark(row: usize, num_rows: usize) -> f32 {
    (num_rows * 1000 + row) as f32
}

/// The first allowed token at or after `id`, cyclically.
pub fn masked_token(id: u32, mask: &[u32]) -> u32 {
    let allowed = |id: &u32| mask[*id as usize / 32] >> (id % 32) & 1 == 1;
    (id..VOCAB).chain(0..id).find(allowed).expect("the mask allows an id")
}

/// "Log-probabilities" from which a test reads the token and the number requested.
fn logprobs(sampled: Sampled, asked: Option<u8>) -> Option<Logprobs> {
    let Sampled::Token(id) = sampled else { return None };
    asked.map(|n| Logprobs { chosen: -(id as f32), top: (0..u32::from(n)).map(|i| (i, -(i as f32))).collect() })
}

/// The expected scores of the prompt's tokens, starting at the second.
pub fn scores(prompt: &[u32], n: u8, capacity: &KvCapacity) -> Vec<Logprobs> {
    // A score depends on the context only, not on the state.
    let capacity = KvCapacity { num_state_slots: 0, ..capacity.clone() };
    let score = |end: usize| Logprobs {
        chosen: -((next_token(&prompt[..=end], &SamplingParams::greedy(), &capacity) * 10) as f32),
        top: (0..u32::from(n)).map(|i| (i, -(i as f32))).collect(),
    };
    (1..prompt.len()).map(score).collect()
}

/// The expected "vector" of a prompt. A mean holds every token, in order.
pub fn vector(prompt: &[u32], kind: Pooling) -> Vec<f32> {
    let all: Vec<f32> = prompt.iter().map(|&id| id as f32).collect();
    match kind {
        Pooling::First => vec![all[0]],
        Pooling::Last | Pooling::Rank => vec![all[all.len() - 1]],
        Pooling::Mean => all,
    }
}

/// The result of a sequence that runs alone: its tokens, and whether it sampled a stop id.
pub fn solo_run(new: &NewSequence, capacity: &KvCapacity) -> (Vec<u32>, bool) {
    let change = |(at, entry): (usize, u32)| adapted(entry, at, &new.adapters);
    let (mut context, mut tokens): (Vec<u32>, _) = (entries(&new.prompt).into_iter().enumerate().map(change).collect(), Vec::new());
    if new.max_tokens == 0 {
        return (tokens, false);
    }
    loop {
        let token = next_token(&context, &new.params, capacity);
        if new.stop_ids.contains(&token) {
            return (tokens, true);
        }
        let position = new.prompt.next_position() + tokens.len() as u32;
        context.push(change((context.len(), entry(token, context.len(), [position; 3]))));
        tokens.push(token);
        if tokens.len() == new.max_tokens as usize || context.len() > capacity.max_tokens() {
            return (tokens, false);
        }
    }
}

impl FakeEngine {
    pub fn new(capacity: KvCapacity, max_slots: usize, max_in_flight: usize) -> (Self, Arc<Mutex<Control>>) {
        let (control, num_backed) = (Arc::new(Mutex::new(Control::default())), capacity.num_blocks);
        let engine = Self {
            kv: vec![NOTHING; capacity.num_blocks * capacity.block_size],
            states: vec![RecurrentState::default(); capacity.num_state_slots],
            capacity,
            max_slots,
            max_in_flight,
            slots: HashMap::new(),
            done: VecDeque::new(),
            unsampled: None,
            progress: Progress::default(),
            num_backed,
            draft_head: None,
            is_draft: false,
            adapters: FakeAdapters::default(),
            loops: FakeLoops::default(),
            control: control.clone(),
        };
        (engine, control)
    }

    /// Like [`FakeEngine::new`], with memory for the first `num_backed` blocks only.
    pub fn backed(self, num_backed: usize) -> Self {
        Self { num_backed, ..self }
    }

    /// Asserts that a block that this step writes to is in one sequence's table only: shared blocks are never written.
    fn check_ownership(&self, batch: &Batch) {
        let written: HashSet<u32> = batch.slot_mapping.iter().map(|at| at / self.capacity.block_size as u32).collect();
        let num_places = batch.num_tokens() * self.capacity.groups.len();
        assert_eq!(batch.slot_mapping.iter().collect::<HashSet<_>>().len(), num_places, "two rows write to one position");
        assert_eq!(batch.slot_mapping.len(), num_places);
        assert_eq!(batch.block_tables.len(), self.capacity.groups.len() * batch.num_seqs() * batch.max_blocks);
        let mut seen = HashSet::new();
        for (group, kind) in self.capacity.groups.iter().enumerate() {
            for i in 0..batch.num_seqs() {
                let table = batch.block_table(group, i);
                let first = first_seen(kind, batch.indices(i).start as usize) / self.capacity.block_size;
                let used = (batch.context_lens[i] as usize).div_ceil(self.capacity.block_size);
                for block in table[first..used].iter().filter(|block| written.contains(block)) {
                    assert!(seen.insert(*block), "block {block} is written and shared");
                }
                assert!(table.iter().all(|&block| (block as usize) < self.num_backed), "a block without memory");
            }
        }
        assert_eq!(batch.sequence_slots.iter().collect::<HashSet<_>>().len(), batch.num_seqs(), "an engine slot twice in a batch");
        let num_states = if self.capacity.has_state() { batch.num_seqs() } else { 0 };
        assert_eq!(batch.state_slots.len(), num_states, "one state slot per sequence");
        assert_eq!(batch.state_slots.iter().collect::<HashSet<_>>().len(), num_states, "a state slot twice in a batch");
    }

    /// Index in `kv` of a position of sequence `i` in a group.
    fn at(&self, batch: &Batch, group: usize, i: usize, position: usize) -> usize {
        let table = batch.block_table(group, i);
        table[position / self.capacity.block_size] as usize * self.capacity.block_size + position % self.capacity.block_size
    }

    /// The tokens that each group sees at a position of sequence `i`, read from the cache.
    fn seen(&self, batch: &Batch, i: usize, position: usize) -> Vec<Vec<CachedToken>> {
        let of = |(group, kind): (usize, &CacheGroup)| {
            let token = |at: usize| {
                let kept = self.kv[self.at(batch, group, i, at)];
                assert_eq!((kept.group, kept.position), (group, at), "a block that was given back or never written is read");
                kept
            };
            (first_seen(kind, position)..=position).map(token).collect()
        };
        self.capacity.groups.iter().enumerate().map(of).collect()
    }

    /// Writes a sequence's rows to the cache and advances its state.
    fn write(&mut self, batch: &Batch, i: usize, step: u64, states: &mut Vec<u64>) {
        let rows = batch.rows(i);
        let slot = self.slots.get_mut(&batch.sequence_slots[i]).expect("an initialised engine slot");
        if let Some(request) = batch.vectors.get(i).copied().flatten() {
            slot.pool(batch, rows.start, rows.end, request);
        }
        for (row, position) in rows.zip(batch.indices(i)) {
            let position = position as usize;
            let token = self.token(batch, i, row, step);
            let entry = if token == EMPTY { EMPTY } else { entry(token, position, batch.positions_of(row)) };
            let entry = self.adapters.change(entry, batch, (i, position));
            for group in 0..self.capacity.groups.len() {
                let at = self.at(batch, group, i, position);
                assert_eq!(batch.places(group)[row] as usize, at);
                self.kv[at] = CachedToken { entry, token, group, position };
            }
            states.push(self.move_on(batch, i, position, entry));
        }
    }

    /// The cache entry that a row writes.
    fn token(&self, batch: &Batch, i: usize, row: usize, step: u64) -> u32 {
        let slot = &self.slots[&batch.sequence_slots[i]];
        match batch.inputs[row] {
            Input::Token(id) => id,
            Input::Embedding(at) => {
                let embedding = &batch.embeddings[at as usize * HIDDEN..][..HIDDEN];
                let (num_rows, at) = (embedding[1] as usize / 1000, embedding[1] as usize % 1000);
                if num_rows > 0 {
                    let rows = batch.rows(i);
                    assert!(rows.start + at <= row && row - at + num_rows <= rows.end, "a run whose rows see each other is cut");
                }
                embedded(embedding)
            }
            Input::Sampled(_) if slot.broken => EMPTY,
            Input::Sampled(from) => {
                assert_eq!(from, batch.sequence_slots[i]);
                let (when, id) = slot.sampled.expect("a token was sampled");
                assert_eq!(when + 1, step, "sampled in the step before");
                id
            }
        }
    }

    /// Advances the state of sequence `i` by the row at `position`. Returns the state's hash.
    fn move_on(&mut self, batch: &Batch, i: usize, position: usize, token: u32) -> u64 {
        let Some(&slot) = batch.state_slots.get(i) else { return 0 };
        let state = &mut self.states[slot as usize];
        if position == 0 {
            *state = RecurrentState::default();
        }
        assert_eq!(state.len, position, "state slot {slot} holds the state of another position");
        *state = RecurrentState { len: position + 1, hash: mix(state.hash, token) };
        state.hash
    }

    /// Samples row `row` of sequence `i`. `is_first`: whether no earlier row of the sequence is sampled in this step.
    fn draw(&mut self, unsampled: &Unsampled, i: usize, row: usize, is_first: bool, mask: Option<&[u32]>) -> Sampled {
        let batch = &unsampled.batch;
        let position = batch.indices(i).start as usize + row - batch.rows(i).start;
        let seen = self.seen(batch, i, position);
        let slot = self.slots.get_mut(&batch.sequence_slots[i]).expect("an initialised engine slot");
        if slot.broken {
            return if is_first { Sampled::NotFinite } else { Sampled::Skipped };
        }
        let known: Vec<u32> = slot.init.prompt.iter().chain(&slot.init.generated).copied().collect();
        let num_embedded = *slot.num_embedded.get_or_insert(position + 1 - known.len());
        let agrees = |seen: &Vec<CachedToken>| {
            let tokens: Vec<u32> = seen.iter().map(|kept| kept.token).filter(|&token| token < EMBEDDED).collect();
            known.ends_with(&tokens) && seen.len() - tokens.len() <= num_embedded
        };
        let fits = known.len() + num_embedded == position + 1 && seen.iter().all(agrees);
        assert!(fits || !is_first, "the cache holds the prompt and the generated tokens: {known:?}, not {seen:?}");
        if !fits {
            return Sampled::Skipped;
        }
        if slot.init.params.seed & NAN_SEED != 0 && slot.init.generated.len() == 2 {
            slot.broken = true;
            return Sampled::NotFinite;
        }
        let seen: Vec<Vec<u32>> = seen.iter().map(|seen| seen.iter().map(|kept| kept.entry).collect()).collect();
        let id = token_after(seen.iter().map(|seen| &seen[..]), unsampled.states[row], slot.init.params.seed);
        let id = if self.is_draft && position % 3 == 2 { (id + 1) % VOCAB } else { id };
        let id = mask.map_or(id, |mask| masked_token(id, mask));
        slot.init.generated.push(id);
        slot.sampled = Some((unsampled.step.0, id));
        Sampled::Token(id)
    }

    /// The scores of a batch whose rows are in the cache.
    fn score(&self, batch: &Batch) -> Vec<Option<Logprobs>> {
        let score = |scored: &Scored| {
            let i = batch.cu_seqlens_q.partition_point(|&from| from <= scored.row) - 1;
            let last = batch.positions[scored.row as usize] as usize;
            let prompt = &self.slots[&batch.sequence_slots[i]].init.prompt;
            assert_eq!(prompt[last + 1], scored.id, "the prompt's next token");
            for seen in self.seen(batch, i, last) {
                assert!(prompt[..=last].ends_with(&seen.iter().map(|kept| kept.token).collect::<Vec<_>>()), "what a group sees");
            }
            scores(&prompt[..=last + 1], scored.num_logprobs, &self.capacity).pop()
        };
        batch.scored.iter().map(score).collect()
    }

    /// Copies blocks and state slots. Every copy belongs to a sequence of the step, and its source is no copy itself.
    fn copy(&mut self, batch: &Batch) {
        let block_size = self.capacity.block_size;
        for &(from, to) in &batch.copies {
            assert!(batch.block_tables.contains(&to), "a copied block that no sequence holds");
            assert!(batch.copies.iter().all(|other| other.1 != from), "a copy of a copied block");
            self.kv.copy_within(from as usize * block_size..(from as usize + 1) * block_size, to as usize * block_size);
        }
        for &(from, to) in &batch.state_copies {
            assert!(batch.state_slots.contains(&to) || batch.state_slots.contains(&from), "a copied state of no sequence");
            assert!(batch.state_copies.iter().all(|other| other.1 != from), "a copy of a copied state");
            self.states[to as usize] = self.states[from as usize];
        }
        let mut control = self.control.lock().unwrap();
        control.num_copies += batch.copies.len();
        control.num_state_copies += batch.state_copies.len();
    }

    fn fault(&self, step: u64, in_collect: bool) -> Result<(), EngineError> {
        let mut control = self.control.lock().unwrap();
        if control.fault_in_collect == in_collect && control.fault.as_ref().is_some_and(|(at, _)| *at == step) {
            let fault = control.fault.take().and_then(|(_, error)| error);
            drop(control);
            return Err(fault.unwrap_or_else(|| panic!("a bug in the engine")));
        }
        Ok(())
    }

    /// Counts a step.
    ///
    /// # Errors
    /// The step needs more memory than the test allows.
    fn count_step(&self, batch: &Batch) -> Result<u64, EngineError> {
        let mut control = self.control.lock().unwrap();
        control.num_steps += 1;
        control.num_rows += batch.num_tokens();
        control.max_rows = control.max_rows.max(batch.num_tokens());
        control.last_rows = batch.cu_seqlens_q.windows(2).map(|w| w[1] - w[0]).collect();
        let row_time = control.row_time * batch.num_tokens() as u32;
        if !row_time.is_zero() {
            let (device, step_time) = (control.device.clone(), control.step_time);
            drop(control);
            let _busy = device.lock().unwrap();
            std::thread::sleep(step_time + row_time);
            return Ok(self.control.lock().unwrap().num_steps);
        }
        let num_pieces = control.num_pieces;
        for _ in 0..num_pieces.max(1) {
            std::thread::sleep(control.step_time / num_pieces.max(1));
            (num_pieces > 0).then(|| self.progress.add());
        }
        if control.max_seqs > 0 && batch.num_seqs() > control.max_seqs {
            return Err(EngineError::OutOfMemory(format!("{} sequences", batch.num_seqs())));
        }
        Ok(control.num_steps)
    }
}

impl Engine for FakeEngine {
    fn spec(&self) -> &ModelSpec {
        unreachable!("the scheduler never asks")
    }

    fn kv_capacity(&self) -> KvCapacity {
        self.capacity.clone()
    }

    fn max_slots(&self) -> usize {
        self.max_slots
    }

    fn max_in_flight(&self) -> usize {
        self.max_in_flight
    }

    fn memory(&self) -> Option<DeviceMemory> {
        let time = self.control.lock().unwrap().memory_time;
        std::thread::sleep(time);
        None
    }

    fn info(&self) -> EngineInfo {
        EngineInfo { kv_block_bytes: BLOCK_BYTES, row_cost: 0.05, draft_head: self.draft_head, draft_states: 6, ..EngineInfo::default() }
    }

    fn num_backed_blocks(&self) -> usize {
        self.num_backed
    }

    fn resize_cache(&mut self, num_blocks: usize) -> Result<usize, EngineError> {
        assert!(num_blocks >= self.num_backed || self.done.is_empty() && self.loops.is_empty(), "a step in flight may use them");
        let most = self.control.lock().unwrap().memory.unwrap_or(usize::MAX).max(self.num_backed);
        self.num_backed = num_blocks.next_multiple_of(PAGE_BLOCKS).min(self.capacity.num_blocks).min(most);
        let size = self.capacity.block_size;
        self.kv[self.num_backed * size..].fill(NOTHING);
        Ok(self.num_backed)
    }

    fn progress(&self) -> Option<Progress> {
        Some(self.progress.clone())
    }

    fn portable_cache(&self) -> Option<PortableCache> {
        Some(portable::form(&self.capacity))
    }

    fn export(&self, part: CachePart, out: &mut Vec<u8>) -> Result<(), EngineError> {
        self.export_part(part, out);
        Ok(())
    }

    fn import(&mut self, part: CachePart, bytes: &[u8]) -> Result<(), EngineError> {
        self.import_part(part, bytes);
        Ok(())
    }

    fn max_adapters(&self) -> usize {
        FakeAdapters::PLACES
    }

    fn load_adapter(&mut self, place: u32, adapter: &Adapter) -> Result<(), EngineError> {
        assert!(self.max_in_flight > 1 || self.done.is_empty(), "a step in flight may use the place");
        self.adapters.load(place, adapter)
    }

    fn unload_adapter(&mut self, place: u32) {
        self.adapters.unload(place);
    }

    fn loop_limits(&self) -> Option<LoopLimits> {
        self.loops.limits
    }

    fn end_loops(&mut self) {
        self.loops.end();
    }

    fn submit(&mut self, batch: &Batch) -> Result<StepId, EngineError> {
        assert!(self.done.len() + self.loops.len() < self.max_in_flight, "too many steps in flight");
        assert!(batch.num_seqs() > 0 && batch.num_seqs() <= self.max_slots);
        if batch.loop_steps > 0 {
            self.check_ownership(batch);
            return Ok(self.loops.submit(batch, self.capacity.block_size));
        }
        assert!(self.loops.is_empty() && batch.rooms.is_empty(), "a step behind a loop, which may end early");
        let step = self.count_step(batch)?;
        self.fault(step, false)?;
        self.check_ownership(batch);
        for init in &batch.init {
            assert!((init.slot as usize) < self.max_slots);
            self.slots.insert(
                init.slot,
                SequenceSlot { init: init.clone(), sampled: None, num_embedded: None, pooled: Vec::new(), broken: false },
            );
        }
        self.copy(batch);
        assert!(self.unsampled.is_none(), "the step before was not sampled");
        let mut states = Vec::new();
        (0..batch.num_seqs()).for_each(|i| self.write(batch, i, step, &mut states));
        self.unsampled = Some(Unsampled { step: StepId(step), batch: batch.clone(), states });
        if !batch.sample_later {
            self.sample(StepId(step), &Masks { of: vec![None; batch.num_sampled()], ..Masks::default() })?;
        }
        Ok(StepId(step))
    }

    fn sample(&mut self, step: StepId, masks: &Masks) -> Result<(), EngineError> {
        let unsampled = self.unsampled.take().expect("a step that waits to be sampled");
        let batch = &unsampled.batch;
        assert_eq!((unsampled.step, masks.of.len()), (step, batch.num_sampled()));
        let mut sampled = Vec::new();
        let mut before = None;
        for (k, i) in batch.sampled_seqs().enumerate() {
            let mask = masks.of[k].map(|mask| &masks.words[mask as usize * mask_words(VOCAB as usize)..]);
            sampled.push(self.draw(&unsampled, i, batch.sampled_rows[k] as usize, before.replace(i) != Some(i), mask));
        }
        self.go_back(&unsampled, &sampled);
        let batch = &unsampled.batch;
        let logprobs = sampled.iter().zip(&batch.num_logprobs).map(|(sampled, asked)| logprobs(*sampled, *asked)).collect();
        let complete = |i: usize| batch.vectors.get(i).copied().flatten().is_some_and(|request| request.complete);
        let vector = |i| if complete(i) { self.slots[&batch.sequence_slots[i]].pooled.clone() } else { Vec::new() };
        let vectors = (0..batch.num_seqs()).map(vector).collect();
        let scored = self.score(batch);
        self.done.push_back((step, StepOutput { sampled, logprobs, scored, vectors, ..StepOutput::default() }));
        Ok(())
    }

    fn draft(&mut self, requests: &[DraftRequest]) -> Result<Vec<Vec<u32>>, EngineError> {
        self.control.lock().unwrap().num_asked += requests.len();
        Ok(requests.iter().map(|request| self.guess(request)).collect())
    }

    fn collect(&mut self, step: StepId, out: &mut StepOutput) -> Result<(), EngineError> {
        let Some((id, result)) = self.done.pop_front() else { return self.collect_loop(step, out) };
        assert_eq!(id, step, "collected in order");
        self.fault(step.0, true)?;
        *out = result;
        Ok(())
    }
}

#[path = "fake_entries.rs"]
mod entries;
#[path = "fake_head.rs"]
mod head;
#[path = "fake_loops.rs"]
mod loops;
#[path = "fake_pooling.rs"]
mod pooling;
#[path = "fake_portable.rs"]
mod portable;
#[path = "fake_tests.rs"]
mod tests;
