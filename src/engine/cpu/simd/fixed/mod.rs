//! Multiplies quantised weights with inputs in fixed point, for AVX-512 with VNNI. Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0 are not included: they
//! are faster in float32, because few instructions dequantise them.
//!
//! A row of input is split once per product. In each fixed block of 256 columns, an input becomes an integer n of 22 bits with
//! x ≈ n · unit, where the largest magnitude is 2^21 - 1 units. The three bytes of n are signed and stored in three planes:
//! n = 65536 · a + 256 · b + c. So the error of an input is at most 2^-22 of the largest input, and a product loses less than sums in
//! float32 do. Two planes would be faster by up to a fifth, but large inputs would hide the bits of their neighbours: logits of Gemma 3
//! were off by 7e-3 of a standard deviation.
//!
//! Weights stay one-byte codes. `vpdpbusd` multiplies 64 codes by a plane and adds four neighbouring products to a 32-bit lane. Codes and
//! planes of a whole fixed block are transposed, so that the 16 products of a lane share a scale. The lane is multiplied by that scale in
//! float32.
//!
//! Sums cannot overflow: a code is at most 255, so 16 products with a byte are below 16 · 255 · 128 < 2^19. The sums with the upper two
//! planes are combined as integers, and the sums with the lowest plane as floats. At the end of a row, four products with n are below
//! 4 · 255 · 2^21 < 2^31.

mod books;
mod codes;
mod kernel;
mod levels;
mod split;
mod superblocks;
mod ternary;

use super::fixed_block::FixedBlock;
use super::linear::{Kernel, LinearArgs, LinearFn};

macro_rules! kernels {
    ($($id:literal $module:ident::$type:ident),* $(,)?) => {
        /// The linear layer of a ggml type id.
        pub fn kernel_of(id: u32) -> Option<Kernel> {
            let run: LinearFn = match id {
                $($id => product::<$module::$type>,)*
                _ => return None,
            };
            Some(Kernel { run, split: Some(split) })
        }
    };
}

kernels!(
    10 superblocks::Q2K, 11 superblocks::Q3K, 12 superblocks::Q4K, 13 superblocks::Q5K, 14 superblocks::Q6K,
    16 books::Iq2Xxs, 17 books::Iq2Xs, 18 books::Iq3Xxs, 19 books::Iq1S, 20 levels::Iq4Nl, 21 books::Iq3S, 22 books::Iq2S,
    23 books::Iq4Xs, 29 books::Iq1M, 34 ternary::Tq1_0, 35 ternary::Tq2_0, 39 levels::Mxfp4, 40 levels::Nvfp4,
);

/// # Safety
/// The conditions of [`kernel::linear`], and the processor has the features.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn product<D: codes::Codes>(a: &LinearArgs) {
    // SAFETY: the caller keeps the conditions above.
    unsafe { kernel::linear::<D>(a) }
}

/// # Safety
/// The conditions of [`split::split`], and the processor has the features.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn split(x: *const f32, len: usize, out: *mut FixedBlock) {
    // SAFETY: the caller keeps the conditions above.
    unsafe { split::split(x, len, out) }
}

#[cfg(test)]
mod tests;
