//! Computes element-wise and row-wise operations.

use super::{Isa, LANES};

/// An activation x · sigmoid(z).
#[derive(Clone, Copy)]
pub enum Sigmoidal {
    /// z = x
    Silu,
    /// The tanh approximation of GELU: z = 2 sqrt(2/π) (x + 0.044715 x³)
    Gelu,
}

/// The factor that a gate z gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// z · sigmoid(z)
    Silu,
    /// sigmoid(z)
    Sigmoid,
}

/// Walks `$len` elements: runs `$whole` for each whole vector, with its offset, then `$rest` for each remaining element.
macro_rules! vectors {
    ($len:expr, |$i:ident| $whole:block, |$j:ident| $rest:block) => {{
        let len = $len;
        let mut $i = 0;
        while $i + LANES <= len {
            $whole
            $i += LANES;
        }
        for $j in $i..len {
            $rest
        }
    }};
}

/// out = x / sqrt(mean(x²) + eps) · weight. `out` may be `x`.
///
/// # Safety
/// `out`, `x` and `weight` hold `len` floats, and the processor has the instruction set.
#[inline(always)]
pub unsafe fn rmsnorm<I: Isa>(out: *mut f32, x: *const f32, weight: *const f32, len: usize, eps: f32) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let mut sum = I::zero();
        let mut tail = 0.0;
        vectors!(
            len,
            |i| {
                sum = I::fma(I::load(x.add(i)), I::load(x.add(i)), sum);
            },
            |j| {
                tail += *x.add(j) * *x.add(j);
            }
        );
        let scale = 1.0 / ((I::reduce_add(sum) + tail) / len as f32 + eps).sqrt();
        let s = I::splat(scale);
        vectors!(
            len,
            |i| {
                I::store(out.add(i), I::mul(I::mul(I::load(x.add(i)), s), I::load(weight.add(i))));
            },
            |j| {
                *out.add(j) = *x.add(j) * scale * *weight.add(j);
            }
        );
    }
}

/// out = (x − mean(x)) / sqrt(var(x) + eps) · weight + bias. `out` may be `x`. A null bias counts as zeros.
///
/// # Safety
/// `out`, `x` and `weight` hold `len` floats, and so does `bias` unless it is null, and the processor has the instruction set.
#[inline(always)]
pub unsafe fn layernorm<I: Isa>(out: *mut f32, x: *const f32, (weight, bias): (*const f32, *const f32), len: usize, eps: f32) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let (mut sum, mut tail) = (I::zero(), 0.0);
        vectors!(
            len,
            |i| {
                sum = I::add(I::load(x.add(i)), sum);
            },
            |j| {
                tail += *x.add(j);
            }
        );
        let mean = (I::reduce_add(sum) + tail) / len as f32;
        let (m, mut squares, mut tail) = (I::splat(mean), I::zero(), 0.0);
        vectors!(
            len,
            |i| {
                let d = I::sub(I::load(x.add(i)), m);
                squares = I::fma(d, d, squares);
            },
            |j| {
                tail += (*x.add(j) - mean) * (*x.add(j) - mean);
            }
        );
        let scale = 1.0 / ((I::reduce_add(squares) + tail) / len as f32 + eps).sqrt();
        let s = I::splat(scale);
        vectors!(
            len,
            |i| {
                let y = I::mul(I::mul(I::sub(I::load(x.add(i)), m), s), I::load(weight.add(i)));
                I::store(out.add(i), if bias.is_null() { y } else { I::add(y, I::load(bias.add(i))) });
            },
            |j| {
                let y = (*x.add(j) - mean) * scale * *weight.add(j);
                *out.add(j) = if bias.is_null() { y } else { y + *bias.add(j) };
            }
        );
    }
}

/// x = cap · tanh(x / cap)
///
/// # Safety
/// `x` holds `len` floats, and the processor has the instruction set.
#[inline(always)]
pub unsafe fn soft_cap<I: Isa>(x: *mut f32, len: usize, cap: f32) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        for i in (0..len).step_by(LANES) {
            let mut lanes = [0f32; LANES];
            let n = LANES.min(len - i);
            std::ptr::copy_nonoverlapping(x.add(i), lanes.as_mut_ptr(), n);
            I::store(lanes.as_mut_ptr(), I::soft_cap(I::load(lanes.as_ptr()), cap));
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), x.add(i), n);
        }
    }
}

/// out += x
///
/// # Safety
/// Both hold `len` floats, and the processor has the instruction set.
#[inline(always)]
pub unsafe fn add<I: Isa>(out: *mut f32, x: *const f32, len: usize) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        vectors!(
            len,
            |i| {
                I::store(out.add(i), I::add(I::load(out.add(i)), I::load(x.add(i))));
            },
            |j| {
                *out.add(j) += *x.add(j);
            }
        );
    }
}

/// gate = activation(gate) · up. A null `up` counts as ones.
///
/// # Safety
/// `gate` holds `len` floats, and so does `up` unless it is null, and the processor has the instruction set.
#[inline(always)]
pub unsafe fn glu<I: Isa>(gate: *mut f32, up: *const f32, len: usize, activation: Sigmoidal) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let ones = [1f32; LANES];
        let up_at = |i| if up.is_null() { ones.as_ptr() } else { up.add(i) };
        let mut i = 0;
        while i + LANES <= len {
            gate16::<I>(gate.add(i), up_at(i), activation);
            i += LANES;
        }
        if i < len {
            let (mut g, mut u) = ([0f32; LANES], [0f32; LANES]);
            std::ptr::copy_nonoverlapping(gate.add(i), g.as_mut_ptr(), len - i);
            std::ptr::copy_nonoverlapping(up_at(i), u.as_mut_ptr(), len - i);
            gate16::<I>(g.as_mut_ptr(), u.as_ptr(), activation);
            std::ptr::copy_nonoverlapping(g.as_ptr(), gate.add(i), len - i);
        }
    }
}

/// # Safety
/// `gate` is valid for reads and writes of 16 floats and `up` for reads, and the processor has the instruction set.
#[inline(always)]
unsafe fn gate16<I: Isa>(gate: *mut f32, up: *const f32, activation: Sigmoidal) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        I::store(gate, I::mul(activate::<I>(I::load(gate), activation), I::load(up)));
    }
}

/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn activate<I: Isa>(x: I::V, activation: Sigmoidal) -> I::V {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let z = match activation {
            Sigmoidal::Silu => x,
            Sigmoidal::Gelu => {
                let cubic = I::fma(I::mul(x, x), I::mul(x, I::splat(0.044_715)), x);
                I::mul(cubic, I::splat(1.595_769))
            }
        };
        let e = I::exp(I::sub(I::zero(), z));
        I::div(x, I::add(I::splat(1.0), e))
    }
}

/// Applies `f` to the vectors of `x` and `y`, and stores the result in `x`. The rest of a last vector is filled with zeros.
///
/// # Safety
/// Both hold `len` floats, and the processor has the instruction set.
#[inline(always)]
unsafe fn map<I: Isa>(x: *mut f32, y: *const f32, len: usize, f: impl Fn(I::V, I::V) -> I::V) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let mut i = 0;
        while i + LANES <= len {
            I::store(x.add(i), f(I::load(x.add(i)), I::load(y.add(i))));
            i += LANES;
        }
        if i < len {
            let (mut a, mut b) = ([0f32; LANES], [0f32; LANES]);
            std::ptr::copy_nonoverlapping(x.add(i), a.as_mut_ptr(), len - i);
            std::ptr::copy_nonoverlapping(y.add(i), b.as_mut_ptr(), len - i);
            I::store(a.as_mut_ptr(), f(I::load(a.as_ptr()), I::load(b.as_ptr())));
            std::ptr::copy_nonoverlapping(a.as_ptr(), x.add(i), len - i);
        }
    }
}

/// out += a · b
///
/// # Safety
/// All hold `len` floats, and the processor has the instruction set.
#[inline(always)]
pub unsafe fn multiply_add<I: Isa>(out: *mut f32, a: *const f32, b: *const f32, len: usize) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        vectors!(
            len,
            |i| {
                I::store(out.add(i), I::fma(I::load(a.add(i)), I::load(b.add(i)), I::load(out.add(i))));
            },
            |j| {
                *out.add(j) += *a.add(j) * *b.add(j);
            }
        );
    }
}

/// The product of two vectors.
///
/// # Safety
/// Both hold `len` floats, and the processor has the instruction set.
#[inline(always)]
pub unsafe fn dot<I: Isa>(a: *const f32, b: *const f32, len: usize) -> f32 {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let (mut sums, mut tail) = ([I::zero(); 4], 0.0);
        let mut i = 0;
        while i + 4 * LANES <= len {
            for (lane, sum) in sums.iter_mut().enumerate() {
                let at = i + lane * LANES;
                *sum = I::fma(I::load(a.add(at)), I::load(b.add(at)), *sum);
            }
            i += 4 * LANES;
        }
        let (a, b) = (a.add(i), b.add(i));
        vectors!(
            len - i,
            |j| {
                sums[0] = I::fma(I::load(a.add(j)), I::load(b.add(j)), sums[0]);
            },
            |j| {
                tail += *a.add(j) * *b.add(j);
            }
        );
        I::reduce_add(I::add(I::add(sums[0], sums[1]), I::add(sums[2], sums[3]))) + tail
    }
}

/// out += Σ factor · row, for `count` rows that lie `ld` floats apart, in their order.
///
/// # Safety
/// `out` and each row hold `len` floats, `factors` holds `count`, and the processor has the instruction set.
#[inline(always)]
pub unsafe fn add_rows<I: Isa>(out: *mut f32, (rows, ld): (*const f32, usize), factors: *const f32, count: usize, len: usize) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        vectors!(
            len,
            |i| {
                let mut sum = I::load(out.add(i));
                for k in 0..count {
                    sum = I::fma(I::splat(*factors.add(k)), I::load(rows.add(k * ld + i)), sum);
                }
                I::store(out.add(i), sum);
            },
            |j| {
                for k in 0..count {
                    *out.add(j) += *factors.add(k) * *rows.add(k * ld + j);
                }
            }
        );
    }
}

/// x *= gate
///
/// # Safety
/// Both hold `len` floats, and the processor has the instruction set.
#[inline(always)]
pub unsafe fn gate<I: Isa>(x: *mut f32, gate: *const f32, len: usize, kind: Gate) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        map::<I>(x, gate, len, |x, z| {
            let numerator = if kind == Gate::Silu { I::mul(x, z) } else { x };
            let divisor = I::add(I::splat(1.0), I::exp(I::sub(I::zero(), z)));
            // exp clamps its argument, so 0 · z restores NaN for a gate that is not finite
            I::fma(z, I::zero(), I::div(numerator, divisor))
        })
    }
}

/// x = ln(1 + e^(x + bias))
///
/// # Safety
/// Both hold `len` floats, and the processor has the instruction set.
#[inline(always)]
pub unsafe fn softplus<I: Isa>(x: *mut f32, bias: *const f32, len: usize) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        map::<I>(x, bias, len, |x, bias| {
            let x = I::add(x, bias);
            // max(x, 0) + ln(1 + u) with u = e^-|x|, where ln(1 + u) = 2 artanh(u / (2 + u)) by its series, whose argument is at most 1/3
            let u = I::exp(I::min(x, I::sub(I::zero(), x)));
            let z = I::div(u, I::add(I::splat(2.0), u));
            let square = I::mul(z, z);
            let mut sum = I::splat(1.0 / 17.0);
            for n in [15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
                sum = I::fma(sum, square, I::splat(1.0 / n));
            }
            let log = I::mul(I::add(z, z), sum);
            I::fma(x, I::zero(), I::add(I::max(x, I::zero()), log))
        })
    }
}

/// x = e^(factor · x)
///
/// # Safety
/// `x` holds `len` floats, and the processor has the instruction set.
#[inline(always)]
pub unsafe fn exp<I: Isa>(x: *mut f32, len: usize, factor: f32) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let y = x.cast_const();
        // 0 · x restores NaN for an x that is not finite
        map::<I>(x, y, len, |x, _| I::fma(x, I::zero(), I::exp(I::mul(x, I::splat(factor)))))
    }
}
