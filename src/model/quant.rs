//! `QUANTS`: one row a tensor type that the engines compute with.

use super::dequant::{self, each};

/// A tensor type: how its blocks are laid out and how they become float32.
#[derive(Debug)]
pub struct Quant {
    /// ggml's type id
    pub id: u32,
    pub name: &'static str,
    /// Weights a block.
    pub block_size: usize,
    /// Bytes a block.
    pub block_bytes: usize,
    /// Exact dequantisation of whole blocks, bit for bit what the `gguf` Python package gives.
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
    row(30, "BF16", 1, 2, |src, dst| each(src, dst, dequant::bf16)),
];

impl Quant {
    /// The row of a ggml type id. None: a type that the engines do not compute with.
    pub fn by_id(id: u32) -> Option<&'static Quant> {
        static ROWS: &[Quant] = QUANTS;
        ROWS.iter().find(|quant| quant.id == id)
    }

    /// Bytes of `cols` weights (whole blocks).
    pub fn row_bytes(&self, cols: usize) -> usize {
        cols / self.block_size * self.block_bytes
    }
}
