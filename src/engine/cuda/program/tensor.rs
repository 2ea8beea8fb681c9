//! The tensors of a program, and where their contents come from.

use std::borrow::Cow;

use super::super::sys;
use model::{TensorRole, Weight, Weights};

type Make = dyn Fn(&Weights) -> Vec<u8> + Send + Sync;

/// Where a tensor's bytes come from.
pub enum Source {
    /// The blocks of the file.
    File(Weight),
    /// Made while the model is loaded.
    Made(Box<Make>),
}

pub struct Tensor {
    pub desc: sys::pen_tensor,
    pub source: Source,
    /// For errors: the name in the file of what it is made of.
    pub name: String,
}

impl Tensor {
    /// The bytes of the tensor's matrices, in pieces of some matrices each.
    pub fn parts<'a>(&self, weights: &'a Weights) -> Vec<Cow<'a, [u8]>> {
        match &self.source {
            Source::Made(make) => vec![make(weights).into()],
            Source::File(weight) => weights.parts(weight).map(|part| weights.data(&part).into()).collect(),
        }
    }

    /// Bytes to copy, if they come from the file.
    pub fn file_bytes(&self) -> usize {
        if let Source::File(weight) = &self.source { weight.num_bytes() } else { 0 }
    }
}

/// What tells one tensor of a program from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    Matrix(TensorRole, usize),
    /// One matrix of a stack.
    Part(TensorRole, usize),
    Pair(TensorRole, usize),
    Vector(TensorRole, usize),
}
