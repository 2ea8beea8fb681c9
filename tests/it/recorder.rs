//! Wraps an engine and compares the logits of every sampled row with those of the same row in earlier runs.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};

use engine::{Batch, DraftRequest, Engine, EngineError, EngineInfo, KvCapacity, Masks, StepId, StepOutput};
use model::ModelSpec;

/// The results of all engines so far. If a row is computed again, by the same engine or by another, it must have the same bits.
#[derive(Clone, Default)]
pub struct Seen(Arc<Mutex<Rows>>);

#[derive(Default)]
struct Rows {
    /// A hash of the logits' bits of every sampled row, by prompt and position.
    bits: HashMap<(Arc<[u32]>, u32), u64>,
    repeats: usize,
}

impl Seen {
    /// The number of distinct rows.
    pub fn rows(&self) -> usize {
        self.0.lock().unwrap().bits.len()
    }

    /// How often a row was computed again.
    pub fn repeats(&self) -> usize {
        self.0.lock().unwrap().repeats
    }

    fn add(&self, prompt: Arc<[u32]>, position: u32, logits: &[f32]) {
        let mut hasher = DefaultHasher::new();
        logits.iter().for_each(|x| x.to_bits().hash(&mut hasher));
        let bits = hasher.finish();
        let rows = &mut *self.0.lock().unwrap();
        match rows.bits.insert((prompt, position), bits) {
            Some(before) => {
                rows.repeats += 1;
                assert_eq!(before, bits, "position {position}: logits differ from those seen before");
            }
            None => assert!(logits.iter().all(|x| x.is_finite())),
        }
    }
}

/// Requests the logits of every sampled row from an engine, and records them.
pub struct Recorder {
    engine: Box<dyn Engine>,
    prompts: HashMap<u32, Arc<[u32]>>,
    /// The batches in flight.
    batches: VecDeque<Batch>,
    seen: Seen,
}

impl Recorder {
    pub fn new(engine: Box<dyn Engine>, seen: &Seen) -> Self {
        Self { engine, prompts: HashMap::new(), batches: VecDeque::new(), seen: seen.clone() }
    }
}

impl Engine for Recorder {
    fn spec(&self) -> &ModelSpec {
        self.engine.spec()
    }

    fn kv_capacity(&self) -> KvCapacity {
        self.engine.kv_capacity()
    }

    fn max_slots(&self) -> usize {
        self.engine.max_slots()
    }

    fn max_in_flight(&self) -> usize {
        self.engine.max_in_flight()
    }

    fn info(&self) -> EngineInfo {
        self.engine.info()
    }

    fn num_backed_blocks(&self) -> usize {
        self.engine.num_backed_blocks()
    }

    fn resize_cache(&mut self, num_blocks: usize) -> Result<usize, EngineError> {
        self.engine.resize_cache(num_blocks)
    }

    fn submit(&mut self, batch: &Batch) -> Result<StepId, EngineError> {
        let batch = Batch { want_logits: true, ..batch.clone() };
        let step = self.engine.submit(&batch)?;
        self.batches.push_back(batch);
        Ok(step)
    }

    fn draft(&mut self, requests: &[DraftRequest]) -> Result<Vec<Vec<u32>>, EngineError> {
        self.engine.draft(requests)
    }

    fn sample(&mut self, step: StepId, masks: &Masks) -> Result<(), EngineError> {
        self.engine.sample(step, masks)
    }

    fn collect(&mut self, step: StepId, out: &mut StepOutput) -> Result<(), EngineError> {
        let batch = self.batches.pop_front().expect("a step in flight");
        self.prompts.extend(batch.init.iter().map(|init| (init.slot, init.prompt.clone())));
        self.engine.collect(step, out)?;
        for ((i, &row), logits) in batch.sampled_seqs().zip(&batch.sampled_rows).zip(&out.logits) {
            self.seen.add(self.prompts[&batch.sequence_slots[i]].clone(), batch.positions[row as usize], logits);
        }
        Ok(())
    }
}
