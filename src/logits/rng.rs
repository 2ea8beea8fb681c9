//! Generates counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
//!
//! The number for a position depends only on the seed and the position, so no state is carried from draw to draw. After a preemption, a
//! sequence continues with the same numbers, on any backend.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// The Philox4x32-10 bijection of `counter` under `key`.
pub fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let a = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
        let b = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
        counter = [(b >> 32) as u32 ^ counter[1] ^ key[0], b as u32, (a >> 32) as u32 ^ counter[3] ^ key[1], a as u32];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

/// A uniform number in [0, 1) with 53 random bits, for generated token number `index` under `seed`.
pub fn uniform(seed: u64, index: u32) -> f64 {
    let words = philox4x32([index, 0, 0, 0], [seed as u32, (seed >> 32) as u32]);
    let bits = (u64::from(words[1]) << 32 | u64::from(words[0])) >> 11;
    bits as f64 * (1.0 / (1u64 << 53) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_matches_the_published_vectors() {
        assert_eq!(philox4x32([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox4x32([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        // The third published vector: digits of pi.
        let counter = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
        assert_eq!(philox4x32(counter, [0xa409_3822, 0x299f_31d0]), [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }

    #[test]
    fn uniform_numbers_fill_the_unit_interval_evenly() {
        let mut buckets = [0u32; 16];
        for index in 0..16_000 {
            let u = uniform(7, index);
            assert!((0.0..1.0).contains(&u));
            buckets[(u * 16.0) as usize] += 1;
        }
        let chi2: f64 = buckets.iter().map(|&n| (f64::from(n) - 1000.0).powi(2) / 1000.0).sum();
        // 15 degrees of freedom: one seed in 10,000 exceeds 44.
        assert!(chi2 < 44.0, "chi-square {chi2}");
        assert_ne!(uniform(7, 0), uniform(8, 0));
        assert_ne!(uniform(7, 0), uniform(7 | 1 << 40, 0));
    }
}
