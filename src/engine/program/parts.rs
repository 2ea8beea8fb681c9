//! [`Program`] and its parts.

use super::op::{BufferId, NormParams, Op};
use super::rules::RowSet;
use super::scope::{Scope, Span};
use super::tensor::{Slice, Tensor, TensorId};
use model::RopePairing;

/// A model's forward pass: the ops of a step in their order, and what they read and write.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    pub scope: Scope,
    pub tensors: Vec<Tensor>,
    pub buffers: Vec<Buffer>,
    pub caches: Vec<Cache>,
    pub states: Vec<State>,
    pub pairing: RopePairing,
    pub ops: Vec<LayerOp>,
    /// The buffer of the residual stream. It holds the step's rows at the start if the program does not begin with the first layer, and at
    /// the end if it has no head.
    pub stream: BufferId,
    /// None if the program does not end with the last layer.
    pub head: Option<Head>,
}

/// An op, and the layer that it belongs to. None before the first layer and behind the last one.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerOp {
    pub layer: Option<usize>,
    pub op: Op,
}

/// Rows of `width` floats: `per_row` of them for each row of a set.
#[derive(Clone, Debug, PartialEq)]
pub struct Buffer {
    pub name: String,
    pub width: usize,
    pub per_row: usize,
    pub rows: RowSet,
}

/// A picture encoder's program. It has neither caches nor a head.
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderProgram {
    pub program: Program,
    /// The patches' pixels, which the step brings.
    pub input: BufferId,
    /// The rows for the language model.
    pub output: BufferId,
}

/// The keys and values that a layer keeps per token, those of the shard's own heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cache {
    pub layer: usize,
    pub heads: usize,
    pub key_dim: usize,
    /// The elements of a value. Those of latent attention are the first elements of its keys.
    pub value_dim: usize,
}

/// The floats of recurrent state that a layer keeps per sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    pub layer: usize,
    pub width: usize,
}

/// The head, which follows the last layer for rows whose logits or vectors are wanted: cap · tanh(scale · (W · norm(x) + bias) / cap).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Head {
    pub norm: Option<NormParams>,
    /// The ids whose logits the matrix gives. The logits of all shards are gathered.
    pub vocab: Span,
    pub matrix: TensorId,
    pub bias: Option<TensorId>,
    pub scale: f32,
    pub soft_cap: Option<f32>,
    pub classifier: Option<Classifier>,
}

/// Scores of a normalised row: output(tanh(dense(x))), or output(x) without a dense layer. Each layer has a matrix and perhaps a bias.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Classifier {
    pub dense: Option<(TensorId, Option<TensorId>)>,
    pub output: (TensorId, Option<TensorId>),
}

#[allow(dead_code, reason = "only a backend that lowers programs asks for it")]
impl Program {
    /// Lets a shard's head give the logits of all ids, for a device that has all shards.
    #[must_use]
    pub fn with_whole_head(mut self) -> Self {
        let Some(mut head) = self.head.filter(|head| !head.vocab.is_whole()) else { return self };
        head.vocab = Span::all(head.vocab.of);
        head.matrix = self.whole_tensor(head.matrix);
        head.bias = head.bias.map(|bias| self.whole_tensor(bias));
        self.head = Some(head);
        self
    }

    /// The whole tensor of which a tensor is a part.
    fn whole_tensor(&mut self, id: TensorId) -> TensorId {
        let part = self.tensor(id);
        let (rows, cols) = match part.slice {
            Slice::Rows(span) => (span.of, part.cols),
            Slice::Columns(span) => (part.rows, span.of),
            Slice::Whole | Slice::Matrices(_) => return id,
        };
        let whole = Tensor { slice: Slice::Whole, rows, cols, ..part.clone() };
        // a tied head reads the whole table of tokens
        match self.tensors.iter().position(|of| (of.source, of.slice) == (whole.source, whole.slice)) {
            Some(at) => {
                self.tensors[at].read = 1;
                TensorId(at)
            }
            None => {
                self.tensors.push(whole);
                TensorId(self.tensors.len() - 1)
            }
        }
    }

    pub fn tensor(&self, id: TensorId) -> &Tensor {
        &self.tensors[id.0]
    }

    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.0]
    }
}
