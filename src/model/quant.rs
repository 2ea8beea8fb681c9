//! `QUANTS`: one row a tensor type that the engines compute with.

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
    pub dequantize: fn(&[u8], &mut [f32]),
}

pub const QUANTS: &[Quant] = &[];
