//! The tensors of a device's program, and the sources of their contents.

use std::borrow::Cow;

use super::super::sys;
use crate::program::Span;
use model::{Weight, Weights};

type Make = dyn Fn(&Weights) -> Vec<u8> + Send + Sync;

/// The source of a tensor's bytes.
pub enum Source {
    /// The blocks of the file.
    File(Weight),
    /// Some columns of a matrix in the file, whole blocks of each row.
    Columns(Weight, Span),
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
            Source::Columns(weight, span) => weights.parts(weight).map(|part| cut(weights.data(&part), weight, *span).into()).collect(),
        }
    }

    /// The number of bytes to copy, if they come from the file.
    pub fn file_bytes(&self) -> usize {
        match &self.source {
            Source::File(weight) => weight.num_bytes(),
            Source::Columns(weight, span) => weight.rows * weight.quant.row_bytes(span.len),
            Source::Made(_) => 0,
        }
    }
}

/// Some columns of each row.
fn cut(rows: &[u8], weight: &Weight, span: Span) -> Vec<u8> {
    let bytes = |cols: usize| weight.quant.row_bytes(cols);
    let mut out = Vec::with_capacity(weight.rows * bytes(span.len));
    rows.chunks_exact(bytes(weight.cols)).for_each(|row| out.extend_from_slice(&row[bytes(span.first)..][..bytes(span.len)]));
    out
}

/// The form in which the device holds a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    Vector,
    Matrices,
    /// One of the two halves of a matrix that gate and up share.
    Half,
    /// Columns of a matrix, which begin at this one.
    Columns(usize),
}
