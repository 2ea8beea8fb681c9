//! Implements the CPU's kernels over 16 float32 lanes. They are written once against [`Isa`] and compiled for each instruction set.
//!
//! Every instruction set has 16 lanes here (AVX2 pairs two registers), adds in the same order and dequantises to the same bits. So AVX2 and
//! AVX-512 agree exactly, except in products of quantised weights, which AVX-512 computes in integers (`fixed`). The portable code differs
//! because it has no fused multiply-add.
//!
//! All generic code is `inline(always)` below entry points that enable the target features.

#![allow(clippy::needless_range_loop, reason = "several loops index a register tile in the same way, which an iterator would hide")]
#![allow(unsafe_code, reason = "kernels use pointers and intrinsics")]

pub(crate) mod attend;
mod attention;
mod attention_packed;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod dequant256;
#[cfg(target_arch = "x86_64")]
mod dequant512;
pub mod dispatch;
#[cfg(target_arch = "x86_64")]
mod fixed;
pub(crate) mod fixed_block;
#[cfg(target_arch = "x86_64")]
mod halves;
pub(crate) mod kv_cache;
pub(crate) mod linear;
pub(crate) mod norm;
mod ops;
pub(crate) mod packing;
pub(crate) mod pool;
mod portable;
pub(crate) mod recurrence;
pub(crate) mod rows;
mod scalar;
mod scan;
pub(crate) mod zeroed;

pub use dispatch::Kernels;
pub(crate) use ops::{Gate, Sigmoidal};

/// Lanes of a vector.
pub(crate) const LANES: usize = 16;

/// 16 lanes of float32 on some instruction set.
///
/// # Safety
/// An implementation needs no other instruction set than its own, and touches only the 16 elements that its functions' conditions name.
pub(crate) unsafe trait Isa: Copy + 'static {
    type V: Copy;
    const NAME: &'static str;
    /// The number of rows times one token whose sums fit in registers, besides the registers that dequantising takes.
    const ROWS: usize;
    /// The columns that are dequantised at a time for many tokens: at most `linear::MAX_K_TILE`. Four rows of them stay in L1.
    const K_TILE: usize;
    /// The tokens that are multiplied in sequence with four such rows. Their columns stay in L2.
    const TOKENS: usize;

    /// # Safety
    /// The processor has the instruction set.
    unsafe fn splat(x: f32) -> Self::V;
    /// # Safety
    /// `p` is valid for reads of 16 floats, and the processor has the instruction set.
    unsafe fn load(p: *const f32) -> Self::V;
    /// # Safety
    /// `p` is valid for writes of 16 floats, and the processor has the instruction set.
    unsafe fn store(p: *mut f32, v: Self::V);
    /// Converts float16, which is exact.
    ///
    /// # Safety
    /// `p` is valid for reads of 16 numbers of 16 bits, and the processor has the instruction set.
    unsafe fn load_f16(p: *const u16) -> Self::V;
    /// Converts integers of 8 bits, which is exact.
    ///
    /// # Safety
    /// `p` is valid for reads of 16 bytes, and the processor has the instruction set.
    unsafe fn load_i8(p: *const i8) -> Self::V;
    /// Converts a float16 and copies it to all lanes.
    ///
    /// # Safety
    /// `p` is valid for a read, and the processor has the instruction set.
    unsafe fn splat_f16(p: *const u16) -> Self::V;
    /// # Safety
    /// The processor has the instruction set.
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    /// # Safety
    /// The processor has the instruction set.
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    /// # Safety
    /// The processor has the instruction set.
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    /// # Safety
    /// The processor has the instruction set.
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    /// The larger of `a` and `b`; `b` if either is NaN.
    ///
    /// # Safety
    /// The processor has the instruction set.
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// The smaller of `a` and `b`; `b` if either is NaN.
    ///
    /// # Safety
    /// The processor has the instruction set.
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V;
    /// a * b + c
    ///
    /// # Safety
    /// The processor has the instruction set.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// 2^n for integral n in [-126, 127].
    ///
    /// # Safety
    /// The processor has the instruction set.
    unsafe fn pow2(n: Self::V) -> Self::V;
    /// Rounds to the nearest integer, ties to even.
    ///
    /// # Safety
    /// The processor has the instruction set.
    unsafe fn round(v: Self::V) -> Self::V;
    /// Sums the lanes as the tree (i, i + 8), (i, i + 4), (i, i + 2), (i, i + 1).
    ///
    /// # Safety
    /// The processor has the instruction set.
    unsafe fn reduce_add(v: Self::V) -> f32;
    /// Computes `reduce_add` of four vectors at once, with the same bits.
    ///
    /// # Safety
    /// `out` is valid for writes of four floats, and the processor has the instruction set.
    unsafe fn reduce_add4(v: [Self::V; 4], out: *mut f32);
    /// Computes `reduce_add` of each vector, with the same bits.
    ///
    /// # Safety
    /// The processor has the instruction set.
    #[inline(always)]
    unsafe fn reduce_each(vectors: &[Self::V], out: &mut [f32]) {
        let (fours, rest) = vectors.as_chunks::<4>();
        let (outs, out_rest) = out.as_chunks_mut::<4>();
        // SAFETY: the caller keeps the condition above, and four floats have room for four sums.
        unsafe {
            // loops, because a closure would not have the instruction set
            for (four, out) in fours.iter().zip(outs) {
                Self::reduce_add4(*four, out.as_mut_ptr());
            }
            for (one, out) in rest.iter().zip(out_rest) {
                *out = Self::reduce_add(*one);
            }
        }
    }
    /// # Safety
    /// The processor has the instruction set.
    unsafe fn reduce_max(v: Self::V) -> f32;

    /// Prefetches the cache line of an address. The address need not be valid.
    ///
    /// # Safety
    /// The processor has the instruction set.
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every x86-64 processor has SSE, and a prefetch of an invalid address does nothing.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(p.cast());
        }
        let _ = p;
    }

    /// # Safety
    /// The processor has the instruction set.
    #[inline(always)]
    unsafe fn zero() -> Self::V {
        // SAFETY: the caller keeps the conditions above.
        unsafe { Self::splat(0.0) }
    }

    /// e^x with a relative error below 2e-7. Underflows to about 1e-38 rather than to zero. NaN stays NaN.
    ///
    /// # Safety
    /// The processor has the instruction set.
    #[inline(always)]
    unsafe fn exp(x: Self::V) -> Self::V {
        // SAFETY: the caller keeps the conditions above.
        unsafe {
            // The bounds are first arguments: if one argument is NaN, `max` and `min` return the second.
            let x = Self::min(Self::splat(88.0), Self::max(Self::splat(-87.0), x));
            let n = Self::round(Self::mul(x, Self::splat(std::f32::consts::LOG2_E)));
            // ln 2 is split in two parts (Cody and Waite), so that the reduced argument keeps its bits
            let r = Self::fma(n, Self::splat(-0.693_359_4), x);
            let r = Self::fma(n, Self::splat(2.121_944_4e-4), r);
            let mut p = Self::splat(1.0 / 5040.0);
            for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
                p = Self::fma(p, r, Self::splat(c));
            }
            Self::mul(p, Self::pow2(n))
        }
    }

    /// cap · tanh(x / cap); NaN if x is not finite
    ///
    /// # Safety
    /// The processor has the instruction set.
    #[inline(always)]
    unsafe fn soft_cap(x: Self::V, cap: f32) -> Self::V {
        // SAFETY: the caller keeps the conditions above.
        unsafe {
            // tanh(y) = 1 − 2 / (1 + e^2y); the error is about 1e-7 of the cap
            let e = Self::exp(Self::mul(x, Self::splat(2.0 / cap)));
            let tanh = Self::sub(Self::splat(1.0), Self::div(Self::splat(2.0), Self::add(Self::splat(1.0), e)));
            // exp clamps its argument, so 0 · x makes an infinite x NaN
            Self::fma(x, Self::zero(), Self::mul(tanh, Self::splat(cap)))
        }
    }
}

/// Decodes the blocks of a tensor type, 32 weights at a time.
///
/// # Safety
/// An implementation reads only the block that its functions' conditions name, and `state` writes the whole of `out`.
pub(crate) unsafe trait Dequant<I: Isa> {
    /// Weights per block.
    const BLOCK: usize;
    /// Bytes per block.
    const BYTES: usize;
    /// The values that are computed once per block: scales, or the weights themselves.
    type State;
    /// The number of consecutive calls of `w32` that share work, such as loading the same bytes. The calls for a row follow one another.
    const SHARED: usize = 1;
    /// Writes the state of a block. Writes in place, because a copy would wait for stores of other widths.
    ///
    /// # Safety
    /// `p` is valid for `BYTES` bytes, `out` is valid for writes, and the processor has the instruction set.
    unsafe fn state(p: *const u8, out: *mut Self::State);
    /// # Safety
    /// `p` is valid for `BYTES` bytes, `state` is the state of this block, `j` is below `BLOCK / 32`, and the processor has the instruction
    /// set.
    unsafe fn w32(p: *const u8, state: &Self::State, j: usize) -> [I::V; 2];
}

#[cfg(test)]
mod recurrence_tests;
#[cfg(test)]
mod tests;
