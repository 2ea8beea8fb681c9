//! `ENCODERS`: one row per tensor type that can be written.

use crate::{affine, curve, legacy, microscaling, plain, symmetric, ternary};
use model::Quant;

/// Encodes weights as blocks of a type.
pub struct Encoder {
    pub quant: &'static Quant,
    encode: fn(&[f32], &mut [u8]),
}

impl Encoder {
    pub fn by_id(id: u32) -> Option<Encoder> {
        let &(_, encode) = ENCODERS.iter().find(|row| row.0 == id)?;
        Some(Encoder { quant: Quant::by_id(id)?, encode })
    }

    /// Encodes whole blocks of finite weights.
    ///
    /// # Panics
    /// If the slices do not hold the same number of whole blocks.
    pub fn encode(&self, weights: &[f32], out: &mut [u8]) {
        (self.encode)(weights, out)
    }
}

/// Calls a block function for each block.
fn each<const N: usize, const B: usize>(src: &[f32], dst: &mut [u8], block: impl Fn(&[f32; N], &mut [u8; B])) {
    let (src, src_rest) = src.as_chunks::<N>();
    let (dst, dst_rest) = dst.as_chunks_mut::<B>();
    assert!(src_rest.is_empty() && dst_rest.is_empty() && src.len() == dst.len(), "source and destination are not the same whole blocks");
    for (src, dst) in src.iter().zip(dst) {
        block(src, dst);
    }
}

type Encode = fn(&[f32], &mut [u8]);

/// ggml's type id, and the function that encodes.
pub const ENCODERS: &[(u32, Encode)] = &[
    (0, |src, dst| each(src, dst, plain::f32)),
    (1, |src, dst| each(src, dst, plain::f16)),
    (2, |src, dst| each(src, dst, legacy::q4_0)),
    (3, |src, dst| each(src, dst, legacy::q4_1)),
    (6, |src, dst| each(src, dst, legacy::q5_0)),
    (7, |src, dst| each(src, dst, legacy::q5_1)),
    (8, |src, dst| each(src, dst, legacy::q8_0)),
    (10, |src, dst| each(src, dst, affine::q2_k)),
    (11, |src, dst| each(src, dst, symmetric::q3_k)),
    (12, |src, dst| each(src, dst, affine::q4_k)),
    (13, |src, dst| each(src, dst, affine::q5_k)),
    (14, |src, dst| each(src, dst, symmetric::q6_k)),
    (20, |src, dst| each(src, dst, curve::iq4_nl)),
    (23, |src, dst| each(src, dst, curve::iq4_xs)),
    (30, |src, dst| each(src, dst, plain::bf16)),
    (34, |src, dst| each(src, dst, ternary::tq1_0)),
    (35, |src, dst| each(src, dst, ternary::tq2_0)),
    (39, |src, dst| each(src, dst, microscaling::mxfp4)),
];
