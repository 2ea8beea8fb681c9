//! The CPU as a device: its memory, and the memory that a model takes.

use std::path::Path;

use super::cut::Cut;
use super::draft_head;
use super::engine::{CpuEngine, CpuOptions, physical_cores, with_draft_head};
use super::layout::whole_layout;
use super::simd::fixed_block::{FIXED_BLOCK, FixedBlock};
use super::simd::{Kernels, dispatch};
use crate::device::{Budget, Device, DeviceInfo};
use crate::info::weight_bytes;
use crate::memory_ledger::cache_bytes;
use crate::pool_blocks::{least_blocks, pool_blocks};
use crate::{BackendKind, CacheGroup, CacheType, DefaultLoad, DeviceMemory, Engine, EngineError, EngineOptions};
use model::{LayerSpec, Weights};

/// The most bytes that a column of a product's input takes in fixed point.
const FIXED_BYTES: u64 = size_of::<FixedBlock>().div_ceil(FIXED_BLOCK) as u64;

/// The processor that this program runs on.
pub struct Cpu;

impl Device for Cpu {
    fn count() -> Result<u32, EngineError> {
        Ok(1)
    }

    fn discover(_index: u32) -> Result<Self, EngineError> {
        Ok(Self)
    }

    fn place(&self) -> (BackendKind, u32) {
        (BackendKind::Cpu, 0)
    }

    fn describe(&self) -> Result<DeviceInfo, EngineError> {
        Ok(DeviceInfo { name: "CPU".into(), memory: host_memory(Path::new("/")) })
    }

    /// Small batches already fill a CPU: larger ones gain nothing.
    fn default_load(&self) -> DefaultLoad {
        DefaultLoad { max_slots: 32, max_batch_tokens: 512 }
    }

    fn cache_types(&self) -> &'static [CacheType] {
        &CacheType::ALL
    }

    /// Leaves the rest to other models and programs. The system makes the cache resident as it fills.
    fn cache_share(&self, options: &EngineOptions) -> f64 {
        0.25 / options.replica.1.max(1) as f64
    }

    fn cache_bytes(&self) -> u64 {
        cache_bytes(BackendKind::Cpu, 0)
    }

    fn budget(&self, weights: &Weights, options: &EngineOptions) -> Result<Budget, EngineError> {
        let spec = &weights.spec;
        let n = |x: usize| x as u64;
        let widest = |width: fn(&LayerSpec) -> usize| n(spec.layers.iter().map(width).max().unwrap_or(0));
        let heads = widest(|layer| layer.attention().map_or(0, |a| 2 * a.num_heads * (a.head_dim + a.value_dim)));
        let ffn = widest(|layer| layer.ffn.dense().unwrap_or(0));
        // float32 rows: residual, norm and their sum; q, k, v and attention's output; gate, up and their product
        let row = 4 * (4 * n(spec.hidden_dim) + heads + 3 * ffn + widest(LayerSpec::state_width));
        let row = row + FIXED_BYTES * n(spec.hidden_dim).max(heads).max(ffn);
        let logits = 4 * n(spec.vocab_size);
        let scratch = row.saturating_mul(n(options.max_batch_tokens)).saturating_add(logits.saturating_mul(n(options.max_slots)));
        // a head that cannot run is an error when the engine opens
        let whole = if options.draft_head { with_draft_head(weights).unwrap_or_default() } else { None };
        let head_bytes = whole.as_ref().map_or(0, |whole| draft_head::head_bytes(whole)[0]);
        let head_block = whole.map_or(0, |whole| draft_head::block_bytes(&whole.spec, options.block_size));
        let layout = whole_layout(weights, options.cache_type.unwrap_or_default())?;
        let kv_block = layout.bytes(1, options.block_size).unwrap_or(u64::MAX).saturating_add(head_block);
        let weights = weight_bytes(weights, |weight| weight.num_bytes() as u64).0.saturating_add(head_bytes);

        let state = spec.state_bytes().saturating_mul(n(options.state_slots + options.draft_states));
        Ok(Budget { weights, kv_block, groups: CacheGroup::of(spec), state, scratch })
    }

    /// Opens the engine with the fastest kernels that the processor runs.
    fn open(self: Box<Self>, weights: Weights, options: &EngineOptions) -> Result<Box<dyn Engine>, EngineError> {
        open_with(weights, options, dispatch::available()[0])
    }
}

/// The threads of a replica: its part of the threads that the options ask for, 0 for all cores. The first replicas get what is left over.
fn threads_of(options: &EngineOptions) -> usize {
    let (number, count) = options.replica;
    match (count, options.threads) {
        (0 | 1, threads) => threads,
        (_, threads) => {
            let all = if threads == 0 { physical_cores() } else { threads };
            (all / count + usize::from(number < all % count)).max(1)
        }
    }
}

fn open_with(weights: Weights, options: &EngineOptions, kernels: &'static Kernels) -> Result<Box<dyn Engine>, EngineError> {
    let groups = CacheGroup::of(&weights.spec);
    let num_blocks = pool_blocks(&groups, options);
    if let Some(layers) = &options.part.layers {
        return Err(EngineError::Unsupported(format!("an engine of layers {layers:?} alone on the CPU")));
    }
    let options = CpuOptions {
        threads: threads_of(options),
        context: options.context,
        num_blocks,
        least_blocks: least_blocks(&groups, num_blocks, options),
        block_size: options.block_size,
        cache_type: options.cache_type.unwrap_or_default(),
        max_slots: options.max_slots,
        max_batch_tokens: options.max_batch_tokens,
        state_slots: options.state_slots,
        draft_states: options.draft_states,
        draft_head: options.draft_head,
        max_adapters: options.max_adapters,
        cut: Cut { shards: options.part.shards, ..Cut::default() },
    };
    Ok(Box::new(CpuEngine::new(weights, &options, kernels)?))
}

/// Opens the engine that other engines are measured against. Its kernels are plain Rust for every processor: weights come from the exact
/// dequantisers, inputs are not rounded, and all sums are float32. It shares no kernel with the engine that serves, unless the processor
/// lacks AVX2.
///
/// # Errors
/// The errors of [`open`](crate::open).
pub fn open_exact(weights: Weights, options: &EngineOptions) -> Result<Box<dyn Engine>, EngineError> {
    let options = options.filled_for(&weights.spec, Cpu.default_load(), None);
    let sets = dispatch::available();
    let mut engine = open_with(weights, &options, sets[sets.len() - 1])?;
    let num_blocks = engine.kv_capacity().num_blocks;
    engine.resize_cache(num_blocks)?;
    Ok(engine)
}

/// The memory that this process can have: the system's, or less if its control group has a limit. `root` is "/", or a directory in tests.
fn host_memory(root: &Path) -> Option<DeviceMemory> {
    let text = std::fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    let (mut free, mut total) = (field("MemAvailable")?, field("MemTotal")?);
    let number = |name: &str| std::fs::read_to_string(root.join("sys/fs/cgroup").join(name)).ok()?.trim().parse::<u64>().ok();
    if let (Some(max), Some(current)) = (number("memory.max"), number("memory.current")) {
        (free, total) = (free.min(max.saturating_sub(current)), total.min(max));
    }
    Some(DeviceMemory { free, total, held: 0 })
}

#[cfg(test)]
mod tests {
    use super::super::layout::plain_layout;
    use super::*;
    use crate::cpu::simd::attend::CacheLayout;
    use model::testing::TinyModel;
    use model::{Arch, ModelSpec};

    #[test]
    fn replicas_divide_threads_and_memory() {
        let of = |threads, number, count| threads_of(&EngineOptions { threads, replica: (number, count), ..EngineOptions::default() });
        assert_eq!([0, 1, 2].map(|number| of(8, number, 3)), [3, 3, 2]);
        assert_eq!(([0, 1].map(|number| of(1, number, 2)), of(7, 0, 1)), ([1, 1], 7), "each has a thread, and one alone has all");
        assert!((0..2).map(|number| of(0, number, 2)).sum::<usize>() >= physical_cores());
        let share = |count| Cpu.cache_share(&EngineOptions { replica: (0, count), ..EngineOptions::default() });
        assert_eq!((share(1), share(2)), (0.25, 0.125));
    }

    /// The size of one context's cache with and without cache groups, in GB.
    fn cache_of(spec: &ModelSpec) -> [f64; 2] {
        let options = EngineOptions { context: 131_072, max_slots: 32, max_batch_tokens: 512, ..EngineOptions::default() };
        let bytes = |layout: CacheLayout, groups: &[CacheGroup]| layout.bytes(pool_blocks(groups, &options), options.block_size).unwrap();
        let whole: Vec<usize> = (0..spec.num_layers()).collect();
        let whole = CacheLayout::new(plain_layout(spec, CacheType::F32).layers, std::iter::once(&whole[..]));
        [bytes(plain_layout(spec, CacheType::F32), &CacheGroup::of(spec)), bytes(whole, &[CacheGroup::default()])]
            .map(|bytes| bytes as f64 / 1e9)
    }

    #[test]
    fn a_model_with_windows_holds_what_they_need() {
        let spec = |name: &str, num_layers, num_kv_heads, head_dim, window| {
            let (arch, sliding_window) = (Arch::by_name(name).unwrap(), Some(window));
            TinyModel { num_layers, num_kv_heads, head_dim, sliding_window, context_length: 131_072, ..TinyModel::new(arch) }.spec()
        };
        // Gemma 3 27B: 52 of 62 layers have a window. gpt-oss 20B has the shape of the second model: 12 of 24 layers.
        for (spec, most) in [(spec("gemma3", 62, 16, 128, 1024), 0.19), (spec("gemma2", 24, 8, 64, 128), 0.51)] {
            let [windows, whole] = cache_of(&spec);
            println!("{} layers at 128k tokens: {windows:.1} GB, {whole:.1} GB without windows", spec.num_layers());
            assert!(windows < most * whole, "{windows} of {whole} GB");
        }
    }

    #[test]
    fn the_limit_of_a_control_group_counts() {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = root.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        assert_eq!(host_memory(root.path()), None);
        write("proc/meminfo", "MemTotal:       16000 kB\nMemFree:  1 kB\nMemAvailable:    9000 kB\n");
        let memory = |free: u64, total: u64| Some(DeviceMemory { free: free << 10, total: total << 10, held: 0 });
        assert_eq!(host_memory(root.path()), memory(9000, 16000));
        write("sys/fs/cgroup/memory.current", "1024000\n");
        write("sys/fs/cgroup/memory.max", "max\n");
        assert_eq!(host_memory(root.path()), memory(9000, 16000));
        write("sys/fs/cgroup/memory.max", "4096000\n");
        assert_eq!(host_memory(root.path()), memory(3000, 4000));
    }
}
