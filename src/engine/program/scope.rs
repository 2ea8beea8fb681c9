//! [`Scope`]: the part of a model that a program computes.

use std::ops::Range;

use crate::EngineError;
use model::ModelSpec;

/// A range of layers, and a shard of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// A program that does not begin with the first layer reads rows of the residual stream in place of tokens. One that does not end with
    /// the last layer leaves such rows in place of logits.
    pub layers: Range<usize>,
    pub shard: Shard,
}

/// Shard `index` of `count`, which compute a model together: each has some heads, some of the inner elements of feed-forward parts, some
/// experts and some of the vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    pub index: usize,
    pub count: usize,
}

/// `len` neighbours of `of`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    pub first: usize,
    pub len: usize,
    pub of: usize,
}

impl Shard {
    pub const WHOLE: Self = Self { index: 0, count: 1 };

    pub fn is_whole(self) -> bool {
        self.count == 1
    }

    /// The shard's part of `of` things.
    pub fn span(self, of: usize) -> Span {
        let [first, end] = [self.index, self.index + 1].map(|i| i * of / self.count);
        Span { first, len: end - first, of }
    }

    /// The shard's part of `of` things of which each shard has as many. None if that is impossible.
    pub fn even_span(self, of: usize) -> Option<Span> {
        of.is_multiple_of(self.count).then(|| self.span(of))
    }
}

impl Span {
    pub fn all(of: usize) -> Self {
        Self { first: 0, len: of, of }
    }

    pub fn is_whole(self) -> bool {
        self.len == self.of
    }

    /// The span of the elements, if each of these things has `each`.
    pub fn times(self, each: usize) -> Self {
        Self { first: self.first * each, len: self.len * each, of: self.of * each }
    }

    pub fn range(self) -> Range<usize> {
        self.first..self.first + self.len
    }
}

impl Scope {
    /// The whole model.
    pub fn whole(spec: &ModelSpec) -> Self {
        Self { layers: 0..spec.num_layers(), shard: Shard::WHOLE }
    }

    /// The draft head of a model with one. Its program reads tokens and, as rows of the stream, the normed rows before them.
    pub fn draft_head(spec: &ModelSpec) -> Option<Self> {
        spec.draft_head.map(|head| Self { layers: head..head + 1, shard: Shard::WHOLE })
    }

    /// Checks that a model has these layers and that there may be so many shards.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`] names what it does not have.
    pub fn check(&self, spec: &ModelSpec) -> Result<(), EngineError> {
        let (Range { start, end }, Shard { index, count }, all) = (self.layers.clone(), self.shard, spec.num_layers());
        if start >= end || end > all {
            return Err(EngineError::Unsupported(format!("layers {start}..{end} of a model with layers 0..{all}")));
        }
        match [1, 2, 4, 8].contains(&count) && index < count {
            true => Ok(()),
            false => Err(EngineError::Unsupported(format!("shard {index} of {count}: expected 0/2 to 7/8, of 1, 2, 4 or 8 shards"))),
        }
    }
}
