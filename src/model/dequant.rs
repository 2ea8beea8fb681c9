//! Dequantises exactly in scalar code, with one function per block layout. Faster kernels are tested against these functions.
//!
//! Each result has the bits that `dequantize` of the `gguf` Python package gives: products and sums are rounded one by one, in the
//! package's order, and never fused. The block functions are plain loops over arrays of fixed size and always inlined, so that a caller
//! compiled for wider vector instructions gets vector code. The layouts are those of ggml's `ggml-common.h`.
//!
//! In the comments on block functions, `d` is the scale, `m` or `dmin` the minimum, and `q` the stored code of a weight.

/// Converts IEEE half precision to float32. Exact for every finite value and infinity. A NaN keeps its payload.
#[inline(always)]
pub const fn f16_to_f32(bits: u16) -> f32 {
    let magnitude = ((bits & 0x7fff) as u32) << 13;
    let sign = ((bits & 0x8000) as u32) << 16;
    // Read as a float's exponent, the half's is too small by 127 - 15 = 112. The product with 2^112 is exact, also for subnormals.
    let scaled = (f32::from_bits(magnitude) * f32::from_bits(0x7780_0000)).to_bits();
    let finite = magnitude < 0x7c00 << 13;
    f32::from_bits(sign | if finite { scaled } else { magnitude | 0x7f80_0000 })
}

#[inline(always)]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The half-precision number at byte `at` of a block.
#[inline(always)]
pub(super) fn half_at(block: &[u8], at: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([block[at], block[at + 1]]))
}

/// Calls a block function for each block of `src`.
///
/// # Panics
/// If `src` and `dst` do not hold the same number of whole blocks.
#[inline(always)]
pub fn each<const B: usize, const N: usize>(src: &[u8], dst: &mut [f32], block: impl Fn(&[u8; B], &mut [f32; N])) {
    let (src, src_rest) = src.as_chunks::<B>();
    let (dst, dst_rest) = dst.as_chunks_mut::<N>();
    assert!(src_rest.is_empty() && dst_rest.is_empty() && src.len() == dst.len(), "source and destination are not the same whole blocks");
    for (src, dst) in src.iter().zip(dst) {
        block(src, dst);
    }
}

#[inline(always)]
pub fn f32(block: &[u8; 4], out: &mut [f32; 1]) {
    out[0] = f32::from_le_bytes(*block);
}

#[inline(always)]
pub fn f16(block: &[u8; 2], out: &mut [f32; 1]) {
    out[0] = f16_to_f32(u16::from_le_bytes(*block));
}

#[inline(always)]
pub fn bf16(block: &[u8; 2], out: &mut [f32; 1]) {
    out[0] = bf16_to_f32(u16::from_le_bytes(*block));
}

/// Scale f16, 16 bytes of nibbles: weight = d · (q - 8). The low nibbles are the first half of the block.
#[inline(always)]
pub fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = half_at(block, 0);
    for j in 0..16 {
        let q = block[2 + j];
        out[j] = d * f32::from((q & 15) as i8 - 8);
        out[j + 16] = d * f32::from((q >> 4) as i8 - 8);
    }
}

/// Scale f16, minimum f16, 16 bytes of nibbles: weight = d · q + m.
#[inline(always)]
pub fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for j in 0..16 {
        let q = block[4 + j];
        out[j] = d * f32::from(q & 15) + m;
        out[j + 16] = d * f32::from(q >> 4) + m;
    }
}

/// Scale f16, 32 fifth bits, 16 bytes of nibbles: weight = d · (q - 16).
#[inline(always)]
pub fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let d = half_at(block, 0);
    let high = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
    for j in 0..16 {
        let q = block[6 + j];
        let (h0, h1) = ((high >> j & 1) as u8, (high >> (j + 16) & 1) as u8);
        out[j] = d * f32::from((q & 15 | h0 << 4) as i8 - 16);
        out[j + 16] = d * f32::from((q >> 4 | h1 << 4) as i8 - 16);
    }
}

/// Scale f16, minimum f16, 32 fifth bits, 16 bytes of nibbles: weight = d · q + m.
#[inline(always)]
pub fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    let high = u32::from_le_bytes([block[4], block[5], block[6], block[7]]);
    for j in 0..16 {
        let q = block[8 + j];
        let (h0, h1) = ((high >> j & 1) as u8, (high >> (j + 16) & 1) as u8);
        out[j] = d * f32::from(q & 15 | h0 << 4) + m;
        out[j + 16] = d * f32::from(q >> 4 | h1 << 4) + m;
    }
}

/// Scale f16, 32 signed bytes: weight = q · d.
#[inline(always)]
pub fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = half_at(block, 0);
    for j in 0..32 {
        out[j] = f32::from(block[2 + j] as i8) * d;
    }
}

/// 16 groups of 16 weights: scale and minimum of each group in 4 bits each, weights in 2 bits, the f16 scales of both at the end.
#[inline(always)]
pub fn q2_k(block: &[u8; 84], out: &mut [f32; 256]) {
    let (d, dmin) = (half_at(block, 80), half_at(block, 82));
    for group in 0..8 {
        let (bytes, shift) = (16 + group / 4 * 32, group % 4 * 2);
        for part in 0..2 {
            let scale = block[group * 2 + part];
            let (dl, ml) = (d * f32::from(scale & 15), dmin * f32::from(scale >> 4));
            for l in part * 16..part * 16 + 16 {
                out[group * 32 + l] = dl * f32::from(block[bytes + l] >> shift & 3) - ml;
            }
        }
    }
}

/// The 16 scales of a Q3_K block: 6 bits each in 12 bytes, the low four bits first, with an offset of 32.
#[inline(always)]
pub fn q3_k_scales(packed: &[u8; 12]) -> [i8; 16] {
    std::array::from_fn(|j| {
        let low = if j < 8 { packed[j] & 15 } else { packed[j - 8] >> 4 };
        let high = packed[8 + j % 4] >> (j / 4 * 2) & 3;
        (low | high << 4) as i8 - 32
    })
}

/// 32 bytes of third bits (a clear bit subtracts 4), weights in 2 bits, 16 scales in 6 bits each, scale f16.
#[inline(always)]
pub fn q3_k(block: &[u8; 110], out: &mut [f32; 256]) {
    let d = half_at(block, 108);
    let mut packed = [0; 12];
    packed.copy_from_slice(&block[96..108]);
    let scales = q3_k_scales(&packed);
    for group in 0..8 {
        let (bytes, shift) = (32 + group / 4 * 32, group % 4 * 2);
        for part in 0..2 {
            let dl = d * f32::from(scales[group * 2 + part]);
            for l in part * 16..part * 16 + 16 {
                let high = (block[l] >> group & 1) ^ 1;
                let q = (block[bytes + l] >> shift & 3) as i8 - (high << 2) as i8;
                out[group * 32 + l] = dl * f32::from(q);
            }
        }
    }
}

/// The scale d · s and the minimum dmin · m of each of the 8 groups of a Q4_K or Q5_K block. The block starts with d and dmin in f16,
/// followed by 12 bytes with 8 scales s and 8 minima m of 6 bits each.
#[inline(always)]
fn group_scales<const B: usize>(block: &[u8; B]) -> [(f32, f32); 8] {
    let (d, dmin, packed) = (half_at(block, 0), half_at(block, 2), &block[4..16]);
    let (mut scales, mut minima) = ([0; 8], [0; 8]);
    for j in 0..4 {
        let (s, m, both) = (packed[j], packed[j + 4], packed[j + 8]);
        scales[j] = s & 63;
        minima[j] = m & 63;
        scales[j + 4] = both & 15 | s >> 2 & 0x30;
        minima[j + 4] = both >> 4 | m >> 2 & 0x30;
    }
    std::array::from_fn(|group| (d * f32::from(scales[group]), dmin * f32::from(minima[group])))
}

/// The scales and minima of [`group_scales`], then weights of 4 bits: weight = d · s · q - dmin · m.
#[inline(always)]
pub fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    for (group, (dl, ml)) in group_scales(block).into_iter().enumerate() {
        let (bytes, shift) = (16 + group / 2 * 32, group % 2 * 4);
        for l in 0..32 {
            out[group * 32 + l] = dl * f32::from(block[bytes + l] >> shift & 15) - ml;
        }
    }
}

/// Like Q4_K, with 32 bytes of fifth bits before the nibbles.
#[inline(always)]
pub fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    for (group, (dl, ml)) in group_scales(block).into_iter().enumerate() {
        let (bytes, shift) = (48 + group / 2 * 32, group % 2 * 4);
        for l in 0..32 {
            let high = block[16 + l] >> group & 1;
            out[group * 32 + l] = dl * f32::from(block[bytes + l] >> shift & 15 | high << 4) - ml;
        }
    }
}

/// 128 bytes of nibbles, 64 bytes of two high bits per weight, 16 signed bytes of scales s, scale f16: weight = (d · s) · (q - 32).
#[inline(always)]
pub fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let d = half_at(block, 208);
    for group in 0..8 {
        let (half, quarter) = (group / 4, group % 4);
        let (low, high) = (half * 64 + quarter % 2 * 32, 128 + half * 32);
        for part in 0..2 {
            let dl = d * f32::from(block[192 + group * 2 + part] as i8);
            for l in part * 16..part * 16 + 16 {
                let q = block[low + l] >> (quarter / 2 * 4) & 15 | (block[high + l] >> (quarter * 2) & 3) << 4;
                out[group * 32 + l] = dl * f32::from(q as i8 - 32);
            }
        }
    }
}
