//! [`Program`] and the constants that its parts share.

use super::super::sys;
use super::op::Op;
use super::tensor::Tensor;

/// Stands for no tensor and for no buffer.
pub const NONE: u32 = sys::PEN_NONE;

pub struct Program {
    pub tensors: Vec<Tensor>,
    pub buffers: Vec<sys::pen_buffer>,
    /// The caches that layers read and write.
    pub caches: Vec<sys::pen_cache>,
    /// Floats of recurrent state per sequence, for each layer that has one.
    pub states: Vec<u32>,
    pub ops: Vec<Op>,
    pub head: sys::pen_head,
}
