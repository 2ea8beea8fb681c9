//! What a program is made of.

use super::super::sys;
use super::op::Op;
use super::tensor::Tensor;

/// No tensor, no buffer.
pub const NONE: u32 = sys::PEN_NONE;

pub struct Program {
    pub tensors: Vec<Tensor>,
    pub buffers: Vec<sys::pen_buffer>,
    /// What the layers keep of each token.
    pub caches: Vec<sys::pen_cache>,
    /// Floats of recurrent state of a sequence, for each layer that has one.
    pub states: Vec<u32>,
    pub ops: Vec<Op>,
    pub head: sys::pen_head,
}
