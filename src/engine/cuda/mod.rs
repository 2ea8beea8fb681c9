//! The CUDA backend: kernels and device memory behind the C interface of `cuda/include/penstock.h`. Two steps are in flight.

#![allow(unsafe_code)]

mod batch;
mod load;
mod raii;
mod results;
mod sys;

use std::collections::VecDeque;
use std::sync::Arc;

use super::check::Limits;
use super::rope::ropes;
use super::{
    Batch, DeviceMemory, Engine, EngineError, EngineInfo, EngineOptions, Input, KvCapacity, Masks, Share, StepId, StepOutput, has_tied_head,
};
use crate::model::{Activation, ModelSpec, NormKind, RopePairing, TensorSlot, Weights};
use batch::Flat;
use load::{Need, Plan};
use raii::{Context, Model, Runner};
use results::{Asked, Results};

const MAX_IN_FLIGHT: usize = 2;

/// A GPU that this program can use.
pub struct Device {
    context: Arc<Context>,
}

impl Device {
    /// # Errors
    /// [`EngineError::NoDevice`] without a driver or a device.
    pub fn open(index: u32) -> Result<Self, EngineError> {
        let count = raii::device_count()?;
        if index >= count {
            return Err(EngineError::Unsupported(format!("CUDA device {index}: the last one is {}", count - 1)));
        }
        raii::verify()?;
        Ok(Self { context: Arc::new(Context::create(index)?) })
    }

    /// Its memory now, whoever holds it; `held` is 0, since no engine is open here.
    pub fn memory(&self) -> Result<DeviceMemory, EngineError> {
        self.context.memory().map(|(memory, _)| memory)
    }

    /// As [`Device::memory`], and the device's name.
    pub fn named_memory(&self) -> Result<(DeviceMemory, String), EngineError> {
        self.context.memory()
    }

    /// What a model would take of it.
    pub fn share(&self, weights: &Weights, options: &EngineOptions) -> Result<Share, EngineError> {
        let need = Need::new(&weights.spec, options, Plan::new(weights)?.weight_bytes);
        Ok(Share { weights: need.weights, kv_block: need.kv_block, scratch: need.scratch })
    }

    /// Copies a model's weights to the device, whose map may go afterwards. What does not fit is refused before anything is allocated.
    pub fn engine(self, weights: Weights, options: &EngineOptions) -> Result<Box<dyn Engine>, EngineError> {
        Ok(Box::new(CudaEngine::new(self.context, weights, options)?))
    }
}

/// Ends the process at once. The usual way out runs the exit handlers of CUDA, which wait for a device that no longer answers, and take away
/// what a thread that still loads a model or frees one is about to call.
pub fn end_process(code: i32) -> ! {
    // SAFETY: takes a number and does not return.
    unsafe { libc::_exit(code) }
}

/// What the batches so far did with a slot.
#[derive(Clone, Copy, PartialEq)]
enum Slot {
    Unused,
    Ready,
    Sampled,
}

struct InFlight {
    step: u64,
    asked: Asked,
}

struct CudaEngine {
    // dropped in this order: what runs before its context
    runner: Runner,
    context: Arc<Context>,
    spec: ModelSpec,
    limits: Limits,
    info: EngineInfo,
    slots: Vec<Slot>,
    in_flight: VecDeque<InFlight>,
    // Buffers, kept from step to step.
    flat: Flat,
    results: Results,
}

impl CudaEngine {
    fn new(context: Arc<Context>, weights: Weights, options: &EngineOptions) -> Result<Self, EngineError> {
        if options.block_size == 0 || !options.block_size.is_multiple_of(32) {
            return Err(EngineError::Unsupported(format!("a KV block of {} tokens: the GPU takes multiples of 32", options.block_size)));
        }
        let spec = weights.spec.clone();
        let plan = Plan::new(&weights)?;
        let (memory, device) = context.memory()?;
        let num_blocks = Need::new(&spec, options, plan.weight_bytes).kv_blocks(memory, options)?;
        let mut model = begin(&context, &weights, options, plan.weight_bytes)?;
        let load_bandwidth = Some(plan.copy(&model, &weights)?);
        model.finish()?;
        let runner = Runner::new(model, num_blocks, options.block_size)?;
        tracing::info!(device, kv_tokens = num_blocks * options.block_size, "the CUDA engine is open");
        let (weight_bytes, step_bytes) = (plan.weight_bytes, plan.step_bytes);
        let limits = Limits {
            kv: KvCapacity { num_blocks, block_size: options.block_size },
            vocab_size: spec.vocab_size,
            max_slots: options.max_slots,
            max_batch_tokens: options.max_batch_tokens,
            max_context: (options.context.div_ceil(options.block_size) * options.block_size)
                .min(spec.max_positions().unwrap_or(usize::MAX)),
        };
        Ok(Self {
            runner,
            context,
            spec,
            limits,
            info: EngineInfo {
                backend: "cuda",
                device,
                weight_bytes,
                step_bytes,
                load_bandwidth,
                max_batch_tokens: options.max_batch_tokens,
            },
            slots: vec![Slot::Unused; options.max_slots],
            in_flight: VecDeque::new(),
            flat: Flat::default(),
            results: Results::default(),
        })
    }

    /// Follows a batch through its slots: what reads a slot's last id must come after a row that sampled it.
    fn follow(&mut self, batch: &Batch) -> Result<(), EngineError> {
        for init in &batch.init {
            self.slots[init.slot as usize] = Slot::Ready;
        }
        let from_nothing = |input: &Input| matches!(*input, Input::Sampled(slot) if self.slots[slot as usize] != Slot::Sampled);
        if batch.inputs.iter().any(from_nothing) {
            return Err(EngineError::InvalidBatch("a row's token is unknown: its slot has not sampled".into()));
        }
        for (&slot, _) in batch.slots.iter().zip(&batch.sample).filter(|(_, sample)| **sample) {
            match &mut self.slots[slot as usize] {
                Slot::Unused => return Err(EngineError::InvalidBatch("a slot was not initialised".into())),
                state => *state = Slot::Sampled,
            }
        }
        Ok(())
    }
}

/// Describes a model to the device and reserves memory for its weights.
fn begin(context: &Arc<Context>, weights: &Weights, options: &EngineOptions, weight_bytes: u64) -> Result<Model, EngineError> {
    use TensorSlot::*;
    let (spec, arch) = (&weights.spec, weights.spec.arch);
    let (kinds, rope_of) = ropes(weights, options.context);
    let max_blocks = options.context.div_ceil(options.block_size);
    let max_positions = (max_blocks * options.block_size).min(spec.max_positions().unwrap_or(usize::MAX));
    let mut tables = vec![0f32; kinds.len() * max_positions * spec.rope_dim]; // [num_ropes, max_positions, rope_dim]
    for (rope, table) in kinds.iter().zip(tables.chunks_exact_mut((max_positions * spec.rope_dim).max(1))) {
        table.chunks_exact_mut(spec.rope_dim).enumerate().for_each(|(position, row)| rope.turn(position as u32, row));
    }
    let window = |layer| spec.sliding_window.filter(|_| spec.is_windowed(layer)).unwrap_or(0) as u32;
    let id = |slot, layer| weights.get(slot, layer).map(|weight| weight.quant.id);
    let alike = |gate, up, layer| u32::from(id(gate, layer) == id(up, layer));
    let biased = |layer| [FfnGateBias, FfnUpBias].iter().any(|&slot| id(slot, layer).is_some());
    let experts = spec.experts.unwrap_or_default();
    let layer_desc = |(layer, &rope): (usize, &usize)| sys::pen_layer_desc {
        window: window(layer),
        rope: rope as u32,
        fused_glu: match spec.experts {
            Some(_) => alike(FfnGateExps, FfnUpExps, layer),
            None if biased(layer) => 0,
            None => alike(FfnGate, FfnUp, layer),
        },
        fused_shared_glu: alike(FfnGateShexp, FfnUpShexp, layer),
    };
    let layers: Vec<sys::pen_layer_desc> = rope_of.iter().enumerate().map(layer_desc).collect();
    let desc = sys::pen_model_desc {
        num_layers: spec.num_layers as u32,
        vocab_size: spec.vocab_size as u32,
        hidden_dim: spec.hidden_dim as u32,
        num_heads: spec.num_heads as u32,
        num_kv_heads: spec.num_kv_heads as u32,
        head_dim: spec.head_dim as u32,
        ffn_dim: spec.experts.map_or(spec.ffn_dim, |experts| experts.shared_ffn_dim) as u32,
        rope_dim: spec.rope_dim as u32,
        rope_pairs: u32::from(arch.rope == RopePairing::Halves),
        activation: u32::from(arch.activation == Activation::Gelu),
        layer_norm: u32::from(arch.norm == NormKind::Layer),
        has_gate: u32::from(spec.experts.is_some() || id(FfnGate, 0).is_some()),
        num_positions: spec.max_positions().unwrap_or(0) as u32,
        num_experts: experts.count as u32,
        experts_used: experts.used as u32,
        expert_ffn_dim: experts.ffn_dim as u32,
        normalise_experts: u32::from(experts.normalise),
        norm_eps: spec.norm_eps,
        attn_scale: spec.attn_scale,
        attn_soft_cap: spec.attn_soft_cap.unwrap_or(0.0),
        final_soft_cap: spec.final_soft_cap.unwrap_or(0.0),
        embedding_scale: if arch.scale_embeddings { (spec.hidden_dim as f32).sqrt() } else { 1.0 },
        max_positions: max_positions as u32,
        num_ropes: kinds.len() as u32,
        rope_tables: tables.as_ptr(),
        layers: layers.as_ptr(),
        weight_bytes,
        has_output: u32::from(!has_tied_head(weights)),
        max_batch_tokens: options.max_batch_tokens as u32,
        max_slots: options.max_slots as u32,
        max_blocks: max_blocks as u32,
    };
    Model::begin(context, &desc)
}

impl Engine for CudaEngine {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn kv_capacity(&self) -> KvCapacity {
        self.limits.kv
    }

    fn max_slots(&self) -> usize {
        self.limits.max_slots
    }

    fn max_in_flight(&self) -> usize {
        MAX_IN_FLIGHT
    }

    fn info(&self) -> EngineInfo {
        self.info.clone()
    }

    fn memory(&self) -> Option<DeviceMemory> {
        self.context.memory().ok().map(|(memory, _)| memory)
    }

    fn copy_bandwidth(&mut self) -> Option<f64> {
        self.context.copy_bandwidth().ok().filter(|bandwidth| self.in_flight.is_empty() && *bandwidth > 0.0)
    }

    fn submit(&mut self, batch: &Batch) -> Result<StepId, EngineError> {
        if self.in_flight.len() >= MAX_IN_FLIGHT {
            return Err(EngineError::InvalidBatch(format!("{MAX_IN_FLIGHT} steps are in flight")));
        }
        self.limits.check(batch)?;
        self.follow(batch)?;
        let runner = &mut self.runner;
        let step = self.flat.lend(batch, self.spec.vocab_size, |lent| runner.submit(lent))??;
        self.in_flight.push_back(InFlight { step, asked: Asked::by(batch) });
        Ok(StepId(step))
    }

    fn sample(&mut self, step: StepId, masks: &Masks) -> Result<(), EngineError> {
        let Some(flight) = self.in_flight.back().filter(|flight| flight.step == step.0) else {
            return Err(EngineError::InvalidBatch(format!("step {} was not submitted last", step.0)));
        };
        self.limits.check_masks(masks, flight.asked.num_seqs())?;
        let runner = &mut self.runner;
        self.flat.lend_masks(masks, self.spec.vocab_size, |lent| runner.sample(step.0, lent))
    }

    fn collect(&mut self, step: StepId, out: &mut StepOutput) -> Result<(), EngineError> {
        let vocab = self.spec.vocab_size;
        let Some(flight) = self.in_flight.pop_front_if(|flight| flight.step == step.0) else {
            return Err(EngineError::InvalidBatch(format!("step {} is not the next in flight", step.0)));
        };
        self.results.resize(&flight.asked, vocab, self.spec.hidden_dim);
        self.runner.collect(step.0, &mut self.results)?;
        self.results.read(&flight.asked, vocab, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_have_the_numbers_of_the_header() {
        assert_eq!([TensorSlot::TokenEmbd, TensorSlot::AttnQ, TensorSlot::PostFfnNorm].map(|slot| slot as u32), [0, 10, 37]);
    }
}
