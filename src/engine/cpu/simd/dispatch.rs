//! Defines the kernels' entry points with their target features, and chooses among them at run time.

use super::attention::{self, AttentionFn};
use super::attention_packed::{self, PackedFn, PackedHead};
use super::linear::{self, Kernel, LinearArgs, MAX_TILE, MicroTable, Span, Sums};
use super::ops::{self, Gate, Sigmoidal};
use super::scan::{self, DeltaArgs, ScanArgs};
use super::{Dequant, Isa, scalar};

/// The kernels of one instruction set. A function's conditions are those of the generic function of its name in `attention`,
/// `attention_packed`, `linear`, `ops` or `scan`. A `Kernels` comes only from [`available`], so the processor has the instruction set.
pub struct Kernels {
    pub name: &'static str,
    pub(super) micro: &'static MicroTable,
    pub(super) attention: AttentionFn,
    pub(super) attention_packed: PackedFn,
    pub(super) rmsnorm: unsafe fn(*mut f32, *const f32, *const f32, usize, f32),
    /// (output, input, (weight, bias), length, epsilon)
    pub(super) layernorm: unsafe fn(*mut f32, *const f32, (*const f32, *const f32), usize, f32),
    pub(super) soft_cap: unsafe fn(*mut f32, usize, f32),
    pub(super) add: unsafe fn(*mut f32, *const f32, usize),
    pub(super) glu: unsafe fn(*mut f32, *const f32, usize, Sigmoidal),
    pub(super) multiply_add: unsafe fn(*mut f32, *const f32, *const f32, usize),
    pub(super) dot: unsafe fn(*const f32, *const f32, usize) -> f32,
    /// (output, (rows, floats from one to the next), factors, number of rows, length)
    pub(super) add_rows: unsafe fn(*mut f32, (*const f32, usize), *const f32, usize, usize),
    pub(super) gate: unsafe fn(*mut f32, *const f32, usize, Gate),
    pub(super) softplus: unsafe fn(*mut f32, *const f32, usize),
    pub(super) exp: unsafe fn(*mut f32, usize, f32),
    pub(super) scan: unsafe fn(&ScanArgs),
    pub(super) delta: unsafe fn(&DeltaArgs),
    /// The linear layer of a ggml type id.
    pub(crate) linear_of: fn(u32) -> Option<Kernel>,
}

/// Defines a set of kernels. `[feature]` is enabled in the entry points. `fast` is the module that dequantises the first list of types, and
/// `scalar` dequantises the second. `more` has the kernels of other types.
macro_rules! kernels {
    (
        $module:ident, $isa:ty, $tile:literal, [$($feature:literal)?],
        $fast:ident: [$($id:literal $type:ident),*], [$($slow_id:literal $slow:ident),*]
        $(, or $more:path)?
    ) => {
        mod $module {
            use super::*;

            /// # Safety
            /// The conditions of [`linear::linear`], and the processor has the features.
            $(#[target_feature(enable = $feature)])?
            unsafe fn layer<D: Dequant<$isa>>(a: &LinearArgs) {
                // SAFETY: the caller keeps the conditions above.
                unsafe {
                    linear::linear::<$isa, D>(a)
                }
            }
            /// # Safety
            /// The conditions of [`linear::micro`], and the processor has the features.
            $(#[target_feature(enable = $feature)])?
            unsafe fn micro<const T: usize>(w: *const f32, x: *const f32, a: &LinearArgs, span: &Span, sums: &Sums, out: *mut f32) {
                // SAFETY: the caller keeps the conditions above.
                unsafe {
                    linear::micro::<$isa, T>(w, x, a, span, sums, out)
                }
            }
            /// # Safety
            /// The conditions of [`attention::attention`], and the processor has the features.
            $(#[target_feature(enable = $feature)])?
            unsafe fn attend(h: &attention::Head, rows: &[attention::Query]) {
                // SAFETY: the caller keeps the conditions above.
                unsafe {
                    attention::attention::<$isa>(h, rows)
                }
            }
            /// # Safety
            /// The conditions of [`attention_packed::attention`], and the processor has the features.
            $(#[target_feature(enable = $feature)])?
            unsafe fn attend_packed(h: &PackedHead, rows: &[attention::Query], scratch: *mut f32) {
                // SAFETY: the caller keeps the conditions above.
                unsafe {
                    attention_packed::attention::<$isa>(h, rows, scratch)
                }
            }
            /// # Safety
            /// The conditions of [`ops::rmsnorm`], and the processor has the features.
            $(#[target_feature(enable = $feature)])?
            unsafe fn rmsnorm(out: *mut f32, x: *const f32, weight: *const f32, len: usize, eps: f32) {
                // SAFETY: the caller keeps the conditions above.
                unsafe {
                    ops::rmsnorm::<$isa>(out, x, weight, len, eps)
                }
            }
            /// # Safety
            /// The conditions of [`ops::layernorm`], and the processor has the features.
            $(#[target_feature(enable = $feature)])?
            unsafe fn layernorm(out: *mut f32, x: *const f32, parameters: (*const f32, *const f32), len: usize, eps: f32) {
                // SAFETY: the caller keeps the conditions above.
                unsafe {
                    ops::layernorm::<$isa>(out, x, parameters, len, eps)
                }
            }
            /// # Safety
            /// The conditions of [`ops::soft_cap`], and the processor has the features.
            $(#[target_feature(enable = $feature)])?
            unsafe fn soft_cap(x: *mut f32, len: usize, cap: f32) {
                // SAFETY: the caller keeps the conditions above.
                unsafe {
                    ops::soft_cap::<$isa>(x, len, cap)
                }
            }
            /// # Safety
            /// The conditions of [`ops::add`], and the processor has the features.
            $(#[target_feature(enable = $feature)])?
            unsafe fn add(out: *mut f32, x: *const f32, len: usize) {
                // SAFETY: the caller keeps the conditions above.
                unsafe {
                    ops::add::<$isa>(out, x, len)
                }
            }
            /// # Safety
            /// The conditions of [`ops::glu`], and the processor has the features.
            $(#[target_feature(enable = $feature)])?
            unsafe fn glu(gate: *mut f32, up: *const f32, len: usize, activation: Sigmoidal) {
                // SAFETY: the caller keeps the conditions above.
                unsafe {
                    ops::glu::<$isa>(gate, up, len, activation)
                }
            }
            /// # Safety
            /// The conditions of [`ops::multiply_add`], and the processor has the features.
            $(#[target_feature(enable = $feature)])?
            unsafe fn multiply_add(out: *mut f32, a: *const f32, b: *const f32, len: usize) {
                // SAFETY: the caller keeps the conditions above.
                unsafe {
                    ops::multiply_add::<$isa>(out, a, b, len)
                }
            }
            /// # Safety
            /// The conditions of [`ops::dot`], and the processor has the features.
            $(#[target_feature(enable = $feature)])?
            unsafe fn dot(a: *const f32, b: *const f32, len: usize) -> f32 {
                // SAFETY: the caller keeps the conditions above.
                unsafe {
                    ops::dot::<$isa>(a, b, len)
                }
            }
            /// # Safety
            /// The conditions of [`ops::add_rows`], and the processor has the features.
            $(#[target_feature(enable = $feature)])?
            unsafe fn add_rows(out: *mut f32, rows: (*const f32, usize), factors: *const f32, count: usize, len: usize) {
                // SAFETY: the caller keeps the conditions above.
                unsafe {
                    ops::add_rows::<$isa>(out, rows, factors, count, len)
                }
            }
            /// # Safety
            /// The conditions of [`ops::gate`], and the processor has the features.
            $(#[target_feature(enable = $feature)])?
            unsafe fn gate(x: *mut f32, gate: *const f32, len: usize, kind: Gate) {
                // SAFETY: the caller keeps the conditions above.
                unsafe {
                    ops::gate::<$isa>(x, gate, len, kind)
                }
            }
            /// # Safety
            /// The conditions of [`ops::softplus`], and the processor has the features.
            $(#[target_feature(enable = $feature)])?
            unsafe fn softplus(x: *mut f32, bias: *const f32, len: usize) {
                // SAFETY: the caller keeps the conditions above.
                unsafe {
                    ops::softplus::<$isa>(x, bias, len)
                }
            }
            /// # Safety
            /// The conditions of [`ops::exp`], and the processor has the features.
            $(#[target_feature(enable = $feature)])?
            unsafe fn exp(x: *mut f32, len: usize, factor: f32) {
                // SAFETY: the caller keeps the conditions above.
                unsafe {
                    ops::exp::<$isa>(x, len, factor)
                }
            }
            /// # Safety
            /// The conditions of [`scan::scan`], and the processor has the features.
            $(#[target_feature(enable = $feature)])?
            unsafe fn scan(a: &ScanArgs) {
                // SAFETY: the caller keeps the conditions above.
                unsafe {
                    scan::scan::<$isa>(a)
                }
            }
            /// # Safety
            /// The conditions of [`scan::delta`], and the processor has the features.
            $(#[target_feature(enable = $feature)])?
            unsafe fn delta(a: &DeltaArgs) {
                // SAFETY: the caller keeps the conditions above.
                unsafe {
                    scan::delta::<$isa>(a)
                }
            }

            fn by_type(id: u32) -> Option<Kernel> {
                Some(match id {
                    $($id => Kernel { run: layer::<super::super::$fast::$type>, split: None },)*
                    $($slow_id => Kernel { run: layer::<scalar::$slow>, split: None },)*
                    _ => return None$(.or_else(|| $more(id)))?,
                })
            }

            static MICRO: MicroTable = MicroTable {
                by_tokens: [micro::<1>, micro::<2>, micro::<3>, micro::<4>, micro::<5>, micro::<{ MAX_TILE }>],
                tile: $tile,
            };
            pub static KERNELS: Kernels = Kernels {
                name: <$isa>::NAME,
                micro: &MICRO,
                attention: attend,
                attention_packed: attend_packed,
                rmsnorm,
                layernorm,
                soft_cap,
                add,
                glu,
                multiply_add,
                dot,
                add_rows,
                gate,
                softplus,
                exp,
                scan,
                delta,
                linear_of: by_type,
            };
        }
    };
}

#[cfg(target_arch = "x86_64")]
kernels!(avx512, super::super::avx512::Avx512, 6, ["avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c"], dequant512: [
    0 F32, 1 F16, 30 Bf16], [], or super::super::fixed::kernel_of);
#[cfg(target_arch = "x86_64")]
kernels!(avx2, super::super::avx2::Avx2, 1, ["avx2,fma,f16c"], dequant256: [
    1 F16, 2 Q4_0, 3 Q4_1, 6 Q5_0, 7 Q5_1, 10 Q2K, 11 Q3K, 12 Q4K, 13 Q5K, 14 Q6K, 20 Iq4Nl, 23 Iq4Xs, 39 Mxfp4, 40 Nvfp4], [
    0 F32, 30 Bf16, 8 Q8_0,
    16 Iq2Xxs, 17 Iq2Xs, 18 Iq3Xxs, 19 Iq1S, 21 Iq3S, 22 Iq2S, 29 Iq1M, 34 Tq1_0, 35 Tq2_0]);
kernels!(portable, super::super::portable::Portable, 1, [], scalar: [
    0 F32, 1 F16, 30 Bf16, 2 Q4_0, 3 Q4_1, 6 Q5_0, 7 Q5_1, 8 Q8_0, 10 Q2K, 11 Q3K, 12 Q4K, 13 Q5K, 14 Q6K,
    16 Iq2Xxs, 17 Iq2Xs, 18 Iq3Xxs, 19 Iq1S, 20 Iq4Nl, 21 Iq3S, 22 Iq2S, 23 Iq4Xs, 29 Iq1M, 34 Tq1_0, 35 Tq2_0, 39 Mxfp4,
    40 Nvfp4], []);

/// Every set of kernels that this processor runs, the fastest first.
pub fn available() -> Vec<&'static Kernels> {
    let mut sets: Vec<&'static Kernels> = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        let avx512 = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni");
        if avx2 && avx512 {
            sets.push(&avx512::KERNELS);
        }
        if avx2 {
            sets.push(&avx2::KERNELS);
        }
    }
    sets.push(&portable::KERNELS);
    sets
}
