//! The products: one row of input against rows of weights, or many rows against weights that are unpacked once.
//!
//! Every output is one accumulator of 16 lanes, which takes stretch after stretch, then one fixed tree of additions. Both ways compute a
//! stretch by `Sum`, so their bits are equal.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use super::super::avx512::Avx512;
use super::super::linear::{Args, K_CHUNK, PREFETCH, ROW_BLOCK, put};
use super::super::stretch::{PLANES, STEP, STEPS, STRETCH, Stretch};
use super::super::{Isa, LANES};
use super::{Codes, V};

/// Stretches that are unpacked at a time if many rows of input share them, so that a block of weights stays in L1.
const CHUNK: usize = 2;
/// Bytes of a stretch of blocks that do not span it: at most eight of 34 bytes.
const TAIL_BYTES: usize = 8 * 34;

#[inline(always)]
pub unsafe fn planes(x: &Stretch, j: usize) -> [__m512i; PLANES] {
    let p = x.planes[j].as_ptr().cast::<__m512i>();
    [_mm512_load_si512(p), _mm512_load_si512(p.add(1)), _mm512_load_si512(p.add(2))]
}

/// Sums of four products of codes and integers.
#[inline(always)]
pub unsafe fn dot(codes: __m512i, planes: &[__m512i; PLANES]) -> __m512i {
    let upper = _mm512_dpbusd_epi32(_mm512_setzero_si512(), codes, planes[0]);
    let both = _mm512_dpbusd_epi32(_mm512_slli_epi32::<8>(upper), codes, planes[1]);
    _mm512_dpbusd_epi32(_mm512_slli_epi32::<8>(both), codes, planes[2])
}

/// What a stretch adds to an output, up to its unit.
#[derive(Clone, Copy)]
struct Sum {
    lanes: V,
    /// With one scale for the stretch: sums of the products with each plane.
    whole: [__m512i; PLANES],
}

impl Sum {
    #[inline(always)]
    unsafe fn zero() -> Self {
        Self { lanes: _mm512_setzero_ps(), whole: [_mm512_setzero_si512(); PLANES] }
    }

    #[inline(always)]
    unsafe fn begin<D: Codes>(&mut self, x: &Stretch, minima: V) {
        if let Some(each) = D::MINIMA {
            let sums = if each == 16 { &x.sixteens } else { &x.thirty_twos };
            self.lanes = _mm512_fnmadd_ps(minima, _mm512_load_ps(sums.as_ptr()), self.lanes);
        }
    }

    #[inline(always)]
    unsafe fn step<D: Codes>(&mut self, codes: __m512i, scales: V, planes: &[__m512i; PLANES], offsets: __m512i) {
        if D::UNIFORM {
            for i in 0..PLANES {
                self.whole[i] = _mm512_dpbusd_epi32(self.whole[i], codes, planes[i]);
            }
            return;
        }
        let mut sum = dot(codes, planes);
        if D::OFFSET != 0 {
            sum = _mm512_sub_epi32(sum, offsets);
        }
        self.lanes = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scales, self.lanes);
    }

    #[inline(always)]
    unsafe fn end<D: Codes>(&self, scales: V, x: &Stretch, acc: V) -> V {
        let mut lanes = self.lanes;
        if D::UNIFORM {
            // the upper two planes' sums fit 32 bits together, but not all three
            let both = _mm512_add_epi32(_mm512_slli_epi32::<8>(self.whole[0]), self.whole[1]);
            let lower = _mm512_cvtepi32_ps(self.whole[2]);
            let sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(both), _mm512_set1_ps(256.0), lower);
            lanes = _mm512_fmadd_ps(sum, scales, lanes);
        }
        _mm512_fmadd_ps(lanes, _mm512_set1_ps(x.unit), acc)
    }
}

/// `OFFSET` times the sums of four integers.
#[inline(always)]
unsafe fn offsets<D: Codes>(x: &Stretch, j: usize) -> __m512i {
    if D::OFFSET == 0 {
        return _mm512_setzero_si512();
    }
    let fours = _mm512_load_si512(x.fours[j].as_ptr().cast());
    _mm512_sll_epi32(fours, _mm_cvtsi32_si128(D::OFFSET.trailing_zeros() as i32))
}

/// One step of R rows of weights, whose states are there.
#[inline(always)]
unsafe fn step<D: Codes, const R: usize>(
    w: &[*const u8; R],
    states: &[MaybeUninit<D::State>; R],
    x: &Stretch,
    j: usize,
    sums: &mut [Sum; R],
) {
    let (planes, offsets) = (planes(x, j), offsets::<D>(x, j));
    // rows take turns, so that their chains of additions overlap
    for r in 0..R {
        let state = states[r].assume_init_ref();
        let scales = if D::UNIFORM { _mm512_setzero_ps() } else { D::scales(w[r], state, j) };
        sums[r].step::<D>(D::codes(w[r], state, j), scales, &planes, offsets);
    }
}

/// One stretch of R rows of weights.
#[inline(always)]
unsafe fn stretch<D: Codes, const R: usize>(w: &[*const u8; R], x: &Stretch, steps: usize, acc: &mut [V; R]) {
    let mut states = [const { MaybeUninit::<D::State>::uninit() }; R];
    let mut sums = [Sum::zero(); R];
    for r in 0..R {
        D::state(w[r], states[r].as_mut_ptr());
        sums[r].begin::<D>(x, D::minima(w[r], states[r].assume_init_ref()));
    }
    if D::UNIFORM && steps == STEPS {
        // written out, because the compiler leaves a loop whose steps differ as much as those of TQ1_0
        step::<D, R>(w, &states, x, 0, &mut sums);
        step::<D, R>(w, &states, x, 1, &mut sums);
        step::<D, R>(w, &states, x, 2, &mut sums);
        step::<D, R>(w, &states, x, 3, &mut sums);
    } else {
        for j in 0..steps {
            step::<D, R>(w, &states, x, j, &mut sums);
        }
    }
    for (r, sum) in sums.into_iter().enumerate() {
        let scales = if D::UNIFORM { D::scales(w[r], states[r].assume_init_ref(), 0) } else { _mm512_setzero_ps() };
        acc[r] = sum.end::<D>(scales, x, acc[r]);
    }
}

/// The blocks of a stretch of `len` columns, with zeros behind them.
#[inline(always)]
unsafe fn tail<D: Codes>(w: *const u8, len: usize, room: &mut [u8; TAIL_BYTES]) {
    w.copy_to_nonoverlapping(room.as_mut_ptr(), len / D::BLOCK * D::BYTES);
}

/// R rows of weights × one row of input, weights decoded in registers.
#[inline(always)]
unsafe fn fused<D: Codes, const R: usize>(a: &Args, row: usize, apart: usize) {
    let bytes = STRETCH / D::BLOCK * D::BYTES;
    let mut acc = [_mm512_setzero_ps(); R];
    let mut w = [a.w; R];
    for (r, w) in w.iter_mut().enumerate() {
        *w = w.add((row + r * apart) * a.row_bytes);
    }
    let mut x = a.fixed;
    for _ in 0..a.cols / STRETCH {
        for w in w {
            for line in (0..bytes).step_by(64) {
                Avx512::prefetch(w.wrapping_add(line + PREFETCH));
            }
        }
        stretch::<D, R>(&w, &*x, STEPS, &mut acc);
        for w in &mut w {
            *w = w.add(bytes);
        }
        x = x.add(1);
    }
    let rest = a.cols % STRETCH;
    if D::BLOCK < STRETCH && rest != 0 {
        let mut rooms = [[0; TAIL_BYTES]; R];
        for r in 0..R {
            tail::<D>(w[r], rest, &mut rooms[r]);
            w[r] = rooms[r].as_ptr();
        }
        stretch::<D, R>(&w, &*x, rest.div_ceil(STEP), &mut acc);
    }
    for (r, acc) in acc.into_iter().enumerate() {
        put(a.out.add(row + r * apart), a.scale * Avx512::reduce_add(acc), a.accumulate);
    }
}

/// R rows at a time, each from another part of the matrix. Each part is read from end to end, which suits the hardware's prefetcher.
#[inline(always)]
unsafe fn one<D: Codes, const R: usize>(a: &Args) {
    let part = a.rows / R;
    for row in 0..part {
        fused::<D, R>(a, row, part);
    }
    for row in part * R..a.rows {
        fused::<D, 1>(a, row, 0);
    }
}

/// A stretch of a row of weights.
#[repr(C, align(64))]
struct Unpacked {
    codes: [[u8; 64]; STEPS],
    scales: [[f32; 16]; STEPS],
    minima: [f32; 16],
}

#[inline(always)]
unsafe fn unpack<D: Codes>(w: *const u8, len: usize, out: &mut Unpacked) {
    let (mut room, mut state) = ([0; TAIL_BYTES], MaybeUninit::<D::State>::uninit());
    let mut w = w;
    if len < STRETCH {
        tail::<D>(w, len, &mut room);
        w = room.as_ptr();
    }
    D::state(w, state.as_mut_ptr());
    let state = state.assume_init_ref();
    for j in 0..STEPS {
        _mm512_store_si512(out.codes[j].as_mut_ptr().cast(), D::codes(w, state, j));
        if j == 0 || !D::UNIFORM {
            _mm512_store_ps(out.scales[j].as_mut_ptr(), D::scales(w, state, j));
        }
    }
    if D::MINIMA.is_some() {
        _mm512_store_ps(out.minima.as_mut_ptr(), D::minima(w, state));
    }
}

/// R rows of weights, `CHUNK` apart, × stretches of one row of input.
#[inline(always)]
unsafe fn micro<D: Codes, const R: usize>(w: *const Unpacked, x: *const Stretch, len: usize, acc: &mut [V; R]) {
    for i in 0..len.div_ceil(STRETCH) {
        let (x, w) = (&*x.add(i), w.add(i));
        let mut sums = [Sum::zero(); R];
        for r in 0..R {
            sums[r].begin::<D>(x, _mm512_load_ps((*w.add(r * CHUNK)).minima.as_ptr()));
        }
        for j in 0..STEPS.min((len - i * STRETCH).div_ceil(STEP)) {
            let (planes, offsets) = (planes(x, j), offsets::<D>(x, j));
            for r in 0..R {
                let w = &*w.add(r * CHUNK);
                let codes = _mm512_load_si512(w.codes[j].as_ptr().cast());
                sums[r].step::<D>(codes, _mm512_load_ps(w.scales[j].as_ptr()), &planes, offsets);
            }
        }
        for (r, sum) in sums.into_iter().enumerate() {
            acc[r] = sum.end::<D>(_mm512_load_ps((*w.add(r * CHUNK)).scales[0].as_ptr()), x, acc[r]);
        }
    }
}

/// Adds a chunk's products of `R` rows of weights to the accumulators at `lanes`.
#[inline(always)]
unsafe fn tile<D: Codes, const R: usize>(w: *const Unpacked, x: *const Stretch, len: usize, first: bool, lanes: *mut f32) {
    let mut acc = [_mm512_setzero_ps(); R];
    if !first {
        for r in 0..R {
            acc[r] = _mm512_load_ps(lanes.add(r * LANES));
        }
    }
    micro::<D, R>(w, x, len, &mut acc);
    for r in 0..R {
        _mm512_store_ps(lanes.add(r * LANES), acc[r]);
    }
}

// the scratch of a thread holds a chunk and the accumulators
const _: () = assert!(ROW_BLOCK * CHUNK * size_of::<Unpacked>() <= ROW_BLOCK * K_CHUNK * size_of::<f32>());

/// Many rows of input: a block of rows of weights is unpacked chunk by chunk.
#[inline(always)]
unsafe fn many<D: Codes>(a: &Args) {
    let weights = a.scratch.cast::<Unpacked>();
    let lanes = a.scratch.add(ROW_BLOCK * CHUNK * size_of::<Unpacked>() / 4);
    let mut k = 0;
    while k < a.cols {
        let len = (CHUNK * STRETCH).min(a.cols - k);
        for r in 0..a.rows {
            let row = a.w.add(r * a.row_bytes + k / D::BLOCK * D::BYTES);
            for i in 0..len.div_ceil(STRETCH) {
                let len = STRETCH.min(len - i * STRETCH);
                unpack::<D>(row.add(i * STRETCH / D::BLOCK * D::BYTES), len, &mut *weights.add(r * CHUNK + i));
            }
        }
        for t in 0..a.tokens {
            let (x, lanes) = (a.fixed.add(t * a.ldf + k / STRETCH), lanes.add(t * ROW_BLOCK * LANES));
            let mut r = 0;
            while r + 4 <= a.rows {
                tile::<D, 4>(weights.add(r * CHUNK), x, len, k == 0, lanes.add(r * LANES));
                r += 4;
            }
            while r < a.rows {
                tile::<D, 1>(weights.add(r * CHUNK), x, len, k == 0, lanes.add(r * LANES));
                r += 1;
            }
        }
        k += len;
    }
    for t in 0..a.tokens {
        for r in 0..a.rows {
            let sum = Avx512::reduce_add(_mm512_load_ps(lanes.add((t * ROW_BLOCK + r) * LANES)));
            put(a.out.add(t * a.ldo + r), a.scale * sum, a.accumulate);
        }
    }
}

/// # Safety
/// The pointers of `a` are valid for the sizes that its fields give, and the processor has the instruction set.
#[inline(always)]
pub unsafe fn linear<D: Codes>(a: &Args) {
    match a.tokens {
        0 => {}
        1 => one::<D, 4>(a),
        _ => {
            for row in (0..a.rows).step_by(ROW_BLOCK) {
                let rows = ROW_BLOCK.min(a.rows - row);
                many::<D>(&Args { w: a.w.add(row * a.row_bytes), rows, out: a.out.add(row), ..*a });
            }
        }
    }
}
