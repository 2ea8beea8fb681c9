//! Encodes the types whose weights are a scale times a code, minus a minimum: Q2_K, Q4_K, Q5_K.
//!
//! A block has groups. Each group has an integer scale and an integer minimum, which are multiplied by the block's two half-precision
//! scales. As in `symmetric.rs`, each group is first fitted alone. Then rounds alternate between choosing the integers and fitting the
//! block's scales.

use crate::rounding::{half_bits, inverse, nearest_within, to_half};
use crate::symmetric::{LANES, sums};

/// A scale and a minimum, both at least 0: weight = scale · code - min.
#[derive(Clone, Copy, Default)]
struct Line {
    scale: f32,
    min: f32,
}

/// The least-squares line through codes and weights whose minimum is at least 0, and its squared error minus Σx².
fn regress(n: f32, (q, qq): (f32, f32), (qx, x): (f32, f32)) -> Option<(Line, f32)> {
    let error = |scale: f32, offset: f32| {
        let (scale, offset) = (f64::from(scale), f64::from(offset));
        let sum = |x: f32| f64::from(x);
        let own = scale * scale * sum(qq) + 2.0 * scale * offset * sum(q) + offset * offset * sum(n);
        (own - 2.0 * scale * sum(qx) - 2.0 * offset * sum(x)) as f32
    };
    let determinant = n * qq - q * q;
    let mut line = None;
    if determinant > 0.0 {
        let (scale, offset) = ((n * qx - q * x) / determinant, (qq * x - q * qx) / determinant);
        line = (scale > 0.0 && offset <= 0.0).then_some((scale, offset));
    }
    let (scale, offset) = line.or_else(|| (qq > 0.0 && qx > 0.0).then(|| (qx / qq, 0.0)))?;
    Some((Line { scale, min: -offset }, error(scale, offset)))
}

/// The line that fits best, with codes computed by another line. `low` is that line's smallest weight, and `inverse` the inverse of its
/// scale.
fn under_codes(group: &[f32], (low, inverse): (f32, f32), most: f32) -> Option<(Line, f32)> {
    let [q, qq, qx, x] = line_sums(group, |x| nearest_within((x - low) * inverse, 0.0, most));
    regress(group.len() as f32, (q, qq), (qx, x))
}

/// Σ code, Σ code², Σ code · x and Σ x.
#[inline(always)]
fn line_sums(group: &[f32], code: impl Fn(f32) -> f32) -> [f32; 4] {
    let mut sums = [[0f32; LANES]; 4];
    for x in group.as_chunks::<LANES>().0 {
        for lane in 0..LANES {
            let (code, x) = (code(x[lane]), x[lane]);
            sums[0][lane] += code;
            sums[1][lane] += code * code;
            sums[2][lane] += code * x;
            sums[3][lane] += x;
        }
    }
    sums.map(|lanes| lanes.iter().sum())
}

/// The line with the smallest error among the lines that are tried. `most` is the largest code.
fn fit(group: &[f32], most: f32) -> Line {
    let (low, high) = group.iter().fold((0f32, f32::MIN), |(low, high), &x| (low.min(x), high.max(x)));
    let (mut best, mut least) = (Line { scale: 0.0, min: -low }, f32::MAX);
    // The inverse of a smaller range would not be finite. Half precision cannot hold values that small anyway.
    if high - low < f32::MIN_POSITIVE {
        return best;
    }
    let inverses = (0..=20u8).map(|k| (most - 1.0 + 0.1 * f32::from(k)) / (high - low));
    for inverse_scale in inverses {
        let mut start = (low, inverse_scale);
        // The codes of a line may fit another line even better.
        for _ in 0..3 {
            let Some((line, error)) = under_codes(group, start, most) else { break };
            if error < least {
                (best, least) = (line, error);
            }
            start = (-line.min, inverse(line.scale));
        }
    }
    best
}

/// The scales of a block, and the integers of its groups.
#[derive(Clone, Copy)]
struct Block<const G: usize> {
    d: f32,
    dmin: f32,
    scales: [u8; G],
    mins: [u8; G],
}

impl<const G: usize> Block<G> {
    fn line(&self, group: usize) -> Line {
        Line { scale: self.d * f32::from(self.scales[group]), min: self.dmin * f32::from(self.mins[group]) }
    }

    /// The codes of all weights.
    fn codes(&self, x: &[f32; 256], most: f32) -> [u8; 256] {
        let lines: [(f32, f32); G] = std::array::from_fn(|group| (self.line(group).min, inverse(self.line(group).scale)));
        std::array::from_fn(|i| {
            let (min, inverse) = lines[i / (256 / G)];
            nearest_within((x[i] + min) * inverse, 0.0, most) as u8
        })
    }
}

/// The squared error of a group.
#[inline(always)]
fn error(x: &[f32], line: Line, most: f32) -> f32 {
    let inverse = inverse(line.scale);
    sums(x, |x| {
        let difference = line.scale * nearest_within((x + line.min) * inverse, 0.0, most) - line.min - x;
        (difference * difference, 0.0)
    })
    .0
}

/// Rounds of choosing integers and fitting the block's scales.
const TURNS: usize = 4;

/// Finds the scales of a block of `G` groups, with codes up to `most` and integers up to `limit`.
fn block<const G: usize>(x: &[f32; 256], most: f32, limit: u8) -> Block<G> {
    let groups: [&[f32]; G] = std::array::from_fn(|group| &x[256 / G * group..][..256 / G]);
    let lines = groups.map(|group| fit(group, most));
    let largest = |f: fn(&Line) -> f32| lines.iter().map(f).fold(0f32, f32::max) / f32::from(limit);
    let (mut d, mut dmin) = (to_half(largest(|line| line.scale)), to_half(largest(|line| line.min)));
    let (mut best, mut least) = (Block { d: 0.0, dmin: 0.0, scales: [0; G], mins: [0; G] }, f32::MAX);
    if !d.is_finite() || !dmin.is_finite() {
        // Half precision cannot hold the scales. The block is not finite, and the caller that writes it detects that.
        return Block { d: f32::INFINITY, scales: [1; G], ..best };
    }
    for _ in 0..TURNS {
        let mut tried = Block { d, dmin, ..best };
        let mut total = 0.0;
        for group in 0..G {
            total += choose(&mut tried, group, groups[group], (lines[group], most, limit));
        }
        if total >= least {
            break;
        }
        (best, least) = (tried, total);
        let next = refit(&tried, &groups, most);
        if next == (d, dmin) {
            break;
        }
        (d, dmin) = next;
    }
    best
}

/// Chooses the integers of a group near its fitted line. Returns the group's error.
fn choose<const G: usize>(block: &mut Block<G>, group: usize, x: &[f32], (line, most, limit): (Line, f32, u8)) -> f32 {
    let around = |value: f32, unit: f32| {
        let middle = nearest_within(value * inverse(unit), 0.0, f32::from(limit)) as u8;
        middle.saturating_sub(1)..=middle.saturating_add(1).min(limit)
    };
    let mut least = f32::MAX;
    for scale in around(line.scale, block.d) {
        for min in around(line.min, block.dmin) {
            let tried = Line { scale: block.d * f32::from(scale), min: block.dmin * f32::from(min) };
            let error = error(x, tried, most);
            if error < least {
                (block.scales[group], block.mins[group], least) = (scale, min, error);
            }
        }
    }
    least
}

/// The block's scales that fit best under the current codes and integers.
fn refit<const G: usize>(block: &Block<G>, groups: &[&[f32]; G], most: f32) -> (f32, f32) {
    // weight = d · a - dmin · b, with a = scale · code and b = min
    let (mut aa, mut ab, mut bb, mut ax, mut bx) = (0f64, 0f64, 0f64, 0f64, 0f64);
    for (group, x) in groups.iter().enumerate() {
        let (line, scale, min) = (block.line(group), f32::from(block.scales[group]), f64::from(block.mins[group]));
        let inverse = inverse(line.scale);
        let a = |x: f32| scale * nearest_within((x + line.min) * inverse, 0.0, most);
        let (square, product) = sums(x, |x| (a(x) * a(x), a(x) * x));
        let (sum, of_x) = sums(x, |x| (a(x), x));
        aa += f64::from(square);
        ax += f64::from(product);
        ab += min * f64::from(sum);
        bb += min * min * x.len() as f64;
        bx += min * f64::from(of_x);
    }
    let determinant = aa * bb - ab * ab;
    let (d, dmin) = if determinant > 0.0 {
        ((ax * bb - ab * bx) / determinant, (ab * ax - aa * bx) / determinant)
    } else if aa > 0.0 {
        (ax / aa, 0.0)
    } else {
        (0.0, f64::from(block.dmin))
    };
    let fitted = (to_half(d as f32), to_half(dmin as f32));
    let is_scale = |x: f32| x.is_finite() && x >= 0.0;
    if is_scale(fitted.0) && is_scale(fitted.1) { fitted } else { (block.d, block.dmin) }
}

/// Writes the head of a Q4_K or Q5_K block: both scales, then 8 integer scales and 8 integer minima of 6 bits each.
fn put_head(block: &Block<8>, out: &mut [u8]) {
    out[..2].copy_from_slice(&half_bits(block.d).to_le_bytes());
    out[2..4].copy_from_slice(&half_bits(block.dmin).to_le_bytes());
    for j in 0..4 {
        let (s, m) = (block.scales[j + 4], block.mins[j + 4]);
        out[4 + j] = block.scales[j] | s >> 4 << 6;
        out[8 + j] = block.mins[j] | m >> 4 << 6;
        out[12 + j] = s & 15 | (m & 15) << 4;
    }
}

pub fn q2_k(x: &[f32; 256], out: &mut [u8; 84]) {
    let block = block::<16>(x, 3.0, 15);
    out.fill(0);
    for (i, code) in block.codes(x, 3.0).into_iter().enumerate() {
        out[16 + i / 128 * 32 + i % 32] |= code << (i / 32 % 4 * 2);
    }
    for (byte, (scale, min)) in out.iter_mut().zip(block.scales.iter().zip(&block.mins)) {
        *byte = scale | min << 4;
    }
    out[80..82].copy_from_slice(&half_bits(block.d).to_le_bytes());
    out[82..].copy_from_slice(&half_bits(block.dmin).to_le_bytes());
}

pub fn q4_k(x: &[f32; 256], out: &mut [u8; 144]) {
    let block = block::<8>(x, 15.0, 63);
    out.fill(0);
    put_head(&block, out);
    for (i, code) in block.codes(x, 15.0).into_iter().enumerate() {
        out[16 + i / 64 * 32 + i % 32] |= code << (i / 32 % 2 * 4);
    }
}

pub fn q5_k(x: &[f32; 256], out: &mut [u8; 176]) {
    let block = block::<8>(x, 31.0, 63);
    out.fill(0);
    put_head(&block, out);
    for (i, code) in block.codes(x, 31.0).into_iter().enumerate() {
        out[16 + i % 32] |= (code >> 4) << (i / 32);
        out[48 + i / 64 * 32 + i % 32] |= (code & 15) << (i / 32 % 2 * 4);
    }
}
