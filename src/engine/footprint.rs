//! What a model takes of a device's memory, told before it is loaded.

use std::path::Path;

use super::cpu::simd::rows::KvCache;
use super::{CPU_LOAD, DeviceMemory, EngineError, EngineOptions, GPU_LOAD, cuda, weight_bytes};
use crate::model::{ModelSpec, Weights};

/// A model's need of a device, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// "cpu" or "cuda"
    pub backend: &'static str,
    pub device: String,
    pub weights: u64,
    /// Of the KV pool that the options ask for; with `kv_tokens` 0, of one context.
    pub kv: u64,
    /// Activations, logits, sampling state: an estimate from above.
    pub scratch: u64,
    /// None: the system does not tell.
    pub memory: Option<DeviceMemory>,
}

/// Weights, one KV block in all layers, scratch: what a backend says of itself.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    pub weights: u64,
    pub kv_block: u64,
    pub scratch: u64,
}

impl Footprint {
    fn new(backend: &'static str, device: String, share: Share, options: &EngineOptions, memory: Option<DeviceMemory>) -> Self {
        let tokens = if options.kv_tokens == 0 { options.context } else { options.kv_tokens };
        let kv = share.kv_block.saturating_mul(tokens.div_ceil(options.block_size.max(1)) as u64);
        Self { backend, device, weights: share.weights, kv, scratch: share.scratch, memory }
    }

    pub fn needed(&self) -> u64 {
        self.weights.saturating_add(self.kv).saturating_add(self.scratch)
    }

    /// None: that is not known.
    pub fn fits(&self) -> Option<bool> {
        self.memory.map(|memory| self.needed() <= memory.free)
    }
}

/// On the CPU and on every GPU.
pub fn footprints(weights: &Weights, options: &EngineOptions) -> Result<Vec<Footprint>, EngineError> {
    let for_cpu = options.filled(CPU_LOAD);
    let mut all = vec![Footprint::new("cpu", "CPU".into(), cpu_share(weights, &for_cpu), &for_cpu, host_memory(Path::new("/")))];
    let for_gpu = options.filled(GPU_LOAD);
    for index in 0.. {
        let Ok(device) = cuda::Device::open(index) else { break };
        let (memory, name) = device.named_memory()?;
        let share = device.share(weights, &for_gpu)?;
        all.push(Footprint::new("cuda", format!("GPU {index} ({name})"), share, &for_gpu, Some(memory)));
    }
    Ok(all)
}

fn cpu_share(weights: &Weights, options: &EngineOptions) -> Share {
    let spec: &ModelSpec = &weights.spec;
    let n = |x: usize| x as u64;
    let heads = n(spec.num_heads + 2 * spec.num_kv_heads) * n(spec.head_dim);
    // float32 rows: residual, norm, their sum; q, k, v and what attention gives; gate, up and their product
    let row = 4 * (3 * n(spec.hidden_dim) + heads + n(spec.num_heads) * n(spec.head_dim) + 3 * n(spec.ffn_dim));
    let slot = 4 * n(spec.vocab_size);
    let scratch = row.saturating_mul(n(options.max_batch_tokens)).saturating_add(slot * n(options.max_slots));
    let (weights, _) = weight_bytes(weights, |weight| weights.data(weight).len() as u64);
    let kv_block = KvCache::bytes(spec.num_layers, 1, options.block_size, spec.num_kv_heads, spec.head_dim).unwrap_or(u64::MAX);
    Share { weights, kv_block, scratch }
}

/// The memory that this process can have: the system's, or its control group's where that has a limit. `root`: "/", or a test's.
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
    use std::sync::Arc;

    use super::*;
    use crate::gguf::GgufFile;
    use crate::model::ARCHS;
    use crate::model::testing::TinyModel;

    #[test]
    fn the_cpus_share_is_what_its_engine_holds() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tiny.gguf");
        TinyModel::new(&ARCHS[0]).build().write(&path).unwrap();
        let weights = Weights::load(Arc::new(GgufFile::open(&path).unwrap())).unwrap();
        let spec = weights.spec.clone();
        let options = EngineOptions {
            threads: 1,
            device: 0,
            context: 100,
            kv_tokens: 0,
            gpu_memory_fraction: 0.9,
            block_size: 32,
            max_slots: 1,
            max_batch_tokens: 1,
        };
        let one = footprints(&weights, &options).unwrap().swap_remove(0);
        // two float32 a token, layer, head and padded element, in four blocks of 32 tokens
        let dim = spec.head_dim.next_multiple_of(16);
        assert_eq!(one.kv, (2 * 4 * 128 * spec.num_layers * spec.num_kv_heads * dim) as u64);
        let more = footprints(&weights, &EngineOptions { kv_tokens: 400, ..options.clone() }).unwrap().swap_remove(0);
        assert_eq!((more.kv, more.weights), (one.kv / 4 * 13, one.weights));
        let engine = crate::engine::open(weights, &options, crate::engine::Backend::Cpu).unwrap();
        assert_eq!(engine.info().weight_bytes, one.weights);
        assert_eq!(one.needed(), one.weights + one.kv + one.scratch);
        let memory = DeviceMemory { free: one.needed(), total: u64::MAX, held: 0 };
        assert_eq!(Footprint { memory: Some(memory), ..one.clone() }.fits(), Some(true));
        assert_eq!(Footprint { memory: Some(DeviceMemory { free: one.needed() - 1, ..memory }), ..one.clone() }.fits(), Some(false));
        assert_eq!(Footprint { memory: None, ..one }.fits(), None);
    }

    #[test]
    fn a_control_groups_limit_counts() {
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
