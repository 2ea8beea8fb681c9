//! Loading: what goes to the device, whether it fits, and the threads that copy it.

use std::io::IsTerminal;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};

use super::raii::{Model, device_bytes};
use crate::engine::{DeviceMemory, EngineError, EngineOptions, has_tied_head};
use crate::model::{ModelSpec, QUANTS, TensorSlot, Weight, Weights};

/// Threads that copy: eight fill the bus from the page cache, one does not.
const MAX_THREADS: usize = 8;
/// ggml's id of float32: the type of vectors on the device, whatever they are in the file.
const F32: u32 = QUANTS[0].id;
/// Beside what grows with the batch: staging, attention's workspace (128 MiB each), graphs, the allocator's rounding.
const FIXED_SCRATCH: u64 = 512 << 20;

/// Of a row that is scored: log-probabilities, ids, and what asks for them.
const ROW_RESULTS: u64 = 256;

/// A tensor to copy.
struct Item {
    slot: TensorSlot,
    layer: usize,
    weight: Weight,
    is_vector: bool,
}

/// Everything to copy, the largest first.
pub struct Plan {
    items: Vec<Item>,
    /// On the device.
    pub weight_bytes: u64,
    /// Of these, what a decode step reads.
    pub step_bytes: u64,
    file_bytes: u64,
}

impl Plan {
    pub fn new(weights: &Weights) -> Result<Self, EngineError> {
        let tied = has_tied_head(weights);
        let mut plan = Self { items: Vec::new(), weight_bytes: 0, step_bytes: 0, file_bytes: 0 };
        for (&(slot, layer), &weight) in &weights.by_slot {
            // the factors are in the rotation tables, a tied head is the embedding
            let in_tables = matches!(slot, TensorSlot::RopeFreqs | TensorSlot::RopeFactorsLong | TensorSlot::RopeFactorsShort);
            if in_tables || (slot == TensorSlot::Output && tied) {
                continue;
            }
            // the shared expert's router is a matrix of one row
            let is_vector = weight.rows == 1;
            let (count, used) = match weights.spec.experts {
                Some(experts) if slot.is_routed() => (experts.count, experts.used),
                _ => (1, 1),
            };
            let bytes = device_bytes(if is_vector { F32 } else { weight.quant.id }, weight.rows / count, weight.cols)?;
            plan.weight_bytes += bytes * count as u64;
            if slot != TensorSlot::PositionEmbd && (slot != TensorSlot::TokenEmbd || tied) {
                plan.step_bytes += bytes * used as u64;
            }
            plan.file_bytes += weights.data(&weight).len() as u64;
            plan.items.push(Item { slot, layer, weight, is_vector });
        }
        plan.items.sort_by_key(|item| (std::cmp::Reverse(weights.data(&item.weight).len()), item.slot as u32, item.layer));
        Ok(plan)
    }

    /// Copies every tensor; returns the bytes of the file copied a second.
    pub fn copy(&self, model: &Model, weights: &Weights) -> Result<f64, EngineError> {
        let (start, progress) = (Instant::now(), bar(&weights.spec.name, self.file_bytes));
        let (next, fault) = (AtomicUsize::new(0), Mutex::new(None));
        let work = || {
            while let Some(item) = self.items.get(next.fetch_add(1, Ordering::Relaxed)) {
                let name = || item.slot.name(item.layer);
                if let Err(error) = send(model, weights, item) {
                    // the others stop at their next tensor
                    next.store(self.items.len(), Ordering::Relaxed);
                    tracing::error!("{}: {error}", name());
                    fault.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get_or_insert(error);
                    return;
                }
                progress.inc(weights.data(&item.weight).len() as u64);
            }
        };
        std::thread::scope(|scope| (0..MAX_THREADS.min(self.items.len())).for_each(|_| drop(scope.spawn(work))));
        progress.finish_and_clear();
        if let Some(error) = fault.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()) {
            return Err(error);
        }
        let (seconds, gigabytes) = (start.elapsed().as_secs_f64(), self.file_bytes as f64 / 1e9);
        let rate = gigabytes / seconds.max(1e-9);
        tracing::info!("copied {gigabytes:.2} GB of weights to the device in {seconds:.2} s ({rate:.1} GB/s)");
        Ok(rate * 1e9)
    }
}

fn send(model: &Model, weights: &Weights, item: &Item) -> Result<(), EngineError> {
    let (weight, data) = (&item.weight, weights.data(&item.weight));
    let place = |id| (item.slot as u32, item.layer as u32, id);
    let shape = [weight.rows, weight.cols];
    if !item.is_vector {
        return model.tensor(place(weight.quant.id), shape, data);
    }
    let mut vector = vec![0f32; weight.rows * weight.cols];
    (weight.quant.dequantize)(data, &mut vector);
    model.tensor(place(F32), shape, bytemuck::cast_slice(&vector))
}

/// On a terminal a bar with GB/s, else nothing.
fn bar(name: &str, bytes: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(bytes).with_prefix(name.to_owned());
    match ProgressStyle::with_template("{prefix} {bar:30} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// Device memory that a model asks for, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    pub weights: u64,
    /// Activations, logits, sampling state, workspaces: an estimate from above.
    pub scratch: u64,
    /// Of one KV block in all layers.
    pub kv_block: u64,
}

impl Need {
    pub fn new(spec: &ModelSpec, options: &EngineOptions, weights: u64) -> Self {
        let n = |x: usize| x as u64;
        let (hidden, ffn, vocab, dim) = (
            n(spec.hidden_dim),
            n(spec.ffn_dim.max(spec.experts.unwrap_or_default().shared_ffn_dim)),
            n(spec.vocab_size),
            n(spec.head_dim),
        );
        let (heads, kv_heads, slots) = (n(spec.num_heads), n(spec.num_kv_heads), n(options.max_slots));
        // a row's residual, norm, q, k, v, attention, gate and up: float32 where they are summed, float16 as inputs
        let experts = spec.experts.unwrap_or_default();
        let choice = 4 * hidden + 10 * n(experts.ffn_dim) + 16;
        let row = ROW_RESULTS
            + 14 * hidden
            + 4 * (heads + 2 * kv_heads) * dim
            + 4 * heads * dim
            + 10 * ffn
            + 4 * n(experts.count)
            + choice * n(experts.used);
        // a slot's logits, what sampling makes of them, and how often each id came up; its vector and what adds up to it
        let slot = 20 * vocab + 12 * hidden;
        let ropes = 2 * 4 * n(spec.rope_dim) * n(options.context);
        let scratch = FIXED_SCRATCH + row * n(options.max_batch_tokens) + slot * slots + ropes;
        let kv_block = 2 * 2 * n(spec.num_layers) * kv_heads * dim * n(options.block_size);
        Self { weights, scratch, kv_block }
    }

    /// KV blocks to allocate: as many as `kv_tokens` asks for; with 0, what the memory fraction leaves free, between one context and
    /// one for each slot.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`] with both figures where weights, scratch and pool are more than what is free.
    pub fn kv_blocks(&self, memory: DeviceMemory, options: &EngineOptions) -> Result<usize, EngineError> {
        let blocks = |tokens: usize| tokens.div_ceil(options.block_size) as u64;
        let one = blocks(options.context);
        let least = if options.kv_tokens == 0 { one } else { blocks(options.kv_tokens) };
        let (fixed, pool) = (self.weights + self.scratch, least * self.kv_block);
        if fixed + pool > memory.free {
            return Err(EngineError::OutOfMemory(format!(
                "the model needs {} (weights {}, {} tokens of KV cache {}, scratch {}) and {} of the device's {} are free",
                gib(fixed + pool),
                gib(self.weights),
                least * options.block_size as u64,
                gib(pool),
                gib(self.scratch),
                gib(memory.free),
                gib(memory.total),
            )));
        }
        if options.kv_tokens > 0 {
            return Ok(least as usize);
        }
        let in_use = memory.total - memory.free.min(memory.total);
        let allowed = (memory.total as f64 * options.gpu_memory_fraction) as u64;
        let left = allowed.saturating_sub(in_use + fixed) / self.kv_block.max(1);
        // a place in the pool is a 32-bit number
        let most = (one * options.max_slots.max(1) as u64).min(u64::from(i32::MAX as u32) / options.block_size as u64);
        Ok(left.min(most).max(one) as usize)
    }
}

fn gib(bytes: u64) -> String {
    format!("{:.2} GiB", bytes as f64 / (1u64 << 30) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn options(kv_tokens: usize) -> EngineOptions {
        EngineOptions {
            threads: 0,
            device: 0,
            context: 4096,
            kv_tokens,
            gpu_memory_fraction: 0.9,
            block_size: 32,
            max_slots: 64,
            max_batch_tokens: 2048,
        }
    }

    #[test]
    fn the_pool_takes_what_the_fraction_leaves() {
        let need = Need { weights: 10 * GIB, scratch: GIB, kv_block: 4 << 20 };
        let memory = DeviceMemory { free: 78 * GIB, total: 80 * GIB, held: 0 };
        // 0.9 · 80 − 2 in use − 11 = 59 GiB are 15104 blocks, more than 64 contexts of 128
        assert_eq!(need.kv_blocks(memory, &options(0)).unwrap(), 64 * 128);
        let large = Need { kv_block: 16 << 20, ..need };
        assert_eq!(large.kv_blocks(memory, &options(0)).unwrap(), 59 * 64);
        assert_eq!(large.kv_blocks(memory, &options(5000)).unwrap(), 157);
        // past the fraction, one context may still be had
        let tight = DeviceMemory { free: 13 * GIB + GIB / 2, ..memory };
        assert_eq!(large.kv_blocks(tight, &options(0)).unwrap(), 128);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_both_figures() {
        let need = Need { weights: 15 * GIB, scratch: GIB, kv_block: 4 << 20 };
        let memory = DeviceMemory { free: 16 * GIB, total: 24 * GIB, held: 0 };
        for (kv_tokens, asked) in [(0, "16.50 GiB"), (8192, "17.00 GiB")] {
            let error = need.kv_blocks(memory, &options(kv_tokens)).unwrap_err();
            assert!(matches!(error, EngineError::OutOfMemory(_)));
            let text = error.to_string();
            assert!(text.contains(&format!("needs {asked}")) && text.contains("16.00 GiB of the device's 24.00 GiB are free"), "{text}");
        }
    }
}
