//! Describes a picture encoder to the C side.

use std::ptr;

use super::describe::rope_tables;
use super::lower::{DeviceProgram, Tensor, row_set};
use super::raii::{self, Context, Lent, Model};
use super::sys;
use crate::EngineError;
use crate::encoder::MAX_PICTURES_PER_PASS;
use crate::program::{EncoderProgram, RowSet};
use crate::rope::Rope;
use model::VisionWeights;

/// The pixels of the pictures of a pass, if each is smaller: those of one large picture (Gemma 3). A pass of so many rows keeps a GPU busy.
const PIXELS_PER_PASS: usize = 896 * 896;

/// The data that an encoder's [`sys::pen_model_desc`] is made from and points to.
pub struct EncoderDescription<'a> {
    vision: &'a VisionWeights,
    program: DeviceProgram,
    output_rows: RowSet,
    ropes: Vec<Rope>,
    rope_dims: Vec<u32>,
    rope_axes: Vec<u8>,
    groups: [sys::pen_group; 1],
    tensors: Vec<sys::pen_tensor>,
    ops: Vec<sys::pen_op>,
    most_rows: [u32; sys::PEN_NUM_ROW_SETS],
    patches_per_pass: usize,
    /// The most places along an axis, and one for those that count from 1.
    max_positions: usize,
}

impl<'a> EncoderDescription<'a> {
    /// Builds the description of an encoder for pictures of up to `most_patches` patches.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`] if no op computes something that the encoder needs.
    pub fn new(vision: &'a VisionWeights, most_patches: usize) -> Result<Self, EngineError> {
        let encoder = EncoderProgram::new(vision)?;
        let program = DeviceProgram::of_encoder(vision, &encoder)?;
        let spec = &vision.spec;
        let patches_per_pass = most_patches.max(PIXELS_PER_PASS / spec.patch_size.pow(2));
        let dim = spec.tower.attention().map_or(0, |attention| attention.head_dim);
        let ropes: Vec<Rope> = Rope::of_pictures(spec.family.rotation, dim, spec.tower.rope_pairing).into_iter().collect();
        Ok(Self {
            tensors: program.tensors.iter().map(|tensor: &Tensor| tensor.desc).collect(),
            // these point into the program, whose ops do not move
            ops: program.raw_ops(),
            output_rows: encoder.program.buffer(encoder.output).rows,
            rope_dims: ropes.iter().map(|rope| rope.dim() as u32).collect(),
            rope_axes: ropes.iter().flat_map(Rope::axes).collect(),
            groups: [sys::pen_group { window: 0, chunked: 0 }],
            most_rows: most_rows(vision, patches_per_pass),
            patches_per_pass,
            max_positions: most_patches + 1,
            vision,
            program,
            ropes,
        })
    }

    /// The program, which `ops` points into. So it is never lent for changes.
    pub fn program(&self) -> &DeviceProgram {
        &self.program
    }

    pub fn into_program(self) -> DeviceProgram {
        self.program
    }

    /// The set of the output's rows.
    pub fn output_rows(&self) -> RowSet {
        self.output_rows
    }

    /// The most patches of a pass.
    pub fn patches_per_pass(&self) -> usize {
        self.patches_per_pass
    }

    /// The device memory that the encoder takes.
    pub fn need(&self) -> Result<sys::pen_need, EngineError> {
        raii::need(&self.desc(None))
    }

    /// Describes the encoder to the device and reserves memory for it.
    pub fn begin(&self, context: Context) -> Result<Model, EngineError> {
        Model::begin(context, &self.desc(Some(&self.rope_tables())))
    }

    /// The rotations of each place. The axes say which of a row's positions rotates each pair [num_ropes][max_positions, dim].
    fn rope_tables(&self) -> Vec<f32> {
        rope_tables(&self.ropes, self.max_positions)
    }

    /// Lends the description. [`Model::begin`] needs the rotation tables, and `need` does not read them.
    fn desc<'b>(&'b self, rope_tables: Option<&'b [f32]>) -> Lent<'b, sys::pen_model_desc> {
        let (spec, program) = (&self.vision.spec.tower, &self.program);
        let rope_tables = rope_tables.map_or(ptr::null(), <[f32]>::as_ptr);
        let raw = sys::pen_model_desc {
            // no row is sampled, but the least that the sampler's memory is made for
            vocab_size: 64,
            hidden_dim: spec.hidden_dim as u32,
            max_positions: self.max_positions as u32,
            rope_dims: self.rope_dims.as_ptr(),
            rope_tables,
            rope_axes: if self.rope_axes.is_empty() { ptr::null() } else { self.rope_axes.as_ptr() },
            tensors: self.tensors.as_ptr(),
            buffers: program.buffers.as_ptr(),
            caches: ptr::null(),
            groups: self.groups.as_ptr(),
            states: ptr::null(),
            ops: self.ops.as_ptr(),
            inputs: ptr::null(),
            head: program.head,
            output: program.output.unwrap_or(sys::PEN_NONE),
            num_ropes: self.ropes.len() as u32,
            num_tensors: self.tensors.len() as u32,
            num_buffers: program.buffers.len() as u32,
            num_caches: 0,
            num_groups: 1,
            num_states: 0,
            num_ops: self.ops.len() as u32,
            num_inputs: 0,
            max_batch_tokens: 1,
            max_slots: 1,
            max_blocks: 1,
            state_slots: 0,
            slices: 0,
            most_rows: self.most_rows.as_ptr(),
        };
        // SAFETY: every pointer leads into `self` or into the tables, both borrowed, and the counts are the lengths of the same lists. The
        // ops point into the program, which does not change.
        unsafe { Lent::new(raw) }
    }
}

/// The most rows of each set in a pass of so many patches.
fn most_rows(vision: &VisionWeights, patches: usize) -> [u32; sys::PEN_NUM_ROW_SETS] {
    let spec = &vision.spec;
    let cells = patches / (spec.merge * spec.merge).max(1);
    let of = |set| match set {
        RowSet::Step => 0,
        RowSet::Patches => patches,
        // a class row each
        RowSet::Tower => patches + MAX_PICTURES_PER_PASS,
        RowSet::Cells => cells,
        RowSet::Queries => MAX_PICTURES_PER_PASS * spec.num_queries,
        // a picture of one cell per row has the most breaks
        RowSet::Broken => 2 * cells,
    };
    let mut rows = [0; sys::PEN_NUM_ROW_SETS];
    RowSet::ALL.iter().for_each(|&set| rows[row_set(set) as usize] = of(set) as u32);
    rows
}
