//! The tensors of a device's program, and the sources of their contents.

use std::borrow::Cow;

use super::super::sys;
use model::{Weight, Weights};

type Make = dyn Fn(&Weights) -> Vec<u8> + Send + Sync;

/// The source of a tensor's bytes.
pub enum Source {
    /// The blocks of the file.
    File(Weight),
    /// Computed while the model is loaded.
    Made(Box<Make>),
}

pub struct Tensor {
    pub desc: sys::pen_tensor,
    pub source: Source,
    /// The name of the source tensor in the file, for errors.
    pub name: String,
}

impl Tensor {
    /// The bytes of the tensor's matrices, in pieces of one or more matrices.
    pub fn parts<'a>(&self, weights: &'a Weights) -> Vec<Cow<'a, [u8]>> {
        match &self.source {
            Source::Made(make) => vec![make(weights).into()],
            Source::File(weight) => weights.parts(weight).map(|part| weights.data(&part).into()).collect(),
        }
    }

    /// The number of bytes to copy, if they come from the file.
    pub fn file_bytes(&self) -> usize {
        if let Source::File(weight) = &self.source { weight.num_bytes() } else { 0 }
    }
}

/// The form in which the device holds a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    Vector,
    Matrices,
    /// One of the two halves of a matrix that gate and up share.
    Half,
}
