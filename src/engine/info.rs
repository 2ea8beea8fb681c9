//! What an engine and its device tell about themselves.

use std::fmt;

use model::{CacheWindow, ModelSpec, TensorRole, Weight, Weights};

/// A way to compute. [`crate::BACKENDS`] lists those of this build.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BackendKind {
    #[default]
    Cpu,
    Cuda,
}

impl BackendKind {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
        }
    }

    /// The name as a sentence has it.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Cpu => "the CPU",
            Self::Cuda => "CUDA",
        }
    }
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Layers whose keys and values share a block, and for which each sequence has a block table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheGroup {
    /// None: rows see everything before them.
    pub window: Option<CacheWindow>,
}

impl CacheGroup {
    /// The groups of a model whose backend computes each of them with tables of its own: see [`ModelSpec::cache_groups`].
    pub fn of(spec: &ModelSpec) -> Vec<Self> {
        spec.cache_groups().iter().map(|group| Self { window: group.window }).collect()
    }

    /// The first block that a row at `position`, or a later one, reads. Rows before it in its own block count too: if a step is taken
    /// back, a sequence goes on from a block's first row.
    pub fn first_block(&self, position: usize, block_size: usize) -> usize {
        self.window.map_or(0, |window| window.first_seen(position / block_size * block_size) / block_size)
    }

    /// The most blocks that a sequence of `num_tokens` tokens must hold at once, if each step ends within a block.
    pub fn num_blocks(&self, num_tokens: usize, block_size: usize) -> usize {
        let all = num_tokens.div_ceil(block_size);
        self.window.map_or(all, |window| all.min(window.tokens().div_ceil(block_size) + 1))
    }
}

/// What an engine can hold between steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvCapacity {
    /// The most KV blocks in the pool, which all groups share. [`Engine::num_backed_blocks`](crate::Engine::num_backed_blocks) says how
    /// many of them have memory.
    pub num_blocks: usize,
    /// Tokens per block.
    pub block_size: usize,
    /// The cache groups that the backend runs, at least one.
    pub groups: Vec<CacheGroup>,
    /// State slots. 0: the model has no recurrent state.
    pub num_state_slots: usize,
}

impl KvCapacity {
    /// A capacity for models without recurrent state, with one group whose rows see everything.
    pub fn blocks(num_blocks: usize, block_size: usize) -> Self {
        Self { num_blocks, block_size, groups: vec![CacheGroup::default()], num_state_slots: 0 }
    }

    /// The most blocks that a sequence of `num_tokens` tokens must hold at once.
    pub fn blocks_for(&self, num_tokens: usize) -> usize {
        self.groups.iter().map(|group| group.num_blocks(num_tokens, self.block_size)).sum()
    }

    /// Tokens of the longest sequence that the pool holds. Models whose rows all have windows have no such limit, and so the cache does not
    /// count here: the result is the largest position that the seam has.
    pub fn max_tokens(&self) -> usize {
        // Needs do not fall with the length, so the longest is found by halving.
        let (mut fits, mut too_long) = (0, u32::MAX as usize / self.block_size.max(1));
        if self.blocks_for(too_long * self.block_size) <= self.num_blocks {
            return too_long * self.block_size;
        }
        while too_long - fits > 1 {
            let middle = fits.midpoint(too_long);
            if self.blocks_for(middle * self.block_size) <= self.num_blocks {
                fits = middle;
            } else {
                too_long = middle;
            }
        }
        fits * self.block_size
    }

    /// Whether the model keeps recurrent state, so that each sequence needs a state slot.
    pub const fn has_state(&self) -> bool {
        self.num_state_slots > 0
    }
}

/// What an engine is and holds, for those who measure it.
#[derive(Clone, Debug, Default)]
pub struct EngineInfo {
    pub backend: BackendKind,
    pub device: String,
    /// Which of the backend's devices.
    pub index: u32,
    /// Bytes of a KV block in all layers.
    pub kv_block_bytes: u64,
    /// Bytes of all weights in the memory that they are computed from.
    pub weight_bytes: u64,
    /// The part of `weight_bytes` that a decode step reads.
    pub step_bytes: u64,
    /// Bytes of the file per second while the weights were copied to the device. None: they were not copied.
    pub load_bandwidth: Option<f64>,
    /// The most rows that a batch may have.
    pub max_batch_tokens: usize,
}

/// Bytes of a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    pub free: u64,
    pub total: u64,
    /// What the engine holds, by its own count.
    pub held: u64,
}

/// Bytes of all weights, and of those that a decode step of one sequence reads. Such a step reads one row of a token embedding that has
/// a head beside it, one row of learned positions, and the experts that it uses.
pub(crate) fn weight_bytes(weights: &Weights, size: impl Fn(&Weight) -> u64) -> (u64, u64) {
    let tied = has_tied_head(weights);
    let experts = weights.spec.experts().copied().unwrap_or_default();
    let (mut all, mut step) = (0, 0);
    // a tied head stands in the table twice
    for ((role, _), weight) in weights.by_role.iter().filter(|((role, _), _)| !(tied && *role == TensorRole::Output)) {
        let bytes = size(weight);
        all += bytes;
        step += match role {
            TensorRole::TokenEmbd if !tied => 0,
            TensorRole::PerLayerTokenEmbd => 0,
            TensorRole::PositionEmbd => 0,
            role if role.is_routed() => bytes / experts.count as u64 * experts.used as u64,
            _ => bytes,
        };
    }
    (all, step)
}

/// Whether the token embedding is the head, too.
pub(crate) fn has_tied_head(weights: &Weights) -> bool {
    let tensor = |role| weights.get(role, 0).map(|weight| weight.tensor);
    tensor(TensorRole::Output) == tensor(TensorRole::TokenEmbd)
}
