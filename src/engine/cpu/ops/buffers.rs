//! [`Buffers`]: the rows of a program's buffers.

use super::super::experts::ExpertBuffers;
use super::super::simd::attend::KvCache;
use super::super::simd::pool::ThreadPool;
use super::super::simd::rows::Rows;
use crate::picture_layout::PictureLayout;
use crate::program::{BufferId, Op, Part, Program, RowSet};

/// The rows of an attention while it runs.
#[derive(Default)]
pub struct AttentionBuffers {
    pub q: Rows,           // [num_tokens, heads · dim]
    pub k: Rows,           // [num_tokens, kv_heads · dim]
    pub v: Rows,           // [num_tokens, kv_heads · value_dim]
    pub padded: [Rows; 2], // [num_tokens, heads · padded dim] queries and results, if the cache pads heads
}

/// The buffers of a program, and what ops need while they run.
pub struct Buffers {
    rows: Vec<Rows>,
    /// The place of each buffer in `rows`. An activation's input and output may share one.
    places: Vec<usize>,
    /// The rows of each buffer per row of the step. Those of one head lie together.
    per_row: Vec<usize>,
    /// The set that the rows of each buffer are.
    sets: Vec<RowSet>,
    /// The rows of the step.
    num_rows: usize,
    /// The rows of each set of a picture encoder.
    in_sets: [usize; RowSet::ALL.len()],
    /// The keys and values of attention over the rows of a step.
    pub among: Option<KvCache>,
    pub attention: AttentionBuffers,
    pub experts: ExpertBuffers,
    pub shared_score: Rows, // [num_tokens, 1]
}

impl Buffers {
    pub fn new(program: &Program) -> Self {
        Self {
            rows: program.buffers.iter().map(|buffer| Rows::new(buffer.width)).collect(),
            places: places(program),
            per_row: program.buffers.iter().map(|buffer| buffer.per_row).collect(),
            sets: program.buffers.iter().map(|buffer| buffer.rows).collect(),
            num_rows: 0,
            in_sets: [0; RowSet::ALL.len()],
            among: None,
            attention: AttentionBuffers::default(),
            experts: ExpertBuffers::default(),
            shared_score: Rows::default(),
        }
    }

    /// Begins a step of `num_rows` rows.
    pub fn begin(&mut self, num_rows: usize) {
        self.num_rows = num_rows;
    }

    /// Begins a step of a picture encoder.
    pub fn begin_pictures(&mut self, layout: &PictureLayout) {
        self.in_sets = RowSet::ALL.map(|set| layout.num_rows(set));
    }

    /// The rows of a buffer per head.
    pub fn count(&self, id: BufferId) -> usize {
        match self.sets[id.0] {
            RowSet::Step => self.num_rows,
            set => self.in_sets[set as usize],
        }
    }

    /// The set that a buffer's rows are.
    pub fn set(&self, id: BufferId) -> RowSet {
        self.sets[id.0]
    }

    pub fn rows(&self, id: BufferId) -> &Rows {
        &self.rows[self.places[id.0]]
    }

    /// Takes a buffer, with room for the step's rows. [`Buffers::put`] returns it.
    pub fn take(&mut self, id: BufferId) -> Rows {
        let mut rows = std::mem::take(&mut self.rows[self.places[id.0]]);
        rows.resize(self.count(id) * self.per_row[id.0]);
        rows
    }

    pub fn put(&mut self, id: BufferId, rows: Rows) {
        self.rows[self.places[id.0]] = rows;
    }

    pub fn swap(&mut self, a: BufferId, b: BufferId) {
        self.rows.swap(self.places[a.0], self.places[b.0]);
    }

    /// The elements of a head in row `i` of the step.
    pub fn head(&self, part: Part, (i, head): (usize, usize), dim: usize) -> &[f32] {
        let rows = self.rows(part.buffer);
        match self.per_row[part.buffer.0] {
            1 => &rows.row(i)[part.first + head * part.stride..][..dim],
            _ => &rows.row(head * self.num_rows + i)[part.first..][..dim],
        }
    }

    /// Whether a buffer has a row per head.
    pub fn has_row_per_head(&self, id: BufferId) -> bool {
        self.per_row[id.0] > 1
    }

    /// Calls `f(buffers, row of the step, head, its elements)` for the heads of a part, on the pool's threads. The part's own buffer cannot
    /// be read meanwhile.
    pub fn update(&mut self, pool: &mut ThreadPool, to: Part, shape: [usize; 2], f: impl Fn(&Self, usize, usize, &mut [f32]) + Sync) {
        let mut rows = self.take(to.buffer);
        self.for_heads(pool, (&mut rows, to), shape, |i, head, elements| f(self, i, head, elements));
        self.put(to.buffer, rows);
    }

    /// Calls `f(row of the step, head, its elements)` for the heads of a buffer that was taken, on the pool's threads.
    pub fn for_heads(
        &self,
        pool: &mut ThreadPool,
        (rows, part): (&mut Rows, Part),
        [heads, dim]: [usize; 2],
        f: impl Fn(usize, usize, &mut [f32]) + Sync,
    ) {
        let n = self.num_rows;
        match self.per_row[part.buffer.0] {
            1 => rows.for_each(pool, |i, row| {
                for head in 0..heads {
                    f(i, head, &mut row[part.first + head * part.stride..][..dim]);
                }
            }),
            _ => rows.for_each(pool, |at, row| f(at % n, at / n, &mut row[part.first..][..dim])),
        }
    }
}

/// The place of each buffer. An activation computes in place, so its output takes its input's place if no op needs both at once: the rows
/// that the next layer's product writes are then still in the processor's cache.
fn places(program: &Program) -> Vec<usize> {
    let mut places: Vec<usize> = (0..program.buffers.len()).collect();
    for op in &program.ops {
        let Op::Activate(op) = &op.op else { continue };
        let (input, output) = (op.gate.unwrap_or(op.up), op.out);
        if places[input.0] == input.0 && places[output.0] == output.0 && share(program, input, output) {
            places[output.0] = input.0;
        }
    }
    places
}

/// Whether two buffers of one shape are never needed at once.
fn share(program: &Program, input: BufferId, output: BufferId) -> bool {
    let shape = |id: BufferId| (program.buffer(id).width, program.buffer(id).per_row, program.buffer(id).rows);
    if input == output || shape(input) != shape(output) || [input, output].contains(&program.stream) {
        return false;
    }
    let mut held = None;
    program.ops.iter().all(|op| {
        let uses = op.op.uses(&|id| program.buffer(id).width);
        let of_pair = |reads: bool| uses.iter().filter(move |used| if reads { used.kind.reads() } else { used.kind.writes() });
        let is_of_pair = |id: &BufferId| *id == input || *id == output;
        let fits = of_pair(true).map(|used| used.part.buffer).filter(is_of_pair).all(|id| held == Some(id));
        held = of_pair(false).map(|used| used.part.buffer).rfind(is_of_pair).or(held);
        fits
    })
}
