//! Prints a program: a line per op, with shapes and the bytes that a row reads.

use super::op::*;

impl Op {
    /// The name of the op.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Embed(_) => "embed",
            Op::Norm(_) => "norm",
            Op::ToLength(_) => "to_length",
            Op::Linear(_) => "linear",
            Op::EachHead(_) => "each_head",
            Op::Activate(_) => "activate",
            Op::Map(_) => "map",
            Op::Heads(_) => "heads",
            Op::Attention(_) => "attention",
            Op::Convolve(_) => "convolve",
            Op::Scan(_) => "scan",
            Op::Delta(_) => "delta",
            Op::Experts(_) => "experts",
            Op::Predict(_) => "predict",
            Op::Correct(_) => "correct",
            Op::Match(_) => "match",
        }
    }
}
