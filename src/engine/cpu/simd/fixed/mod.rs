//! Multiplies quantised weights with inputs in fixed point, for AVX-512 with VNNI.
//!
//! A row of input is split once per product. Each 16 columns share a unit, and an input becomes an integer n of 16 bits with x ≈ n · unit,
//! where the largest magnitude is 32639 units. So the error of an input is at most 2^-16 of the largest of 16. An input that is much larger
//! than usual would hide the bits of its 15 neighbours, which the norms of later layers magnify: logits of Gemma 3 were off by 1e-2 of a
//! standard deviation. Where a fixed block of 256 columns has such an outlier, the fractions that rounding left are multiplied as well,
//! with eight more bits.
//!
//! Weights stay one-byte codes. `vpdpbusd` multiplies 64 unsigned bytes by 64 signed ones and adds four neighbouring products to a 32-bit
//! lane. It multiplies the codes by the high bytes of n, then, after a shift, by the low ones. With one row of input, codes are unsigned as
//! they are stored, and the bytes of n are signed. With many rows, codes with an offset are signed and the bytes are unsigned, so that what
//! the offset adds depends only on the weights. Both give the same integers. Codes and bytes of a whole fixed block are transposed, so that
//! the 16 products of a lane share a scale and a unit, by which the lane is multiplied in float32.
//!
//! Sums cannot overflow: a code is at most 255, so 16 products with n are below 16 · 255 · 2^15 < 2^31.

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
    2 levels::Q4_0, 3 levels::Q4_1, 6 levels::Q5_0, 7 levels::Q5_1, 8 levels::Q8_0,
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
