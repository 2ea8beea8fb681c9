//! [`CpuEncoder`]: runs a picture encoder's program on the CPU.

use super::adapters::AdaptedRows;
use super::engine::physical_cores;
use super::group::{Common, Member, MemorySizes, ShardGroup};
use super::simd::pool::ThreadPool;
use super::simd::rows::{Rows, Scratch};
use super::simd::{Kernels, dispatch};
use crate::check::Limits;
use crate::encoder::{Encoder, Picture, grids};
use crate::picture_layout::PictureLayout;
use crate::program::{BufferId, EncoderProgram, RowSet};
use crate::rope::Rope;
use crate::{Batch, CacheType, EngineError, KvCapacity};
use model::{Source, TensorRole, VisionSpec, VisionWeights};

pub struct CpuEncoder {
    kernels: &'static Kernels,
    vision: VisionWeights,
    /// The file that every step reads its weights from.
    source: Source,
    ropes: Vec<Rope>,
    group: ShardGroup,
    input: BufferId,
    output: BufferId,
    /// The set of the output's rows.
    output_rows: RowSet,
    newline: Vec<f32>,
    pool: ThreadPool,
    scratch: Scratch,
}

impl CpuEncoder {
    /// Opens an encoder with the fastest kernels that the processor runs. 0 threads: one per physical core.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`] for tensor types that the kernels do not know. [`EngineError::OutOfMemory`].
    pub fn new(vision: VisionWeights, threads: usize) -> Result<Self, EngineError> {
        Self::with_kernels(vision, threads, dispatch::available()[0])
    }

    pub fn with_kernels(vision: VisionWeights, threads: usize, kernels: &'static Kernels) -> Result<Self, EngineError> {
        let EncoderProgram { program, input, output } = EncoderProgram::new(&vision)?;
        let sizes = MemorySizes { num_blocks: 0, block_size: 32, cache_type: CacheType::F32, state_slots: 0, draft_states: 0 };
        let member = Member::new(kernels, &vision.weights, &program, sizes)?;
        let dim = vision.spec.tower.attention().map_or(0, |attention| attention.head_dim);
        let ropes = Rope::of_pictures(vision.spec.family.rotation, dim, vision.spec.tower.rope_pairing).into_iter().collect();
        let threads = if threads == 0 { physical_cores() } else { threads };
        let pool = ThreadPool::new(threads).map_err(|error| EngineError::OutOfMemory(format!("{threads} threads: {error}")))?;
        Ok(Self {
            source: Source::of(&vision.weights),
            output_rows: program.buffer(output).rows,
            newline: vision.weights.vector(TensorRole::NewlineEmbd, 0).unwrap_or_default(),
            group: ShardGroup { members: vec![member] },
            scratch: Scratch::default(),
            kernels,
            vision,
            ropes,
            input,
            output,
            pool,
        })
    }

    fn run(&mut self, layout: &PictureLayout) -> Result<(), EngineError> {
        let rotation = self.vision.spec.family.rotation;
        let rotations: Vec<Rows> = self
            .ropes
            .iter()
            .map(|rope| {
                let mut rows = Rows::new(rope.dim());
                rows.resize(layout.num_rows(RowSet::Tower));
                rows.for_each(&mut self.pool, |i, row| rope.rotation(layout.positions(i, rotation), row));
                rows
            })
            .collect();
        // an encoder's step has no tokens and no sequences
        let batch = Batch { cu_seqlens_q: vec![0], ..Batch::default() };
        let limits = Limits { kv: KvCapacity::blocks(1, 32), ..Limits::default() };
        let common = &mut Common {
            kernels: self.kernels,
            pool: &mut self.pool,
            scratch: &mut self.scratch,
            weights: &self.vision.weights,
            batch: limits.check(&batch)?,
            inputs: &[],
            sequences: &[],
            pictures: layout,
            ropes: &self.ropes,
            rotations: &rotations,
            adapted: &AdaptedRows::default(),
        };
        self.group.run(common);
        Ok(())
    }
}

impl Encoder for CpuEncoder {
    fn spec(&self) -> &VisionSpec {
        &self.vision.spec
    }

    fn newline_row(&self) -> &[f32] {
        &self.newline
    }

    /// One picture keeps all cores busy.
    fn patches_per_pass(&self) -> usize {
        0
    }

    fn encode(&mut self, pictures: &[Picture]) -> Result<Vec<Vec<f32>>, EngineError> {
        if pictures.is_empty() {
            return Ok(Vec::new());
        }
        let spec = &self.vision.spec;
        let layout = PictureLayout::new(spec, &grids(pictures, spec)?);
        let buffers = &mut self.group.members[0].buffers;
        buffers.begin_pictures(&layout);
        let mut input = buffers.take(self.input);
        input.for_each(&mut self.pool, |i, row| {
            let patch = layout.patches()[i];
            pictures[patch.picture].write_patch(spec, [patch.row, patch.col], row);
        });
        buffers.put(self.input, input);
        self.run(&layout)?;
        self.source.check().map_err(EngineError::of_weights)?;
        let rows = self.group.members[0].buffers.rows(self.output);
        let of_picture = |range: std::ops::Range<usize>| range.flat_map(|i| rows.row(i)).copied().collect();
        Ok(layout.of_pictures(self.output_rows).into_iter().map(of_picture).collect())
    }
}
