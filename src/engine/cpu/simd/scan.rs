//! Implements the kernels of recurrences. A head's state is a matrix with one row per key element and one column per value element
//! (channel).
//!
//! The kernels walk the rows of one sequence in order of position. Channels do not depend on each other. So a kernel takes some channels of
//! one head, and their part of the state stays in cache while the rows pass.

use super::{Isa, LANES};

/// The number of channel vectors whose sums are computed in parallel.
const WIDE: usize = 4;

/// Rows in memory, `ld` floats apart. If `ld` is 0, all rows are the same.
#[derive(Clone, Copy)]
pub struct Strided {
    pub start: *const f32,
    pub ld: usize,
}

impl Strided {
    /// # Safety
    /// Row `i` exists.
    #[inline(always)]
    unsafe fn row(self, i: usize) -> *const f32 {
        // SAFETY: the caller keeps the conditions above.
        unsafe { self.start.add(i * self.ld) }
    }
}

/// The decay of a head's state in each row.
#[derive(Clone, Copy)]
pub enum Fade {
    /// One factor per row.
    Whole(Strided),
    /// e^(step · a), with a step per row and channel. `a` has one value per key element and channel, and `ld` is the distance between its
    /// key elements.
    Channel { steps: Strided, a: *const f32, ld: usize },
}

/// Some channels of one head of one sequence.
pub struct Part {
    pub state: *mut f32, // [keys][channels]
    /// Floats from one key element of the state to the next.
    pub ld_state: usize,
    pub keys: usize,
    pub channels: usize,
    pub rows: usize,
    pub out: *mut f32, // [rows][channels]
    pub ld_out: usize,
}

/// The arguments of a selective scan.
pub struct ScanArgs {
    pub part: Part,
    pub x: Strided, // [rows][channels]
    pub b: Strided, // [rows][keys]
    pub c: Strided, // [rows][keys]
    /// The factor of each row's x. If null, the factor is 1, or the channel's step (`Fade::Channel`).
    pub steps: Strided,
    pub fade: Fade,
}

/// The arguments of the delta rule.
pub struct DeltaArgs {
    pub part: Part,
    pub q: Strided, // [rows][keys]
    pub k: Strided, // [rows][keys]
    pub v: Strided, // [rows][channels]
    /// [rows] factors of the state, or [rows][keys] if `by_key` is set
    pub decay: Strided,
    pub by_key: bool,
    pub beta: Strided, // [rows]
}

/// Loads `n` floats. Without `WHOLE`, `n` is smaller than a vector.
///
/// # Safety
/// `p` is valid for reads of 16 floats if `WHOLE`, else of `n` floats, and the processor has the instruction set.
#[inline(always)]
unsafe fn load<I: Isa, const WHOLE: bool>(p: *const f32, n: usize) -> I::V {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        if WHOLE {
            return I::load(p);
        }
        let mut lanes = [0f32; LANES];
        std::ptr::copy_nonoverlapping(p, lanes.as_mut_ptr(), n);
        I::load(lanes.as_ptr())
    }
}

/// # Safety
/// `p` is valid for writes of 16 floats if `WHOLE`, else of `n` floats, and the processor has the instruction set.
#[inline(always)]
unsafe fn store<I: Isa, const WHOLE: bool>(p: *mut f32, v: I::V, n: usize) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        if WHOLE {
            return I::store(p, v);
        }
        let mut lanes = [0f32; LANES];
        I::store(lanes.as_mut_ptr(), v);
        std::ptr::copy_nonoverlapping(lanes.as_ptr(), p, n);
    }
}

/// Calls `$tile::<I, vectors, whole>($args, first channel, channels)` for all channels.
macro_rules! tiles {
    ($tile:ident, $args:expr) => {{
        let channels = $args.part.channels;
        let mut at = 0;
        while at + WIDE * LANES <= channels {
            $tile::<I, WIDE, true>($args, at, LANES);
            at += WIDE * LANES;
        }
        while at + LANES <= channels {
            $tile::<I, 1, true>($args, at, LANES);
            at += LANES;
        }
        if at < channels {
            $tile::<I, 1, false>($args, at, channels - at);
        }
    }};
}

/// For each row: S = fade · S + b ⊗ (step · x), out = Sᵀ c.
///
/// # Safety
/// All pointers are valid for the shapes that stand next to their fields, and the processor has the instruction set.
#[inline(always)]
pub unsafe fn scan<I: Isa>(a: &ScanArgs) {
    // SAFETY: the caller keeps the conditions above.
    unsafe { tiles!(scan_tile, a) }
}

/// # Safety
/// The conditions of [`scan`]. The channels `at..at + W * LANES` exist if `WHOLE`, else `at..at + n`.
#[inline(always)]
unsafe fn scan_tile<I: Isa, const W: usize, const WHOLE: bool>(a: &ScanArgs, at: usize, n: usize) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let Part { state, ld_state, keys, rows, out, ld_out, .. } = a.part;
        for row in 0..rows {
            let (b, c, x) = (a.b.row(row), a.c.row(row), a.x.row(row).add(at));
            let step = if a.steps.start.is_null() { 1.0 } else { *a.steps.row(row) };
            let mut input = [I::zero(); W];
            let mut sums = [I::zero(); W];
            for w in 0..W {
                input[w] = I::mul(load::<I, WHOLE>(x.add(w * LANES), n), I::splat(step));
            }
            match a.fade {
                Fade::Whole(factors) => {
                    let factor = I::splat(*factors.row(row));
                    for key in 0..keys {
                        let (b, c) = (I::splat(*b.add(key)), I::splat(*c.add(key)));
                        for w in 0..W {
                            let s = state.add(key * ld_state + at + w * LANES);
                            let next = I::fma(b, input[w], I::mul(load::<I, WHOLE>(s, n), factor));
                            store::<I, WHOLE>(s, next, n);
                            sums[w] = I::fma(next, c, sums[w]);
                        }
                    }
                }
                Fade::Channel { steps, a, ld } => {
                    let mut step = [I::zero(); W];
                    for w in 0..W {
                        step[w] = load::<I, WHOLE>(steps.row(row).add(at + w * LANES), n);
                        input[w] = I::mul(input[w], step[w]);
                    }
                    for key in 0..keys {
                        let (b, c) = (I::splat(*b.add(key)), I::splat(*c.add(key)));
                        for w in 0..W {
                            let s = state.add(key * ld_state + at + w * LANES);
                            let factor = I::exp(I::mul(step[w], load::<I, WHOLE>(a.add(key * ld + at + w * LANES), n)));
                            let next = I::fma(b, input[w], I::mul(load::<I, WHOLE>(s, n), factor));
                            store::<I, WHOLE>(s, next, n);
                            sums[w] = I::fma(next, c, sums[w]);
                        }
                    }
                }
            }
            for w in 0..W {
                store::<I, WHOLE>(out.add(row * ld_out + at + w * LANES), sums[w], n);
            }
        }
    }
}

/// For each row: S = decay · S, S += k ⊗ (beta · (v − Sᵀ k)), out = Sᵀ q.
///
/// # Safety
/// All pointers are valid for the shapes that stand next to their fields, and the processor has the instruction set.
#[inline(always)]
pub unsafe fn delta<I: Isa>(a: &DeltaArgs) {
    // SAFETY: the caller keeps the conditions above.
    unsafe { tiles!(delta_tile, a) }
}

/// # Safety
/// The conditions of [`delta`]. The channels `at..at + W * LANES` exist if `WHOLE`, else `at..at + n`.
#[inline(always)]
unsafe fn delta_tile<I: Isa, const W: usize, const WHOLE: bool>(a: &DeltaArgs, at: usize, n: usize) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let Part { state, ld_state, keys, rows, out, ld_out, .. } = a.part;
        let per_key = usize::from(a.by_key);
        for row in 0..rows {
            let (q, k, v, decay) = (a.q.row(row), a.k.row(row), a.v.row(row).add(at), a.decay.row(row));
            let beta = I::splat(*a.beta.row(row));
            let mut known = [I::zero(); W];
            for key in 0..keys {
                let (factor, k) = (I::splat(*decay.add(key * per_key)), I::splat(*k.add(key)));
                for w in 0..W {
                    let s = state.add(key * ld_state + at + w * LANES);
                    known[w] = I::fma(I::mul(load::<I, WHOLE>(s, n), factor), k, known[w]);
                }
            }
            let mut news = [I::zero(); W];
            for w in 0..W {
                news[w] = I::mul(I::sub(load::<I, WHOLE>(v.add(w * LANES), n), known[w]), beta);
            }
            let mut sums = [I::zero(); W];
            for key in 0..keys {
                let (factor, k, q) = (I::splat(*decay.add(key * per_key)), I::splat(*k.add(key)), I::splat(*q.add(key)));
                for w in 0..W {
                    let s = state.add(key * ld_state + at + w * LANES);
                    let next = I::fma(k, news[w], I::mul(load::<I, WHOLE>(s, n), factor));
                    store::<I, WHOLE>(s, next, n);
                    sums[w] = I::fma(next, q, sums[w]);
                }
            }
            for w in 0..W {
                store::<I, WHOLE>(out.add(row * ld_out + at + w * LANES), sums[w], n);
            }
        }
    }
}
