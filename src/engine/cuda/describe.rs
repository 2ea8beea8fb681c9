//! Describes a model to the C side: its program, its dimensions, and the largest batch.

use std::ptr;

use super::groups::groups;
use super::lower::{DeviceProgram, Tensor};
use super::raii::{self, Context, KernelDevice, Lent, Model};
use super::sys;
use crate::program::{LayerLinks, Program, Scope, Shard};
use crate::rope::{Rope, ropes};
use crate::{CacheGroup, EngineError, EngineOptions, ModelPart};
use model::{CacheWindow, Weights};

/// The data that a [`sys::pen_model_desc`] is made from and points to.
pub struct Description<'a> {
    weights: &'a Weights,
    options: &'a EngineOptions,
    program: DeviceProgram,
    ropes: Vec<Rope>,
    rope_dims: Vec<u32>,
    /// The position that rotates each pair, of all rotations. Empty if the model rotates by one.
    rope_axes: Vec<u8>,
    groups: Vec<sys::pen_group>,
    tensors: Vec<sys::pen_tensor>,
    ops: Vec<sys::pen_op>,
}

impl<'a> Description<'a> {
    /// Builds the description.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`] if no op computes something that the model needs.
    pub fn new(weights: &'a Weights, options: &'a EngineOptions) -> Result<Self, EngineError> {
        let (ropes, links) = ropes(weights, options.context);
        let program = DeviceProgram::of_shards(weights, &programs(weights, &links, &options.part)?)?;
        let tensors = program.tensors.iter().map(|tensor: &Tensor| tensor.desc).collect();
        // these point into the program, whose ops do not move
        let ops = program.raw_ops();
        let rope_dims = ropes.iter().map(|rope| rope.dim() as u32).collect();
        let rope_axes = if weights.spec.rope_sections.is_some() { ropes.iter().flat_map(Rope::axes).collect() } else { Vec::new() };
        let groups = groups(&weights.spec).into_iter().map(raw_group).collect();
        Ok(Self { weights, options, program, ropes, rope_dims, rope_axes, groups, tensors, ops })
    }

    /// The program, which `ops` points into. So it is never lent for changes.
    pub fn program(&self) -> &DeviceProgram {
        &self.program
    }

    /// The device memory that the model takes.
    pub fn need(&self) -> Result<sys::pen_need, EngineError> {
        raii::need(&self.desc(None))
    }

    /// The kernels that each op would run in a step of this size, and in the end those of the head and of sampling.
    pub fn kernels(&self, on: &KernelDevice, load: &sys::pen_load) -> Result<Vec<String>, EngineError> {
        let desc = self.desc(None);
        (0..=self.ops.len()).map(|op| raii::kernels(on, &desc, load, op as u32)).collect()
    }

    /// Describes the model to the device and reserves memory for it.
    pub fn begin(&self, context: Context) -> Result<Model, EngineError> {
        Model::begin(context, &self.desc(Some(&rope_tables(&self.ropes, self.max_positions()))))
    }

    fn max_blocks(&self) -> usize {
        self.options.context.div_ceil(self.options.block_size.max(1))
    }

    fn max_positions(&self) -> usize {
        (self.max_blocks() * self.options.block_size).min(self.weights.spec.max_positions().unwrap_or(usize::MAX))
    }

    /// Floats of the rotation tables [num_ropes][max_positions, dim].
    fn rope_floats(&self) -> usize {
        self.ropes.iter().map(|rope| self.max_positions() * rope.dim()).sum()
    }

    /// Lends the description. [`Model::begin`] needs the rotation tables, and `need` does not read them.
    fn desc<'b>(&'b self, rope_tables: Option<&'b [f32]>) -> Lent<'b, sys::pen_model_desc> {
        let (spec, program) = (&self.weights.spec, &self.program);
        assert!(rope_tables.is_none_or(|tables| tables.len() == self.rope_floats()), "the tables hold all positions");
        let rope_tables = rope_tables.map_or(ptr::null(), <[f32]>::as_ptr);
        let raw = sys::pen_model_desc {
            vocab_size: spec.vocab_size as u32,
            hidden_dim: spec.hidden_dim as u32,
            max_positions: self.max_positions() as u32,
            rope_dims: self.rope_dims.as_ptr(),
            rope_tables,
            rope_axes: if self.rope_axes.is_empty() { ptr::null() } else { self.rope_axes.as_ptr() },
            tensors: self.tensors.as_ptr(),
            buffers: program.buffers.as_ptr(),
            caches: program.caches.as_ptr(),
            groups: self.groups.as_ptr(),
            states: program.states.as_ptr(),
            ops: self.ops.as_ptr(),
            inputs: program.inputs.as_ptr(),
            head: program.head,
            output: program.output.unwrap_or(sys::PEN_NONE),
            num_ropes: self.ropes.len() as u32,
            num_tensors: self.tensors.len() as u32,
            num_buffers: program.buffers.len() as u32,
            num_caches: program.caches.len() as u32,
            num_groups: self.groups.len() as u32,
            num_states: program.states.len() as u32,
            num_ops: self.ops.len() as u32,
            num_inputs: program.inputs.len() as u32,
            max_batch_tokens: self.options.max_batch_tokens as u32,
            max_slots: self.options.max_slots as u32,
            max_blocks: self.max_blocks() as u32,
            slices: spec.deepstack as u32,
            most_rows: ptr::null(),
            state_slots: if program.states.is_empty() { 0 } else { self.options.state_slots as u32 },
        };
        // SAFETY: every pointer leads into `self` or into the tables, both borrowed, and the counts are the lengths of the same lists. The
        // ops point into the program, which does not change.
        unsafe { Lent::new(raw) }
    }
}

/// The rotations of positions below `positions` [num_ropes][positions, dim].
pub fn rope_tables(ropes: &[Rope], positions: usize) -> Vec<f32> {
    let mut tables = vec![0f32; ropes.iter().map(|rope| positions * rope.dim()).sum()];
    let mut rest = &mut tables[..];
    for rope in ropes {
        let (table, behind) = rest.split_at_mut(positions * rope.dim());
        table.chunks_exact_mut(rope.dim().max(1)).enumerate().for_each(|(position, row)| rope.rotation([position as u32; 3], row));
        rest = behind;
    }
    tables
}

/// The programs of all shards of a part of a model.
fn programs(weights: &Weights, links: &LayerLinks, part: &ModelPart) -> Result<Vec<Program>, EngineError> {
    let layers = part.layers.clone().unwrap_or(0..weights.spec.num_layers());
    let of = |index| {
        let shard = Shard { index, count: part.shards };
        Ok(Program::new(weights, links, &Scope { layers: layers.clone(), shard })?.with_whole_head())
    };
    (0..part.shards.max(1)).map(of).collect()
}

fn raw_group(group: CacheGroup) -> sys::pen_group {
    match group.window {
        None => sys::pen_group { window: 0, chunked: 0 },
        Some(CacheWindow::Sliding(window)) => sys::pen_group { window: window as u32, chunked: 0 },
        Some(CacheWindow::Chunked(window)) => sys::pen_group { window: window as u32, chunked: 1 },
    }
}

#[cfg(test)]
#[path = "describe_tests.rs"]
mod tests;
