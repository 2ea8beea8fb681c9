//! Describes backends, devices, cache groups and engines.

use std::fmt;

use super::cache_type::CacheType;
use model::{CacheWindow, ModelSpec, TensorRole, Weight, Weights};

/// A kind of backend. [`crate::BACKENDS`] lists the backends of this build.
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

    /// The display name, for use in a sentence.
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

/// The limits of the loops that an engine can run ([`Batch::loop_steps`](crate::Batch::loop_steps)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopLimits {
    /// The most steps, a multiple of `turn`.
    pub most_steps: usize,
    /// The steps between two points where a loop may end. A loop's steps are a multiple of it.
    pub turn: usize,
    pub most_seqs: usize,
}

/// Layers whose keys and values share blocks. Each sequence has a block table per group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheGroup {
    /// None if rows see everything before them.
    pub window: Option<CacheWindow>,
}

impl CacheGroup {
    /// The groups of a model, for a backend that gives each group its own tables: see [`ModelSpec::cache_groups`].
    pub fn of(spec: &ModelSpec) -> Vec<Self> {
        spec.cache_groups().iter().map(|group| Self { window: group.window }).collect()
    }

    /// The first block that a row at `position` or later reads. Earlier rows in the same block count too: if a step is taken back, a
    /// sequence continues at a block's first row.
    pub fn first_block(&self, position: usize, block_size: usize) -> usize {
        self.window.map_or(0, |window| window.first_seen(position / block_size * block_size) / block_size)
    }

    /// The most blocks that a sequence of `num_tokens` tokens holds at once, if each step ends within a block.
    pub fn num_blocks(&self, num_tokens: usize, block_size: usize) -> usize {
        let all = num_tokens.div_ceil(block_size);
        self.window.map_or(all, |window| all.min(window.tokens().div_ceil(block_size) + 1))
    }
}

/// The cache that an engine keeps between steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvCapacity {
    /// The most KV blocks in the pool, which all groups share. [`Engine::num_backed_blocks`](crate::Engine::num_backed_blocks) says how
    /// many of the blocks have memory.
    pub num_blocks: usize,
    /// Tokens per block.
    pub block_size: usize,
    /// The cache groups that the backend runs, at least one.
    pub groups: Vec<CacheGroup>,
    /// The number of state slots. 0 if the model has no recurrent state.
    pub num_state_slots: usize,
    /// How keys and values are stored.
    pub cache_type: CacheType,
}

impl KvCapacity {
    /// A capacity for models without recurrent state, with one group whose rows see everything.
    pub fn blocks(num_blocks: usize, block_size: usize) -> Self {
        Self { num_blocks, block_size, groups: vec![CacheGroup::default()], num_state_slots: 0, cache_type: CacheType::default() }
    }

    /// The most blocks that a sequence of `num_tokens` tokens holds at once.
    pub fn blocks_for(&self, num_tokens: usize) -> usize {
        self.groups.iter().map(|group| group.num_blocks(num_tokens, self.block_size)).sum()
    }

    /// The length of the longest sequence that the pool holds, in tokens. The cache does not limit a model whose layers all have windows.
    /// The result is then the largest position that the seam can express.
    pub fn max_tokens(&self) -> usize {
        // The need never falls as the length grows, so bisection finds the longest length.
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

/// The properties of an engine that metrics and benchmarks report.
#[derive(Clone, Debug, Default)]
pub struct EngineInfo {
    pub backend: BackendKind,
    pub device: String,
    /// The device's index among the backend's devices.
    pub index: u32,
    /// The bytes of a KV block in all layers.
    pub kv_block_bytes: u64,
    /// The bytes of all weights, in the memory that the engine computes from.
    pub weight_bytes: u64,
    /// The part of `weight_bytes` that a decode step reads.
    pub step_bytes: u64,
    /// The file's bytes per second while weights were copied to the device. None if they were not copied.
    pub load_bandwidth: Option<f64>,
    /// The most rows per batch.
    pub max_batch_tokens: usize,
    /// The time of a row in a step of few rows, in units of such a step's time without rows. 0: unknown, rows count as free.
    pub row_cost: f64,
    /// The most states of sequences that a step keeps, for models with recurrent state: the most drafts of a step. 0: a step cannot go back
    /// behind a wrong draft.
    pub draft_states: usize,
    /// None: the engine has no draft head.
    pub draft_head: Option<DraftHeadInfo>,
    /// None if loops were not measured.
    pub loop_times: Option<LoopTimes>,
}

/// The draft head of an engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DraftHeadInfo {
    /// The cache group whose blocks hold the head's keys and values, too.
    pub group: usize,
    /// The time of a guessed token, in units of the time of a step without rows.
    pub cost: f64,
}

/// The time of a decode step of one sequence, by a measurement when the engine was opened [s].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoopTimes {
    /// Steps between two points where a loop may end. 0: the engine has no loops.
    pub turn: usize,
    pub from_host: f64,
    pub in_loop: f64,
}

/// Bytes of a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    pub free: u64,
    pub total: u64,
    /// The bytes that the engine holds, by its own count.
    pub held: u64,
}

/// The bytes of all weights, and of those that a decode step of one sequence reads. Such a step reads one row of a token embedding with a
/// separate head, one row of learned positions, and the experts that it uses.
pub(crate) fn weight_bytes(weights: &Weights, size: impl Fn(&Weight) -> u64) -> (u64, u64) {
    let tied = has_tied_head(weights);
    let experts = weights.spec.experts().copied().unwrap_or_default();
    let (mut all, mut step) = (0, 0);
    // a tied head appears twice in the table
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

/// Whether the token embedding also serves as the head.
pub(crate) fn has_tied_head(weights: &Weights) -> bool {
    let tensor = |role| weights.get(role, 0).map(|weight| weight.tensor);
    tensor(TensorRole::Output) == tensor(TensorRole::TokenEmbd)
}
