//! Defines [`Codes`]: how a tensor type gives its codes, scales and minima to a product.

use std::arch::x86_64::*;

use super::super::fixed_block::STEPS;

pub type V = __m512;

/// Decodes a tensor type: weight = scale · code - minimum, or scale · (code - 128) for types without minima. A type gives its codes either
/// by step or transposed, and the default methods derive the other form. At the end of a row, where less than a fixed block is left, codes
/// are taken by step.
///
/// # Safety
/// An implementation reads only the blocks that its functions' conditions name, and needs no instruction set but that of `fixed`.
pub unsafe trait Codes {
    /// Weights per block.
    const BLOCK: usize;
    /// Bytes per block.
    const BYTES: usize;
    /// Weights that share a scale and a minimum: 16 or 32.
    const GROUP: usize;
    /// Whether there are minima. If not, codes have an offset.
    const MINIMA: bool = false;
    /// The values that are computed once per 256 weights.
    type State;
    /// Writes the state of 256 weights, or of fewer blocks at the end of a row. Writes in place, because a copy would wait for stores of
    /// other widths.
    ///
    /// # Safety
    /// `p` is valid for `blocks` blocks of at most 256 weights, `out` is valid for writes, and the processor has the instruction set.
    unsafe fn state(p: *const u8, blocks: usize, out: *mut Self::State);
    /// The codes of the 64 weights that start at weight 64 · j.
    ///
    /// # Safety
    /// `p` is valid for the blocks up to the end of step `j`, `j` is below `STEPS`, `s` is the state of these blocks, and the processor has
    /// the instruction set.
    #[inline(always)]
    unsafe fn codes(p: *const u8, s: &Self::State, j: usize) -> __m512i {
        // SAFETY: the caller keeps the conditions above.
        unsafe { transposed(Self::whole(p, s))[j] }
    }
    /// The codes of a whole fixed block, transposed.
    ///
    /// # Safety
    /// `p` is valid for 256 weights, `s` is their state, and the processor has the instruction set.
    #[inline(always)]
    unsafe fn whole(p: *const u8, s: &Self::State) -> [__m512i; STEPS] {
        // SAFETY: the caller keeps the conditions above.
        unsafe { transposed([Self::codes(p, s, 0), Self::codes(p, s, 1), Self::codes(p, s, 2), Self::codes(p, s, 3)]) }
    }
    /// The scales of all groups, in ascending order.
    ///
    /// # Safety
    /// The processor has the instruction set.
    unsafe fn scales(state: &Self::State) -> V;
    /// The minima of all groups, in ascending order.
    ///
    /// # Safety
    /// The processor has the instruction set.
    unsafe fn minima(state: &Self::State) -> V;
}

/// Scales and minima of 256 weights.
pub struct Scales {
    pub scales: V,
    pub minima: V,
}

/// Transposes the four times four 32-bit words of each 128-bit lane. So a 32-bit lane belongs to the same 16 columns in every register, and
/// its sums share a scale.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
pub unsafe fn transposed([a, b, c, d]: [__m512i; STEPS]) -> [__m512i; STEPS] {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
        let (above, beyond) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
        [
            _mm512_unpacklo_epi64(ab, cd),
            _mm512_unpackhi_epi64(ab, cd),
            _mm512_unpacklo_epi64(above, beyond),
            _mm512_unpackhi_epi64(above, beyond),
        ]
    }
}
