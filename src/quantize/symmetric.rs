//! Encodes the types whose weights are a scale times a level: Q3_K and Q6_K here, IQ4_NL and IQ4_XS in `curve.rs`.
//!
//! A block has groups. Each group has an integer scale that is multiplied by the block's half-precision scale. First every group gets the
//! scale that fits it best. Then rounds alternate between choosing integer scales near these and fitting the block's scale. The goal is the
//! smallest squared error.

use crate::legacy::largest;
use crate::rounding::{half_bits, inverse, nearest_within, to_half};

/// The levels of a type, in ascending order.
pub trait Levels {
    const LOWEST: f32;
    const HIGHEST: f32;
    /// The relative difference between two scales that are tried in succession.
    const STEP: f32;

    fn nearest(x: f32) -> f32;
}

/// The integers from -N to N - 1.
pub struct Integers<const N: i32>;

impl<const N: i32> Levels for Integers<N> {
    const LOWEST: f32 = -(N as f32);
    const HIGHEST: f32 = (N - 1) as f32;
    const STEP: f32 = 0.1 / N as f32;

    #[inline(always)]
    fn nearest(x: f32) -> f32 {
        nearest_within(x, Self::LOWEST, Self::HIGHEST)
    }
}

/// The number of summands that are added in parallel, so that sums compile to vector code.
pub const LANES: usize = 8;

/// The sums of both results of `f` over all weights.
#[inline(always)]
pub fn sums(x: &[f32], f: impl Fn(f32) -> (f32, f32)) -> (f32, f32) {
    let (mut a, mut b) = ([0f32; LANES], [0f32; LANES]);
    for x in x.as_chunks::<LANES>().0 {
        for lane in 0..LANES {
            let (p, q) = f(x[lane]);
            a[lane] += p;
            b[lane] += q;
        }
    }
    (a.iter().sum(), b.iter().sum())
}

/// The scale with the smallest error among those that are tried. The extreme weight falls near the lowest or the highest level.
pub fn fit<L: Levels>(x: &[f32]) -> f32 {
    let extreme = largest(x);
    // The inverse of a smaller weight would not be finite. Half precision cannot hold values that small anyway.
    if extreme.abs() < f32::MIN_POSITIVE {
        return 0.0;
    }
    let (mut scale, mut most) = (0.0, 0.0);
    for end in [L::LOWEST, L::HIGHEST] {
        for k in -9i8..=9 {
            let inverse = end * (1.0 + L::STEP * f32::from(k)) / extreme;
            let (product, square) = sums(x, |x| {
                let level = L::nearest(x * inverse);
                (level * x, level * level)
            });
            // The squared error is Σx² minus this gain.
            let gain = product * (product / square);
            if square > 0.0 && gain > most {
                (scale, most) = (product / square, gain);
            }
        }
    }
    scale
}

/// The squared error of a group under a scale, and Σ level · x and Σ level².
#[inline(always)]
fn error<L: Levels>(x: &[f32], scale: f32) -> f32 {
    let inverse = inverse(scale);
    sums(x, |x| {
        let difference = L::nearest(x * inverse) * scale - x;
        (difference * difference, 0.0)
    })
    .0
}

/// The scale of a block, and the integer scales of its groups.
#[derive(Clone, Copy)]
pub struct Scales<const G: usize> {
    pub d: f32,
    pub of: [i32; G],
}

/// Rounds of choosing integer scales and fitting the block's scale.
const TURNS: usize = 4;

/// Finds the scales of a block of `G` groups. The integer scales lie within `low..=high`, and `low` is negative.
pub fn scales<L: Levels, const G: usize>(x: &[f32; 256], low: i32, high: i32) -> Scales<G> {
    let groups: [&[f32]; G] = std::array::from_fn(|group| &x[256 / G * group..][..256 / G]);
    let fitted = groups.map(fit::<L>);
    let extreme = largest(&fitted);
    let (mut best, mut least) = (Scales { d: 0.0, of: [0; G] }, f32::MAX);
    for end in [low, high] {
        let mut d = to_half(extreme / end as f32);
        if !d.is_finite() {
            // Half precision cannot hold the scale. The block is not finite, and the caller that writes it detects that.
            return Scales { d: f32::INFINITY, of: [1; G] };
        }
        for _ in 0..TURNS {
            let (of, total, refitted) = choose::<L, G>(&groups, &fitted, d, (low, high));
            if total >= least {
                break;
            }
            (best, least) = (Scales { d, of }, total);
            let next = to_half(refitted);
            if next == d || !next.is_finite() {
                break;
            }
            d = next;
        }
    }
    best
}

/// The integer scales with the smallest error under a block's scale, that error, and the block's scale that fits them best.
fn choose<L: Levels, const G: usize>(groups: &[&[f32]; G], fitted: &[f32; G], d: f32, (low, high): (i32, i32)) -> ([i32; G], f32, f32) {
    let (mut of, mut total, mut product, mut square) = ([0; G], 0.0, 0.0, 0.0);
    let per_d = inverse(d);
    for (group, x) in groups.iter().enumerate() {
        let middle = nearest_within(fitted[group] * per_d, low as f32, high as f32) as i32;
        let mut least = f32::MAX;
        for scale in (middle - 1).max(low)..=(middle + 1).min(high) {
            let error = error::<L>(x, d * scale as f32);
            if error < least {
                (of[group], least) = (scale, error);
            }
        }
        let (scale, inverse) = (of[group] as f32, inverse(d * of[group] as f32));
        let (p, s) = sums(x, |x| {
            let level = scale * L::nearest(x * inverse);
            (level * x, level * level)
        });
        total += least;
        product += p;
        square += s;
    }
    (of, total, if square > 0.0 { product / square } else { 0.0 })
}

/// The levels of a block's weights under its scales.
pub fn levels<L: Levels, const G: usize>(x: &[f32; 256], scales: &Scales<G>) -> [f32; 256] {
    let inverses = scales.of.map(|scale| inverse(scales.d * scale as f32));
    std::array::from_fn(|i| L::nearest(x[i] * inverses[i / (256 / G)]))
}

pub fn q3_k(x: &[f32; 256], out: &mut [u8; 110]) {
    let scales = scales::<Integers<4>, 16>(x, -32, 31);
    let codes = levels::<Integers<4>, 16>(x, &scales).map(|level| (level as i8 + 4) as u8);
    out.fill(0);
    for (i, code) in codes.into_iter().enumerate() {
        let (half, group, l) = (i / 128, i / 32, i % 32);
        out[l] |= (code >> 2) << group;
        out[32 + half * 32 + l] |= (code & 3) << (group % 4 * 2);
    }
    for (j, scale) in scales.of.into_iter().enumerate() {
        let scale = (scale + 32) as u8;
        out[96 + j % 8] |= (scale & 15) << (j / 8 * 4);
        out[104 + j % 4] |= (scale >> 4) << (j / 4 * 2);
    }
    out[108..].copy_from_slice(&half_bits(scales.d).to_le_bytes());
}

pub fn q6_k(x: &[f32; 256], out: &mut [u8; 210]) {
    let scales = scales::<Integers<32>, 16>(x, -128, 127);
    let codes = levels::<Integers<32>, 16>(x, &scales).map(|level| (level as i8 + 32) as u8);
    out.fill(0);
    for (i, code) in codes.into_iter().enumerate() {
        let (half, quarter, l) = (i / 128, i / 32 % 4, i % 32);
        out[half * 64 + quarter % 2 * 32 + l] |= (code & 15) << (quarter / 2 * 4);
        out[128 + half * 32 + l] |= (code >> 4) << (quarter * 2);
    }
    for (out, scale) in out[192..208].iter_mut().zip(scales.of) {
        *out = scale as i8 as u8;
    }
    out[208..].copy_from_slice(&half_bits(scales.d).to_le_bytes());
}
