//! Attends over keys and values of 16 or 8 bits.
//!
//! A step's keys and values are unpacked to float32 once for all queries of a task, and then read like those of float32. Each element is
//! unpacked by itself, so a query's arithmetic depends on neither the other queries nor their number. The factors that a query has for the
//! bias of keys meet the rotations of their positions, which follow the keys as further elements.

use super::attention::{self, Query, STEP, Scoring, Softmax, StepRows, TILE};
use super::packing::{SHARED, scales};
use super::{Isa, LANES};

/// The most tiles of queries that share what is unpacked.
pub const TILES: usize = 8;

/// The parameters that all queries of a task share.
#[derive(Clone, Copy)]
pub struct PackedHead<'a> {
    /// Block 0 of the cache.
    pub cache: *const u8,
    /// Bytes from one block to the next.
    pub block_stride: usize,
    pub block_table: *const u32,
    /// A multiple of 32.
    pub block_size: usize,
    /// The starts of the head's parts in a block [bytes].
    pub keys: usize,
    pub values: usize,
    /// The scales of q8. None: elements are float16.
    pub scales: Option<[usize; 2]>,
    pub rotations: usize,
    /// The rows of the rotations that follow the elements of a key.
    pub further: &'a [u32],
    /// Whether a further element of every key is 1.
    pub has_rest: bool,
    /// Elements per stored key: a multiple of 16.
    pub stored_dim: usize,
    pub scoring: Scoring,
}

pub type PackedFn = unsafe fn(&PackedHead, &[Query], *mut f32);

impl PackedHead<'_> {
    /// The floats of scratch memory that a task needs.
    pub const fn scratch(&self) -> usize {
        STEP * (self.scoring.key_dim + self.scoring.value_dim)
    }

    /// The place of a step in the cache: its block, and the first position in it.
    ///
    /// # Safety
    /// The block exists.
    unsafe fn place(&self, start: usize) -> (*const u8, usize) {
        // SAFETY: the caller keeps the conditions above.
        unsafe {
            let block = *self.block_table.add(start / self.block_size) as usize;
            (self.cache.add(block * self.block_stride), start % self.block_size)
        }
    }

    /// Bytes per stored element.
    const fn size(&self) -> usize {
        if self.scales.is_some() { 1 } else { 2 }
    }

    /// Prefetches a step's keys and values.
    ///
    /// # Safety
    /// The block exists, and the processor has the instruction set.
    #[inline(always)]
    unsafe fn prefetch<I: Isa>(&self, start: usize) {
        // SAFETY: the caller keeps the conditions above.
        unsafe {
            let (block, offset) = self.place(start);
            let keys = block.add(self.keys + offset * self.size());
            // the step's positions of an element lie together, and elements are `block_size` positions apart
            let (row, line) = (self.block_size * self.size(), 64 / self.size());
            for d in (0..self.stored_dim).step_by((line / self.block_size).max(1)) {
                I::prefetch(keys.add(d * row));
            }
            let width = self.scoring.value_dim * self.size();
            let values = block.add(self.values + offset * width);
            for byte in (0..STEP * width).step_by(64) {
                I::prefetch(values.add(byte));
            }
        }
    }
}

/// Unpacks the keys of a step, followed by the rotations of their positions [key_dim, STEP].
///
/// # Safety
/// `block` is a block of the cache, `offset` the first position of a step in it, `out` has room, and the processor has the instruction set.
#[inline(always)]
unsafe fn unpack_keys<I: Isa>(h: &PackedHead, block: *const u8, offset: usize, out: *mut f32) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        match h.scales {
            None => {
                let k = block.add(h.keys).cast::<u16>().add(offset);
                for d in 0..h.stored_dim {
                    for c in (0..STEP).step_by(LANES) {
                        I::store(out.add(d * STEP + c), I::load_f16(k.add(d * h.block_size + c)));
                    }
                }
            }
            Some([scales, _]) => {
                let k = block.add(h.keys).cast::<i8>().add(offset);
                let scales = block.add(scales).cast::<u16>().add(offset);
                for (i, first) in (0..h.stored_dim).step_by(SHARED).enumerate() {
                    for c in (0..STEP).step_by(LANES) {
                        let scale = I::load_f16(scales.add(i * h.block_size + c));
                        for d in first..h.stored_dim.min(first + SHARED) {
                            I::store(out.add(d * STEP + c), I::mul(I::load_i8(k.add(d * h.block_size + c)), scale));
                        }
                    }
                }
            }
        }
        let mut out = out.add(h.stored_dim * STEP);
        let rotations = block.add(h.rotations).cast::<f32>().add(offset);
        for &row in h.further {
            for c in (0..STEP).step_by(LANES) {
                I::store(out.add(c), I::load(rotations.add(row as usize * h.block_size + c)));
            }
            out = out.add(STEP);
        }
        if h.has_rest {
            std::slice::from_raw_parts_mut(out, STEP).fill(1.0);
        }
    }
}

/// Unpacks the values of a step [STEP, value_dim].
///
/// # Safety
/// The conditions of [`unpack_keys`].
#[inline(always)]
unsafe fn unpack_values<I: Isa>(h: &PackedHead, block: *const u8, offset: usize, out: *mut f32) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let dim = h.scoring.value_dim;
        match h.scales {
            None => {
                let v = block.add(h.values).cast::<u16>().add(offset * dim);
                for at in (0..STEP * dim).step_by(LANES) {
                    I::store(out.add(at), I::load_f16(v.add(at)));
                }
            }
            Some([_, start]) => {
                let v = block.add(h.values).cast::<i8>().add(offset * dim);
                let scales_of = block.add(start).cast::<u16>().add(offset * scales(dim));
                for i in 0..STEP {
                    for first in (0..dim).step_by(LANES) {
                        let scale = I::splat_f16(scales_of.add(i * scales(dim) + first / SHARED));
                        I::store(out.add(i * dim + first), I::mul(I::load_i8(v.add(i * dim + first)), scale));
                    }
                }
            }
        }
    }
}

/// Attends with the queries of a task.
///
/// # Safety
/// Queries and head point to live memory. There are at most `TILES` · `TILE` queries, and each sees at least one position. `scratch` has
/// room for `h.scratch()` floats. The processor has the instruction set.
#[inline(always)]
pub unsafe fn attention<I: Isa>(h: &PackedHead, rows: &[Query], scratch: *mut f32) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let (k, v) = (scratch, scratch.add(STEP * h.scoring.key_dim));
        let mut states: [[Softmax; TILE]; TILES] = [[Softmax::new(&rows[0]); TILE]; TILES];
        for (tile, states) in rows.chunks(TILE).zip(&mut states) {
            tile.iter().zip(states).for_each(|(row, state)| *state = Softmax::new(row));
        }
        attention::begin(rows, h.scoring.value_dim);
        let (from, to) = attention::seen(rows);
        for start in (from..to).step_by(STEP) {
            if start + STEP < to {
                h.prefetch::<I>(start + STEP);
            }
            let (block, offset) = h.place(start);
            unpack_keys::<I>(h, block, offset, k);
            unpack_values::<I>(h, block, offset, v);
            let at = StepRows { start, k, k_stride: STEP, v };
            for (tile, states) in rows.chunks(TILE).zip(&mut states) {
                let (from, to) = attention::seen(tile);
                if (from..to).contains(&start) {
                    match tile.len() {
                        1 => attention::step::<I, 1>(&h.scoring, tile, states, &at),
                        2 => attention::step::<I, 2>(&h.scoring, tile, states, &at),
                        3 => attention::step::<I, 3>(&h.scoring, tile, states, &at),
                        _ => attention::step::<I, 4>(&h.scoring, tile, states, &at),
                    }
                }
            }
        }
        for (tile, states) in rows.chunks(TILE).zip(&states) {
            attention::finish::<I>(tile, states, h.scoring.value_dim);
        }
    }
}
