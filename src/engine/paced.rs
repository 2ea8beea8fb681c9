//! An engine without a model, under the feature `test-engine`. Load tests use it to measure the cost of the rest of Penstock. It reads no
//! weights and answers at a fixed pace. It replaces the CPU engine if `PENSTOCK_TEST_STEP_MS` is set to the time per step (0: none).
//!
//! The token at a position depends on the position alone, so greedy answers to prompts of equal length are the same text. Ids come from the
//! middle of the vocabulary, which has no control tokens and no byte tokens.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::cpu::Cpu;
use crate::pool_blocks::pool_blocks;
use crate::{
    Backend, BackendKind, Batch, Budget, CacheGroup, CachePart, CacheType, DefaultLoad, Device, DeviceInfo, DeviceMemory, Engine,
    EngineError, EngineInfo, EngineOptions, KvCapacity, Masks, PortableCache, Sampled, StepId, StepOutput,
};
use logits::Logprobs;
use model::{ModelSpec, Weights};

/// The memory that the device reports, large enough for any cache.
const MEMORY: DeviceMemory = DeviceMemory { free: 1 << 40, total: 1 << 40, held: 0 };
/// The bytes of a part of the cache, of no meaning.
const BYTES: usize = 1024;
const PACE: &str = "PENSTOCK_TEST_STEP_MS";

/// The CPU's backend. Finds a [`Paced`] device instead if [`PACE`] is set.
pub const BACKEND: Backend = Backend { discover, ..Backend::of::<Cpu>(BackendKind::Cpu) };

fn discover(index: u32) -> Result<Box<dyn Device>, EngineError> {
    Ok(match std::env::var_os(PACE) {
        Some(_) => Box::new(Paced::discover(index)?),
        None => Box::new(Cpu::discover(index)?),
    })
}

/// A device that computes nothing.
pub struct Paced {
    pub step_time: Duration,
}

impl Device for Paced {
    fn count() -> Result<u32, EngineError> {
        Ok(1)
    }

    fn discover(_index: u32) -> Result<Self, EngineError> {
        let text = std::env::var(PACE).unwrap_or_default();
        let step_time = text.parse().ok().and_then(|ms: f64| Duration::try_from_secs_f64(ms / 1000.0).ok());
        let step_time = step_time.ok_or_else(|| EngineError::Unsupported(format!("{PACE} = \"{text}\": expected milliseconds")))?;
        Ok(Self { step_time })
    }

    fn place(&self) -> (BackendKind, u32) {
        (BackendKind::Cpu, 0)
    }

    fn describe(&self) -> Result<DeviceInfo, EngineError> {
        Ok(DeviceInfo { name: format!("no device, {:?} per step", self.step_time), memory: Some(MEMORY) })
    }

    /// More than any test asks for, because a sequence costs nothing here.
    fn default_load(&self) -> DefaultLoad {
        DefaultLoad { max_slots: 16_384, max_batch_tokens: 1 << 16 }
    }

    fn cache_types(&self) -> &'static [CacheType] {
        &CacheType::ALL
    }

    fn cache_share(&self, _options: &EngineOptions) -> f64 {
        0.25
    }

    fn cache_bytes(&self) -> u64 {
        0
    }

    fn budget(&self, weights: &Weights, options: &EngineOptions) -> Result<Budget, EngineError> {
        let state = weights.spec.state_bytes().saturating_mul(options.state_slots as u64);
        Ok(Budget { weights: 0, kv_block: 1, groups: CacheGroup::of(&weights.spec), state, scratch: 0 })
    }

    fn open(self: Box<Self>, weights: Weights, options: &EngineOptions) -> Result<Box<dyn Engine>, EngineError> {
        let groups = CacheGroup::of(&weights.spec);
        let capacity = KvCapacity {
            num_blocks: pool_blocks(&groups, options),
            block_size: options.block_size,
            groups,
            num_state_slots: if weights.spec.is_recurrent() { options.state_slots } else { 0 },
            cache_type: options.cache_type.unwrap_or_default(),
        };
        let (step_time, max_slots, max_batch_tokens) = (self.step_time, options.max_slots, options.max_batch_tokens);
        let end = Instant::now();
        Ok(Box::new(PacedEngine {
            spec: weights.spec,
            capacity,
            step_time,
            max_slots,
            max_batch_tokens,
            steps: 0,
            end,
            waiting: None,
            done: VecDeque::new(),
        }))
    }
}

struct PacedEngine {
    spec: ModelSpec,
    capacity: KvCapacity,
    step_time: Duration,
    max_slots: usize,
    max_batch_tokens: usize,
    steps: u64,
    /// The time at which the last submitted step ends.
    end: Instant,
    /// The step that waits for its masks.
    waiting: Option<(StepId, Batch)>,
    /// Steps that are not collected yet, each with the time at which it ends.
    done: VecDeque<(StepId, Instant, StepOutput)>,
}

impl PacedEngine {
    /// The token that follows `position`.
    fn token(&self, position: u32, mask: Option<&[u32]>) -> Sampled {
        let vocab = self.spec.vocab_size as u32;
        let id = vocab / 4 + (position.wrapping_mul(0x9e37_79b9) >> 8) % (vocab / 2).max(1);
        let is_allowed = |id: &u32| mask.is_none_or(|mask| mask[*id as usize / 32] >> (id % 32) & 1 == 1);
        (id..vocab).chain(0..id).find(is_allowed).map_or(Sampled::NotFinite, Sampled::Token)
    }

    fn finish(&self, batch: &Batch, masks: &Masks) -> StepOutput {
        let vocab = self.spec.vocab_size;
        let sample = |(k, &row): (usize, &u32)| self.token(batch.positions[row as usize], masks.row(k, vocab));
        let sampled: Vec<Sampled> = batch.sampled_rows.iter().enumerate().map(sample).collect();
        let one_hot = |sampled: &Sampled| (0..vocab as u32).map(|id| f32::from(*sampled == Sampled::Token(id))).collect();
        let likeliest = |n: u8| Logprobs { chosen: -1.0, top: (0..u32::from(n)).map(|id| (id, -1.0 - id as f32)).collect() };
        let vector = |i: usize| {
            let is_complete = batch.vectors[i].is_some_and(|request| request.complete);
            if is_complete { vec![1.0; self.spec.hidden_dim] } else { Vec::new() }
        };
        StepOutput {
            goes_on: false,
            logits: if batch.want_logits { sampled.iter().map(one_hot).collect() } else { Vec::new() },
            logprobs: batch.num_logprobs.iter().map(|asked| asked.map(likeliest)).collect(),
            scored: batch.scored.iter().map(|scored| Some(likeliest(scored.num_logprobs))).collect(),
            vectors: (0..batch.vectors.len()).map(vector).collect(),
            sampled,
            stream: Vec::new(),
            draft_logits: Vec::new(),
        }
    }
}

impl Engine for PacedEngine {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn kv_capacity(&self) -> KvCapacity {
        self.capacity.clone()
    }

    fn max_slots(&self) -> usize {
        self.max_slots
    }

    fn max_in_flight(&self) -> usize {
        2
    }

    fn portable_cache(&self) -> Option<PortableCache> {
        let state_bytes = if self.capacity.has_state() { BYTES } else { 0 };
        Some(PortableCache { form: "no device".into(), block_bytes: BYTES, state_bytes })
    }

    fn export(&self, _part: CachePart, out: &mut Vec<u8>) -> Result<(), EngineError> {
        out.extend_from_slice(&[0; BYTES]);
        Ok(())
    }

    fn import(&mut self, _part: CachePart, _bytes: &[u8]) -> Result<(), EngineError> {
        Ok(())
    }

    fn info(&self) -> EngineInfo {
        let device = "no device".into();
        EngineInfo { backend: BackendKind::Cpu, device, max_batch_tokens: self.max_batch_tokens, ..EngineInfo::default() }
    }

    fn submit(&mut self, batch: &Batch) -> Result<StepId, EngineError> {
        self.steps += 1;
        let step = StepId(self.steps);
        self.end = self.end.max(Instant::now()) + self.step_time;
        if batch.sample_later {
            self.waiting = Some((step, batch.clone()));
        } else {
            self.done.push_back((step, self.end, self.finish(batch, &Masks::default())));
        }
        Ok(step)
    }

    fn sample(&mut self, step: StepId, masks: &Masks) -> Result<(), EngineError> {
        let Some((_, batch)) = self.waiting.take_if(|(id, _)| *id == step) else {
            return Err(EngineError::InvalidBatch(format!("step {} does not wait to be sampled", step.0)));
        };
        self.done.push_back((step, self.end, self.finish(&batch, masks)));
        Ok(())
    }

    fn collect(&mut self, step: StepId, out: &mut StepOutput) -> Result<(), EngineError> {
        match self.done.pop_front() {
            Some((id, end, result)) if id == step => {
                std::thread::sleep(end.saturating_duration_since(Instant::now()));
                *out = result;
                Ok(())
            }
            _ => Err(EngineError::InvalidBatch(format!("step {} is not in flight", step.0))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::ARCHS;
    use model::testing::TinyModel;

    fn engine(step_time: Duration) -> PacedEngine {
        let spec = TinyModel::new(&ARCHS[0]).spec();
        PacedEngine {
            capacity: KvCapacity::blocks(4, 32),
            spec,
            step_time,
            max_slots: 2,
            max_batch_tokens: 8,
            steps: 0,
            end: Instant::now(),
            waiting: None,
            done: VecDeque::new(),
        }
    }

    #[test]
    fn a_token_depends_on_its_position_and_the_mask() {
        let engine = engine(Duration::ZERO);
        assert_eq!(engine.token(3, None), engine.token(3, None));
        assert_ne!(engine.token(3, None), engine.token(4, None));
        let mut mask = vec![0; logits::mask_words(engine.spec.vocab_size)];
        assert_eq!(engine.token(3, Some(&mask)), Sampled::NotFinite);
        mask[0] = 1 << 5;
        assert_eq!(engine.token(3, Some(&mask)), Sampled::Token(5));
    }

    #[test]
    fn steps_end_one_after_the_other() {
        let mut engine = engine(Duration::from_millis(20));
        let batch = Batch { positions: vec![7], sampled_rows: vec![0], ..Batch::default() };
        let (start, mut out) = (Instant::now(), StepOutput::default());
        let steps = [engine.submit(&batch).unwrap(), engine.submit(&batch).unwrap()];
        engine.collect(steps[0], &mut out).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(20) && out.sampled.len() == 1);
        engine.collect(steps[1], &mut out).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(40));
        assert!(engine.collect(steps[1], &mut out).is_err());
    }
}
