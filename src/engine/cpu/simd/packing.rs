//! Packs heads of keys and values into fewer bits.

use half::f16;

/// The elements of a head that share a scale.
pub const SHARED: usize = 32;

/// The number of scales of a head of `dim` elements.
pub const fn scales(dim: usize) -> usize {
    dim.div_ceil(SHARED)
}

/// Adding this number to a small one and subtracting it again rounds to the nearest integer, ties to even.
const ROUNDING: f32 = 12_582_912.0;

/// Rounds up to 32 elements to 8 bits each, and returns their scale, a float16. If an element is not finite, or too large for a scale,
/// nothing that is read back is finite. Codes beyond the elements are 0.
pub fn quantise(x: &[f32], codes: &mut [i8; SHARED]) -> u16 {
    let most = x.iter().fold(0f32, |most, x| most.max(x.abs()));
    let scale = f16::from_f32(most / 127.0);
    if !scale.is_finite() || x.iter().any(|x| !x.is_finite()) {
        codes.fill(1);
        return f16::NAN.to_bits();
    }
    let scale = scale.to_f32();
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    codes.fill(0);
    for (code, x) in codes.iter_mut().zip(x) {
        let rounded = (x * inverse).clamp(-127.0, 127.0) + ROUNDING - ROUNDING;
        *code = rounded as i8;
    }
    f16::from_f32(scale).to_bits()
}

/// The fewest elements that a rotation mixes.
const LEAST_MIXED: usize = 16;

/// Rotates a head in place by a Hadamard matrix, so that no element is much larger than the others. A head whose length is not a power of
/// two is rotated in parts of the largest power of two that divides it, or not at all if that is below 16. Rotating queries and keys
/// changes no product of the two.
pub fn rotate(head: &mut [f32]) {
    let part = if head.is_empty() { 0 } else { 1 << head.len().trailing_zeros() };
    if part < LEAST_MIXED {
        return;
    }
    let factor = 1.0 / (part as f32).sqrt();
    for part in head.chunks_exact_mut(part) {
        let mut half = 1;
        while half < part.len() {
            for pair in part.chunks_exact_mut(2 * half) {
                let (a, b) = pair.split_at_mut(half);
                for (a, b) in a.iter_mut().zip(b) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            half *= 2;
        }
        part.iter_mut().for_each(|x| *x *= factor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::testing::Random;

    #[test]
    fn elements_come_back_within_half_a_step() {
        let mut random = Random(5);
        for len in [1, 16, 32] {
            let x: Vec<f32> = (0..len).map(|_| 100.0 * random.centred()).collect();
            let mut codes = [9; SHARED];
            let scale = f16::from_bits(quantise(&x, &mut codes)).to_f32();
            let most = x.iter().fold(0f32, |most, x| most.max(x.abs()));
            assert!((scale - most / 127.0).abs() < 1e-3 * scale);
            for (x, code) in x.iter().zip(codes) {
                assert!((x - f32::from(code) * scale).abs() <= 0.501 * scale + 1e-3 * most / 127.0, "{x}: {code} · {scale}");
            }
            assert!(codes[len..].iter().all(|&code| code == 0));
        }
        let mut codes = [9; SHARED];
        assert_eq!((quantise(&[0.0; 32], &mut codes), codes), (0, [0; SHARED]));
        assert_eq!((quantise(&[1e-9; 32], &mut codes), codes), (0, [0; SHARED]), "too small for a scale");
    }

    #[test]
    fn what_is_not_finite_stays_so() {
        for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e8] {
            let mut x = [1.0; SHARED];
            x[7] = wrong;
            let mut codes = [0; SHARED];
            let scale = f16::from_bits(quantise(&x, &mut codes)).to_f32();
            assert!(codes.iter().all(|&code| !(f32::from(code) * scale).is_finite()), "{wrong}");
        }
    }

    #[test]
    fn a_rotation_keeps_products_and_spreads_peaks() {
        let mut random = Random(6);
        for len in [16, 32, 64, 80, 96, 128, 256, 576] {
            let [mut q, mut k] = [0; 2].map(|_| (0..len).map(|_| random.centred()).collect::<Vec<f32>>());
            let dot = |q: &[f32], k: &[f32]| q.iter().zip(k).map(|(q, k)| f64::from(q * k)).sum::<f64>();
            let expected = dot(&q, &k);
            rotate(&mut q);
            rotate(&mut k);
            assert!((dot(&q, &k) - expected).abs() < 1e-5 * len as f64, "{len} elements");
        }
        let mut peak = vec![0.0; 64];
        peak[3] = 8.0;
        rotate(&mut peak);
        assert!(peak.iter().all(|x| x.abs() == 1.0));
        let mut odd = vec![1.0; 40];
        rotate(&mut odd);
        assert_eq!(odd, vec![1.0; 40], "parts of 8");
    }
}
