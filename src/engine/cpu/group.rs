//! [`ShardGroup`]: shards of a model, which run their programs in lock-step.

use super::adapters::{AdaptedRows, Adapters};
use super::head::Head;
use super::layout::cache_layout;
use super::ops::{self, Buffers, Instruction, Step, Tensors};
use super::simd::Kernels;
use super::simd::attend::{CacheLayout, KvCache, SequenceRows};
use super::simd::pool::ThreadPool;
use super::simd::rows::{Rows, Scratch};
use super::state::StateStore;
use crate::check::CheckedBatch;
use crate::picture_layout::PictureLayout;
use crate::program::{BufferId, Exchange, Program};
use crate::rope::Rope;
use crate::{CacheType, EngineError, Input};
use model::Weights;

/// The resources that all shards run with.
pub struct Common<'a> {
    pub kernels: &'static Kernels,
    pub pool: &'a mut ThreadPool,
    pub scratch: &'a mut Scratch,
    pub weights: &'a Weights,
    pub batch: CheckedBatch<'a>,
    pub inputs: &'a [Input],
    pub sequences: &'a [SequenceRows],
    pub pictures: &'a PictureLayout,
    pub ropes: &'a [Rope],
    pub rotations: &'a [Rows],
    pub adapted: &'a AdaptedRows,
}

/// The memory that a shard's cache and states take.
#[derive(Clone, Copy)]
pub struct MemorySizes {
    pub num_blocks: usize,
    pub block_size: usize,
    pub cache_type: CacheType,
    pub state_slots: usize,
    /// The most states that a step keeps to go back behind wrong drafts.
    pub draft_states: usize,
}

/// A shard: its program with its weights, and what it keeps between steps.
pub struct Member {
    ops: Vec<Instruction>,
    pub stream: BufferId,
    /// None if the program does not end with the last layer.
    pub head: Option<Head>,
    pub buffers: Buffers,
    pub adapters: Adapters,
    /// The layer that each op ends, if it ends one.
    ended: Vec<Option<usize>>,
    pub cache: KvCache,
    pub state: StateStore,
}

impl Member {
    /// Makes the kernels of a program, and its memory.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`] for a tensor type that the kernels do not know or cannot cut. [`EngineError::OutOfMemory`].
    pub fn new(kernels: &Kernels, weights: &Weights, program: &Program, sizes: MemorySizes) -> Result<Self, EngineError> {
        Self::with_layout(kernels, weights, program, (cache_layout(program, &weights.spec, sizes.cache_type), sizes))
    }

    /// Like [`new`](Self::new), with a cache of this layout.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_layout(
        kernels: &Kernels,
        weights: &Weights,
        program: &Program,
        (layout, sizes): (CacheLayout, MemorySizes),
    ) -> Result<Self, EngineError> {
        let tensors = Tensors { program, kernels, weights };
        let spec = &weights.spec;
        let MemorySizes { num_blocks, block_size, state_slots, draft_states, .. } = sizes;
        let cache = KvCache::new(layout, num_blocks, block_size).ok_or_else(|| {
            EngineError::OutOfMemory(format!(
                "a KV cache of {num_blocks} blocks of {block_size} tokens: ask for less context or a smaller cache"
            ))
        })?;
        let width = |layer| program.states.iter().find(|state| state.layer == layer).map_or(0, |state| state.width);
        let state = StateStore::new(state_slots, draft_states, (0..spec.num_layers()).map(width))
            .ok_or_else(|| EngineError::OutOfMemory(format!("{state_slots} state slots of {} layers: ask for fewer", spec.num_layers())))?;
        Ok(Self {
            ops: ops::lower(&tensors)?,
            stream: program.stream,
            head: program.head.map(|head| Head::load(&head, &tensors)).transpose()?,
            buffers: Buffers::new(program),
            adapters: Adapters::new(program, weights),
            ended: ended_layers(program),
            cache,
            state,
        })
    }

    /// Runs an op, unless it is an exchange.
    fn run(&mut self, op: usize, common: &mut Common) {
        let Instruction::Run(kernel) = &self.ops[op] else { return };
        kernel.run(&mut Step {
            kernels: common.kernels,
            pool: &mut *common.pool,
            scratch: &mut *common.scratch,
            weights: common.weights,
            buffers: &mut self.buffers,
            batch: common.batch,
            inputs: common.inputs,
            sequences: common.sequences,
            pictures: common.pictures,
            ropes: common.ropes,
            rotations: common.rotations,
            adapters: &self.adapters,
            adapted: common.adapted,
            cache: &mut self.cache,
            state: &mut self.state,
        });
    }

    /// Adds the directions of adapters behind the last op of a layer.
    fn steer(&mut self, op: usize, common: &mut Common) {
        let Some(layer) = self.ended[op] else { return };
        let mut stream = self.buffers.take(self.stream);
        self.adapters.steer((common.kernels, &mut *common.pool), layer, common.adapted, &mut stream);
        self.buffers.put(self.stream, stream);
    }

    fn exchange(&self, op: usize) -> Option<Exchange> {
        if let Instruction::Exchange(exchange) = self.ops[op] { Some(exchange) } else { None }
    }
}

/// The shards of some layers: one for a whole device, or several that exchange their sums.
pub struct ShardGroup {
    pub members: Vec<Member>,
}

impl ShardGroup {
    pub fn begin(&mut self, batch: &CheckedBatch, num_rows: usize) {
        for member in &mut self.members {
            batch.copies.iter().for_each(|&(from, to)| member.cache.copy_block(from, to));
            member.state.begin_step(batch);
            member.buffers.begin(num_rows);
        }
    }

    /// Runs the programs. Each op runs in all shards before the next one, so no shard passes an exchange before all have reached it.
    pub fn run(&mut self, common: &mut Common) {
        for op in 0..self.members[0].ops.len() {
            self.members.iter_mut().for_each(|member| member.run(op, common));
            self.exchange(op, common);
            if !common.adapted.is_empty() {
                self.members.iter_mut().for_each(|member| member.steer(op, common));
            }
        }
    }

    /// Adds up what each shard has summed, as a tree over the shards in their order, and gives all of them the result.
    fn exchange(&mut self, op: usize, common: &mut Common) {
        let Some(exchanges) = self.members.iter().map(|member| member.exchange(op)).collect::<Option<Vec<_>>>() else { return };
        let (kernels, pool) = (common.kernels, &mut *common.pool);
        let mut sums: Vec<Rows> = self.members.iter_mut().zip(&exchanges).map(|(member, op)| member.buffers.take(op.from)).collect();
        let mut apart = 1;
        while apart < sums.len() {
            for i in (0..sums.len()).step_by(2 * apart) {
                let (sum, others) = sums[i..].split_at_mut(apart);
                sum[0].for_each(pool, |row, to| kernels.add_to(to, others[0].row(row)));
            }
            apart *= 2;
        }
        for (member, op) in self.members.iter_mut().zip(&exchanges) {
            let mut to = member.buffers.take(op.to);
            to.for_each(pool, |row, to| match op.add {
                true => kernels.add_to(to, sums[0].row(row)),
                false => to.copy_from_slice(sums[0].row(row)),
            });
            member.buffers.put(op.to, to);
        }
        self.members.iter_mut().zip(&exchanges).zip(sums).for_each(|((member, op), rows)| member.buffers.put(op.from, rows));
    }

    /// Whether a layer with recurrent state is one of the group's.
    pub fn has_state(&self, layer: usize) -> bool {
        self.members[0].state.width(layer) > 0
    }

    /// Hands the rows of the residual stream to the shards of the next layers.
    pub fn hand_over(&self, next: &mut Self, pool: &mut ThreadPool) {
        for (from, to) in self.members.iter().zip(&mut next.members) {
            let (rows, mut stream) = (from.buffers.rows(from.stream), to.buffers.take(to.stream));
            stream.for_each(pool, |i, row| row.copy_from_slice(rows.row(i)));
            to.buffers.put(to.stream, stream);
        }
    }
}

/// The layer of each op that is the last one of its layer.
fn ended_layers(program: &Program) -> Vec<Option<usize>> {
    let next = |i: usize| program.ops.get(i + 1).and_then(|op| op.layer);
    program.ops.iter().enumerate().map(|(i, op)| op.layer.filter(|&layer| next(i) != Some(layer))).collect()
}

/// Computes the rotations of a batch's first `num_rows` rows, by each rope.
pub fn rotate(ropes: &[Rope], rotations: &mut [Rows], pool: &mut ThreadPool, batch: &CheckedBatch, num_rows: usize) {
    for (rope, rotations) in ropes.iter().zip(rotations) {
        rotations.resize(num_rows);
        rotations.for_each(pool, |i, row| rope.rotation(batch.positions_of(i), row));
    }
}
