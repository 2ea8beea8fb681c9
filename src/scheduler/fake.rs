//! An engine whose "logits" are a hash of the context, read back from a paged cache of token ids through the block tables:
//! a wrong table, a block shared too early or a row in the wrong place changes the text, or trips an assertion here.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex};

use crate::engine::{Batch, Engine, EngineError, Input, KvCapacity, Masks, Pool, Pooling, Sampled, Scored, SlotInit, StepId, StepOutput};
use crate::logits::{Logprobs, SamplingParams, mask_words};
use crate::model::ModelSpec;

use super::NewSequence;

pub const VOCAB: u32 = 50;
const EMPTY: u32 = u32::MAX;

/// A sequence whose seed has this bit gets logits that are not finite for its third token.
pub const NAN_SEED: u64 = 1 << 40;

/// What a test may order, and learn.
#[derive(Default)]
pub struct Control {
    /// At this step: an error, or a panic (None).
    pub fault: Option<(u64, Option<EngineError>)>,
    /// Fail in `collect` rather than in `submit`.
    pub fault_in_collect: bool,
    /// The most sequences that a step has memory for; 0: any number.
    pub max_seqs: usize,
    /// Time a step takes.
    pub step_time: std::time::Duration,
    pub num_steps: u64,
    pub num_rows: usize,
    pub max_rows: usize,
    /// Blocks that were copied.
    pub num_copies: usize,
    /// Rows of each sequence in the latest step.
    pub last_rows: Vec<u32>,
}

struct Slot {
    init: SlotInit,
    /// (step, id) of the latest sample
    sampled: Option<(u64, u32)>,
    /// Of a sequence that becomes a "vector".
    pooled: Vec<f32>,
    /// Its logits were not finite: whatever a step in flight still does with it is surplus, and must not disturb the others.
    broken: bool,
}

pub struct FakeEngine {
    capacity: KvCapacity,
    max_slots: usize,
    max_in_flight: usize,
    kv: Vec<u32>, // [num_blocks * block_size] token ids
    slots: HashMap<u32, Slot>,
    done: VecDeque<(StepId, StepOutput)>,
    /// A step whose masks are not there yet.
    unsampled: Option<(StepId, Batch)>,
    control: Arc<Mutex<Control>>,
}

/// The next token of `context`, and of nothing else.
pub fn next_token(context: &[u32], params: &SamplingParams) -> u32 {
    let mix = |hash: u64, token: &u32| (hash ^ u64::from(*token)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    (context.iter().fold(params.seed, mix) >> 7) as u32 % VOCAB
}

/// The first allowed token from `id` on.
pub fn masked_token(id: u32, mask: &[u32]) -> u32 {
    let allowed = |id: &u32| mask[*id as usize / 32] >> (id % 32) & 1 == 1;
    (id..VOCAB).chain(0..id).find(allowed).expect("something is allowed")
}

/// "Log-probabilities" that tell of which token they are, and how many were asked for.
fn logprobs(sampled: Sampled, asked: Option<u8>) -> Option<Logprobs> {
    let Sampled::Token(id) = sampled else { return None };
    asked.map(|n| Logprobs { chosen: -(id as f32), top: (0..u32::from(n)).map(|i| (i, -(i as f32))).collect() })
}

/// What a prompt's tokens from the second on must be told of.
pub fn scores(prompt: &[u32], n: u8) -> Vec<Logprobs> {
    let score = |end: usize| Logprobs {
        chosen: -((next_token(&prompt[..=end], &SamplingParams::greedy()) * 10) as f32),
        top: (0..u32::from(n)).map(|i| (i, -(i as f32))).collect(),
    };
    (1..prompt.len()).map(score).collect()
}

/// A prompt's "vector": every token, in order.
pub fn vector(prompt: &[u32], kind: Pooling) -> Vec<f32> {
    let all: Vec<f32> = prompt.iter().map(|&id| id as f32).collect();
    match kind {
        Pooling::First => vec![all[0]],
        Pooling::Last => vec![all[all.len() - 1]],
        Pooling::Mean => all,
    }
}

/// What a sequence must give when it runs alone: its tokens, and whether it met a stop id.
pub fn solo_run(new: &NewSequence, capacity: usize) -> (Vec<u32>, bool) {
    let mut context = new.prompt.clone();
    if new.max_tokens == 0 {
        return (Vec::new(), false);
    }
    loop {
        let token = next_token(&context, &new.params);
        if new.stop_ids.contains(&token) {
            return (context.split_off(new.prompt.len()), true);
        }
        context.push(token);
        if context.len() - new.prompt.len() == new.max_tokens as usize || context.len() > capacity {
            return (context.split_off(new.prompt.len()), false);
        }
    }
}

impl Slot {
    fn pool(&mut self, batch: &Batch, start: usize, end: usize, pool: Pool) {
        let first = batch.positions[start] as usize;
        if first == 0 {
            self.pooled.clear();
        }
        assert!(pool.kind != Pooling::Mean || self.pooled.len() == first, "every row from the first on");
        assert_eq!(pool.complete, first + end - start == self.init.prompt.len());
        for row in start..end {
            let Input::Token(id) = batch.inputs[row] else { panic!("a prompt's token is known") };
            let wanted = match pool.kind {
                Pooling::First => first + row == start,
                Pooling::Last => pool.complete && row + 1 == end,
                Pooling::Mean => true,
            };
            self.pooled.extend(wanted.then_some(id as f32));
        }
    }
}

impl FakeEngine {
    pub fn new(capacity: KvCapacity, max_slots: usize, max_in_flight: usize) -> (Self, Arc<Mutex<Control>>) {
        let control = Arc::new(Mutex::new(Control::default()));
        let kv = vec![EMPTY; capacity.num_blocks * capacity.block_size];
        let (slots, done) = (HashMap::new(), VecDeque::new());
        (Self { capacity, max_slots, max_in_flight, kv, slots, done, unsampled: None, control: control.clone() }, control)
    }

    /// Blocks that this step writes may be in one sequence's table only: what is shared is never written.
    fn check_ownership(&self, batch: &Batch) {
        let written: HashSet<u32> = batch.slot_mapping.iter().map(|slot| slot / self.capacity.block_size as u32).collect();
        assert_eq!(batch.slot_mapping.iter().collect::<HashSet<_>>().len(), batch.num_tokens(), "two rows write one place");
        let mut seen = HashSet::new();
        for (i, table) in batch.block_tables.chunks(batch.max_blocks).enumerate() {
            let used = (batch.context_lens[i] as usize).div_ceil(self.capacity.block_size);
            for block in table[..used].iter().filter(|block| written.contains(block)) {
                assert!(seen.insert(*block), "block {block} is written and shared");
            }
            assert!(table[used..].iter().all(|&block| (block as usize) < self.capacity.num_blocks));
        }
        assert_eq!(batch.slots.iter().collect::<HashSet<_>>().len(), batch.num_seqs(), "a slot twice in a batch");
    }

    /// Writes a sequence's rows to the cache.
    fn write(&mut self, batch: &Batch, i: usize, step: u64) {
        let block_size = self.capacity.block_size;
        let (start, end) = (batch.cu_seqlens_q[i] as usize, batch.cu_seqlens_q[i + 1] as usize);
        let context_len = batch.context_lens[i] as usize;
        let table = &batch.block_tables[i * batch.max_blocks..(i + 1) * batch.max_blocks];
        let place = |position: usize| table[position / block_size] as usize * block_size + position % block_size;
        let slot = self.slots.get_mut(&batch.slots[i]).expect("a slot that was initialised");
        if let Some(pool) = batch.pools[i] {
            slot.pool(batch, start, end, pool);
        }
        for row in start..end {
            let position = batch.positions[row] as usize;
            assert_eq!(position, context_len - (end - row), "positions are consecutive and end the context");
            assert_eq!(batch.slot_mapping[row] as usize, place(position));
            self.kv[place(position)] = match batch.inputs[row] {
                Input::Token(id) => id,
                Input::Sampled(_) if slot.broken => EMPTY,
                Input::Sampled(from) => {
                    assert_eq!(from, batch.slots[i]);
                    let (when, id) = slot.sampled.expect("a token was sampled");
                    assert_eq!(when + 1, step, "sampled in the step before");
                    id
                }
            };
        }
    }

    /// Samples behind a sequence's last row.
    fn draw(&mut self, batch: &Batch, i: usize, step: u64, masks: &Masks) -> Sampled {
        let (block_size, context_len) = (self.capacity.block_size, batch.context_lens[i] as usize);
        let table = &batch.block_tables[i * batch.max_blocks..(i + 1) * batch.max_blocks];
        let place = |position: usize| table[position / block_size] as usize * block_size + position % block_size;
        let slot = self.slots.get_mut(&batch.slots[i]).expect("a slot that was initialised");
        if !batch.sample[i] {
            return Sampled::None;
        }
        if slot.broken {
            return Sampled::NotFinite;
        }
        let context: Vec<u32> = (0..context_len).map(|position| self.kv[place(position)]).collect();
        let known: Vec<u32> = slot.init.prompt.iter().chain(&slot.init.generated).copied().collect();
        assert_eq!(context, known, "the cache holds the prompt and what was generated");
        if slot.init.params.seed & NAN_SEED != 0 && slot.init.generated.len() == 2 {
            slot.broken = true;
            return Sampled::NotFinite;
        }
        let id = next_token(&context, &slot.init.params);
        let id = match masks.of.get(i).copied().flatten() {
            None => id,
            Some(mask) => masked_token(id, &masks.words[mask as usize * mask_words(VOCAB as usize)..]),
        };
        slot.init.generated.push(id);
        slot.sampled = Some((step, id));
        Sampled::Token(id)
    }

    /// The scores of a batch whose rows are in the cache.
    fn score(&self, batch: &Batch) -> Vec<Option<Logprobs>> {
        let score = |scored: &Scored| {
            let i = batch.cu_seqlens_q.partition_point(|&from| from <= scored.row) - 1;
            let (table, block_size) = (&batch.block_tables[i * batch.max_blocks..], self.capacity.block_size);
            let at = batch.positions[scored.row as usize] as usize;
            let mut context: Vec<u32> =
                (0..=at).map(|position| self.kv[table[position / block_size] as usize * block_size + position % block_size]).collect();
            assert_eq!(self.slots[&batch.slots[i]].init.prompt[at + 1], scored.id, "the prompt's next token");
            context.push(scored.id);
            scores(&context, scored.num_logprobs).pop()
        };
        batch.scored.iter().map(score).collect()
    }

    /// Copies blocks; what is copied is held, and by another than what it is copied to.
    fn copy(&mut self, batch: &Batch) {
        let block_size = self.capacity.block_size;
        for &(from, to) in &batch.copies {
            assert!(batch.block_tables.contains(&to), "a copy that nobody has");
            assert!(batch.copies.iter().all(|other| other.1 != from), "a copy of a copy");
            self.kv.copy_within(from as usize * block_size..(from as usize + 1) * block_size, to as usize * block_size);
        }
        self.control.lock().unwrap().num_copies += batch.copies.len();
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
}

impl Engine for FakeEngine {
    fn spec(&self) -> &ModelSpec {
        unreachable!("the scheduler never asks")
    }

    fn kv_capacity(&self) -> KvCapacity {
        self.capacity
    }

    fn max_slots(&self) -> usize {
        self.max_slots
    }

    fn max_in_flight(&self) -> usize {
        self.max_in_flight
    }

    fn submit(&mut self, batch: &Batch) -> Result<StepId, EngineError> {
        assert!(self.done.len() < self.max_in_flight, "too many steps in flight");
        assert!(batch.num_seqs() > 0 && batch.num_seqs() <= self.max_slots);
        let step = {
            let mut control = self.control.lock().unwrap();
            control.num_steps += 1;
            control.num_rows += batch.num_tokens();
            control.max_rows = control.max_rows.max(batch.num_tokens());
            control.last_rows = batch.cu_seqlens_q.windows(2).map(|w| w[1] - w[0]).collect();
            std::thread::sleep(control.step_time);
            if control.max_seqs > 0 && batch.num_seqs() > control.max_seqs {
                return Err(EngineError::OutOfMemory(format!("{} sequences", batch.num_seqs())));
            }
            control.num_steps
        };
        self.fault(step, false)?;
        self.check_ownership(batch);
        for init in &batch.init {
            assert!((init.slot as usize) < self.max_slots);
            self.slots.insert(init.slot, Slot { init: init.clone(), sampled: None, pooled: Vec::new(), broken: false });
        }
        self.copy(batch);
        assert!(self.unsampled.is_none(), "the step before was not sampled");
        (0..batch.num_seqs()).for_each(|i| self.write(batch, i, step));
        self.unsampled = Some((StepId(step), batch.clone()));
        if !batch.sample_later {
            self.sample(StepId(step), &Masks { of: vec![None; batch.num_seqs()], ..Masks::default() })?;
        }
        Ok(StepId(step))
    }

    fn sample(&mut self, step: StepId, masks: &Masks) -> Result<(), EngineError> {
        let (id, batch) = self.unsampled.take().expect("a step that waits to be sampled");
        assert_eq!((id, masks.of.len()), (step, batch.num_seqs()));
        let sampled: Vec<Sampled> = (0..batch.num_seqs()).map(|i| self.draw(&batch, i, step.0, masks)).collect();
        let logprobs = sampled.iter().zip(&batch.num_logprobs).map(|(sampled, asked)| logprobs(*sampled, *asked)).collect();
        let complete = |i: usize| batch.pools[i].is_some_and(|pool| pool.complete);
        let pooled = |i| if complete(i) { self.slots[&batch.slots[i]].pooled.clone() } else { Vec::new() };
        let pooled = (0..batch.num_seqs()).map(pooled).collect();
        let scored = self.score(&batch);
        self.done.push_back((step, StepOutput { sampled, logprobs, scored, pooled, ..StepOutput::default() }));
        Ok(())
    }

    fn collect(&mut self, step: StepId, out: &mut StepOutput) -> Result<(), EngineError> {
        let (id, result) = self.done.pop_front().expect("a step in flight");
        assert_eq!(id, step, "collected in order");
        self.fault(step.0, true)?;
        *out = result;
        Ok(())
    }
}
