//! Wraps the exact scalar dequantisers as [`Dequant`], for every type on every instruction set. The compiler vectorises them for the
//! instruction set of the entry point.

use super::{Dequant, Isa};
use model::{codebook, dequant};

macro_rules! scalar {
    ($name:ident, $block:literal, $bytes:literal, $function:path) => {
        pub struct $name;
        // SAFETY: reads only the block's bytes.
        unsafe impl<I: Isa> Dequant<I> for $name {
            const BLOCK: usize = $block;
            const BYTES: usize = $bytes;
            type State = [f32; $block];
            #[inline(always)]
            unsafe fn state(p: *const u8, out: *mut [f32; $block]) {
                // SAFETY: the caller keeps the conditions of the trait.
                unsafe {
                    out.write([0.0; $block]);
                    $function(&*p.cast::<[u8; $bytes]>(), &mut *out);
                }
            }
            #[inline(always)]
            unsafe fn w32(_: *const u8, state: &[f32; $block], j: usize) -> [I::V; 2] {
                // SAFETY: the caller keeps the conditions of the trait.
                unsafe {
                    let p = state.as_ptr().add(32 * j);
                    [I::load(p), I::load(p.add(16))]
                }
            }
        }
    };
}

macro_rules! thirty_two {
    ($name:ident, $bytes:literal, $one:expr) => {
        #[inline(always)]
        fn $name(block: &[u8; 32 * $bytes], out: &mut [f32; 32]) {
            for (src, dst) in block.as_chunks::<$bytes>().0.iter().zip(out.as_chunks_mut::<1>().0) {
                $one(src, dst);
            }
        }
    };
}

thirty_two!(f32_32, 4, dequant::f32);
thirty_two!(f16_32, 2, dequant::f16);
thirty_two!(bf16_32, 2, dequant::bf16);

scalar!(F32, 32, 128, f32_32);
scalar!(F16, 32, 64, f16_32);
scalar!(Bf16, 32, 64, bf16_32);
scalar!(Q4_0, 32, 18, dequant::q4_0);
scalar!(Q4_1, 32, 20, dequant::q4_1);
scalar!(Q5_0, 32, 22, dequant::q5_0);
scalar!(Q5_1, 32, 24, dequant::q5_1);
scalar!(Q8_0, 32, 34, dequant::q8_0);
scalar!(Q2K, 256, 84, dequant::q2_k);
scalar!(Q3K, 256, 110, dequant::q3_k);
scalar!(Q4K, 256, 144, dequant::q4_k);
scalar!(Q5K, 256, 176, dequant::q5_k);
scalar!(Q6K, 256, 210, dequant::q6_k);
scalar!(Iq1S, 256, 50, codebook::iq1_s);
scalar!(Iq1M, 256, 56, codebook::iq1_m);
scalar!(Iq2Xxs, 256, 66, codebook::iq2_xxs);
scalar!(Iq2Xs, 256, 74, codebook::iq2_xs);
scalar!(Iq2S, 256, 82, codebook::iq2_s);
scalar!(Iq3Xxs, 256, 98, codebook::iq3_xxs);
scalar!(Iq3S, 256, 110, codebook::iq3_s);
scalar!(Iq4Nl, 32, 18, codebook::iq4_nl);
scalar!(Iq4Xs, 256, 136, codebook::iq4_xs);
scalar!(Tq1_0, 256, 54, codebook::tq1_0);
scalar!(Tq2_0, 256, 66, codebook::tq2_0);
scalar!(Mxfp4, 32, 17, codebook::mxfp4);
scalar!(Nvfp4, 64, 36, codebook::nvfp4);
