//! Implements [`Isa`](super::Isa) in plain Rust, for any processor.

use super::Isa;
use model::dequant::f16_to_f32;

#[derive(Clone, Copy)]
pub struct Portable;

macro_rules! lanes {
    (|$i:ident| $e:expr) => {{
        let mut out = [0f32; 16];
        for $i in 0..16 {
            out[$i] = $e;
        }
        out
    }};
}

// SAFETY: needs no instruction set beyond the target's own.
unsafe impl Isa for Portable {
    type V = [f32; 16];
    const NAME: &'static str = "portable";
    const ROWS: usize = 4;
    const K_TILE: usize = 1024;
    const TOKENS: usize = 32;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::V {
        [x; 16]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::V {
        // SAFETY: the caller keeps the conditions of the trait.
        unsafe { p.cast::<[f32; 16]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::V) {
        // SAFETY: the caller keeps the conditions of the trait.
        unsafe { p.cast::<[f32; 16]>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self::V {
        // SAFETY: the caller keeps the conditions of the trait.
        let halves = unsafe { p.cast::<[u16; 16]>().read_unaligned() };
        lanes!(|i| f16_to_f32(halves[i]))
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self::V {
        // SAFETY: the caller keeps the conditions of the trait.
        let bytes = unsafe { p.cast::<[i8; 16]>().read_unaligned() };
        lanes!(|i| f32::from(bytes[i]))
    }
    #[inline(always)]
    unsafe fn splat_f16(p: *const u16) -> Self::V {
        // SAFETY: the caller keeps the conditions of the trait.
        [f16_to_f32(unsafe { p.read_unaligned() }); 16]
    }
    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        lanes!(|i| a[i] + b[i])
    }
    #[inline(always)]
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
        lanes!(|i| a[i] - b[i])
    }
    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        lanes!(|i| a[i] * b[i])
    }
    #[inline(always)]
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
        lanes!(|i| a[i] / b[i])
    }
    #[inline(always)]
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
        lanes!(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V {
        lanes!(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // without the instruction, f32::mul_add is a library call, fifty times slower than a product and a sum
        lanes!(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    unsafe fn pow2(n: Self::V) -> Self::V {
        lanes!(|i| f32::from_bits(((n[i] as i32 + 127) as u32) << 23))
    }
    #[inline(always)]
    unsafe fn round(v: Self::V) -> Self::V {
        lanes!(|i| v[i].round_ties_even())
    }
    #[inline(always)]
    unsafe fn reduce_add(v: Self::V) -> f32 {
        let mut s = v;
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                s[i] += s[i + half];
            }
        }
        s[0]
    }
    #[inline(always)]
    unsafe fn reduce_add4(v: [Self::V; 4], out: *mut f32) {
        // SAFETY: the caller keeps the conditions of the trait.
        unsafe {
            for (i, v) in v.into_iter().enumerate() {
                *out.add(i) = Self::reduce_add(v);
            }
        }
    }
    #[inline(always)]
    unsafe fn reduce_max(v: Self::V) -> f32 {
        v.into_iter().fold(f32::NEG_INFINITY, |a, b| if b > a { b } else { a })
    }
}
