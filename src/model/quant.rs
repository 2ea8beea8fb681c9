//! `QUANTS`: one row per tensor type that the engines compute with.

use crate::codebook;
use crate::dequant::{self, each};

/// A tensor type: the layout of its blocks and the function that dequantises them.
#[derive(Debug)]
pub struct Quant {
    /// The type's id in ggml.
    pub id: u32,
    pub name: &'static str,
    /// Weights per block.
    pub block_size: usize,
    /// Bytes per block.
    pub block_bytes: usize,
    /// Dequantises whole blocks. Every weight has the bits that the `gguf` Python package gives.
    ///
    /// # Panics
    /// If the slices do not hold the same number of whole blocks.
    pub dequantize: fn(&[u8], &mut [f32]),
}

const fn row(id: u32, name: &'static str, block_size: usize, block_bytes: usize, dequantize: fn(&[u8], &mut [f32])) -> Quant {
    Quant { id, name, block_size, block_bytes, dequantize }
}

pub const QUANTS: &[Quant] = &[
    row(0, "F32", 1, 4, |src, dst| each(src, dst, dequant::f32)),
    row(1, "F16", 1, 2, |src, dst| each(src, dst, dequant::f16)),
    row(2, "Q4_0", 32, 18, |src, dst| each(src, dst, dequant::q4_0)),
    row(3, "Q4_1", 32, 20, |src, dst| each(src, dst, dequant::q4_1)),
    row(6, "Q5_0", 32, 22, |src, dst| each(src, dst, dequant::q5_0)),
    row(7, "Q5_1", 32, 24, |src, dst| each(src, dst, dequant::q5_1)),
    row(8, "Q8_0", 32, 34, |src, dst| each(src, dst, dequant::q8_0)),
    row(10, "Q2_K", 256, 84, |src, dst| each(src, dst, dequant::q2_k)),
    row(11, "Q3_K", 256, 110, |src, dst| each(src, dst, dequant::q3_k)),
    row(12, "Q4_K", 256, 144, |src, dst| each(src, dst, dequant::q4_k)),
    row(13, "Q5_K", 256, 176, |src, dst| each(src, dst, dequant::q5_k)),
    row(14, "Q6_K", 256, 210, |src, dst| each(src, dst, dequant::q6_k)),
    row(16, "IQ2_XXS", 256, 66, |src, dst| each(src, dst, codebook::iq2_xxs)),
    row(17, "IQ2_XS", 256, 74, |src, dst| each(src, dst, codebook::iq2_xs)),
    row(18, "IQ3_XXS", 256, 98, |src, dst| each(src, dst, codebook::iq3_xxs)),
    row(19, "IQ1_S", 256, 50, |src, dst| each(src, dst, codebook::iq1_s)),
    row(20, "IQ4_NL", 32, 18, |src, dst| each(src, dst, codebook::iq4_nl)),
    row(21, "IQ3_S", 256, 110, |src, dst| each(src, dst, codebook::iq3_s)),
    row(22, "IQ2_S", 256, 82, |src, dst| each(src, dst, codebook::iq2_s)),
    row(23, "IQ4_XS", 256, 136, |src, dst| each(src, dst, codebook::iq4_xs)),
    row(29, "IQ1_M", 256, 56, |src, dst| each(src, dst, codebook::iq1_m)),
    row(30, "BF16", 1, 2, |src, dst| each(src, dst, dequant::bf16)),
    row(34, "TQ1_0", 256, 54, |src, dst| each(src, dst, codebook::tq1_0)),
    row(35, "TQ2_0", 256, 66, |src, dst| each(src, dst, codebook::tq2_0)),
    row(39, "MXFP4", 32, 17, |src, dst| each(src, dst, codebook::mxfp4)),
    row(40, "NVFP4", 64, 36, |src, dst| each(src, dst, codebook::nvfp4)),
];

impl Quant {
    /// The row of a ggml type id. None if the engines do not compute with this type.
    pub fn by_id(id: u32) -> Option<&'static Quant> {
        static ROWS: &[Quant] = QUANTS;
        ROWS.iter().find(|quant| quant.id == id)
    }

    /// The size in bytes of a row of `cols` weights, which must be whole blocks.
    pub fn row_bytes(&self, cols: usize) -> usize {
        cols / self.block_size * self.block_bytes
    }
}
