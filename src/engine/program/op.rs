//! [`Op`]: what a program computes, one operation at a time.
//!
//! Buffers hold float32 rows, at least one per row of the step. Where a backend rounds or fuses is up to its lowering.

use super::rules::{Rule, Within};
use super::scope::Span;
use super::tensor::TensorId;
use model::arch::WindowKind;
use model::spec::{RunSight, Temperature};
use model::{Activation, NormKind};

/// The index of a buffer in [`Program::buffers`](super::Program::buffers).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferId(pub usize);

/// Elements of a buffer's rows, in heads: head `h` begins at `first + h · stride`. In a buffer with a row per head, head `h` is row `h`,
/// and begins at `first`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub buffer: BufferId,
    pub first: usize,
    pub stride: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    Embed(Embed),
    Norm(Norm),
    ToLength(ToLength),
    Linear(Linear),
    Exchange(Exchange),
    EachHead(EachHead),
    Activate(Activate),
    Map(Map),
    Heads(FinishHeads),
    Attention(Box<Attention>),
    Among(Box<Among>),
    Mix(Mix),
    AddSlice(AddSlice),
    Convolve(Convolve),
    Scan(Scan),
    Delta(Delta),
    Experts(Experts),
    AddShared(AddShared),
    Predict(Predict),
    Correct(Correct),
    Match(Match),
}

/// out = row of the table · scale + row of the token types + row of the positions
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Embed {
    pub table: TensorId,
    pub types: Option<TensorId>,
    pub positions: Option<TensorId>,
    pub scale: f32,
    /// Whether a row that is an embedding already takes the table's row 0, padding, in place of itself.
    pub pads_embeddings: bool,
    pub out: BufferId,
}

/// The parameters of a norm. Without a weight, all weights are 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormParams {
    pub kind: NormKind,
    pub weight: Option<TensorId>,
    pub bias: Option<TensorId>,
    pub eps: f32,
}

/// to = norm(from), for each head alone
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    pub from: Part,
    pub to: Part,
    pub heads: usize,
    pub dim: usize,
    pub params: NormParams,
    /// Whether each head has weights of its own.
    pub own: bool,
}

/// Scales each head to a length. Counts heads shorter than `eps` as of length `eps`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ToLength {
    pub at: Part,
    pub heads: usize,
    pub dim: usize,
    pub length: f32,
    pub eps: f32,
}

/// out = W · in for each product, or out += W · in
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Linear {
    pub input: BufferId,
    pub products: Products,
    pub add: bool,
    /// Whether the sums over columns are the tree of [`Slices`](super::Slices), which shards can share.
    pub in_slices: bool,
}

/// to = the sum of all shards' `from`, or to += it. The sum is a tree over the shards in their order, such as (0 + 1) + (2 + 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    pub from: BufferId,
    pub to: BufferId,
    pub add: bool,
}

/// The most products of one op.
pub const MAX_PRODUCTS: usize = 8;

/// Products of one input: the matrix and the output of each.
#[derive(Clone, Copy, PartialEq)]
pub struct Products {
    all: [Option<(TensorId, BufferId)>; MAX_PRODUCTS],
}

impl Products {
    pub fn iter(&self) -> impl Iterator<Item = (TensorId, BufferId)> + '_ {
        self.all.iter().flatten().copied()
    }
}

impl FromIterator<(TensorId, BufferId)> for Products {
    /// Panics beyond [`MAX_PRODUCTS`].
    fn from_iter<I: IntoIterator<Item = (TensorId, BufferId)>>(products: I) -> Self {
        let mut all = [None; MAX_PRODUCTS];
        products.into_iter().enumerate().for_each(|(i, product)| all[i] = Some(product));
        Self { all }
    }
}

impl std::fmt::Debug for Products {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// out = each head's matrix of the stack · that head's row. Both buffers have a row per head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EachHead {
    pub stack: TensorId,
    pub input: BufferId,
    pub out: BufferId,
    pub heads: usize,
}

/// out = activation(gate) · up, or activation(up) without a gate
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Activate {
    pub gate: Option<BufferId>,
    pub up: BufferId,
    pub gate_bias: Option<TensorId>,
    pub up_bias: Option<TensorId>,
    pub activation: Activation,
    /// xIELU's parameters: alpha of negative inputs, alpha of positive inputs, beta, epsilon.
    pub xielu: [f32; 4],
    /// See `LayerSpec::gate_cutoff`.
    pub cutoff: Option<f32>,
    pub dim: usize,
    pub out: BufferId,
}

/// A function of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    Identity,
    Sigmoid,
    Tanh,
    Softplus,
    Exp,
    Activation(Activation),
}

/// to = y or to += y, with y = factor · then(scale · f(from + bias)) · g(by)
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Map {
    pub from: Part,
    pub to: Part,
    pub heads: usize,
    pub dim: usize,
    /// [heads · dim]
    pub bias: Option<TensorId>,
    pub f: Function,
    /// A factor for each group of so many elements.
    pub scale: Option<(TensorId, usize)>,
    pub then: Function,
    pub factor: f32,
    pub by: Option<(Part, Function)>,
    pub add: bool,
}

/// The elements that a norm of heads covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Covers {
    /// Each head, with weights that all share.
    Head,
    /// Each head, with weights of its own.
    OwnHead,
    /// All heads of a row together.
    Row,
    /// The first elements of each head.
    First(usize),
}

/// Queries, keys or values: what is done to a product before attention.
///
/// In this order: bias, clamp, norm, rotation, temperature. The norm may follow the rotation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Heads {
    pub from: Part,
    pub count: usize,
    pub dim: usize,
    pub bias: Option<TensorId>,
    /// Clamps to [-clamp, clamp].
    pub clamp: Option<f32>,
    pub norm: Option<(NormParams, Covers)>,
    pub norm_after_rope: bool,
    /// The index of the rotation, and the first element that it rotates.
    pub rope: Option<(usize, usize)>,
    pub temperature: Option<Temperature>,
}

/// to = the finished heads
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FinishHeads {
    pub heads: Heads,
    pub to: Part,
}

/// Finishes queries, keys and values, writes keys and values to a cache, and attends over the cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    pub queries: Heads,
    /// None if the cache is another layer's.
    pub keys: Option<Heads>,
    /// None if the values are the first elements of the keys, or if the cache is another layer's.
    pub values: Option<Heads>,
    /// The index of the cache in [`Program::caches`](super::Program::caches).
    pub cache: usize,
    pub value_dim: usize,
    pub scale: f32,
    pub soft_cap: Option<f32>,
    pub window: Option<usize>,
    pub window_kind: WindowKind,
    /// Whether rows see later rows.
    pub bidirectional: bool,
    /// What the rows of a whole run see besides.
    pub run_sight: RunSight,
    /// The largest bias of ALiBi.
    pub alibi: Option<f32>,
    /// [heads] each head's score of a key without a value
    pub sinks: Option<TensorId>,
    pub out: Part,
}

/// Finishes queries, keys and values, and attends over the rows of the step itself: those of the same picture or window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Among {
    pub queries: Heads,
    pub keys: Heads,
    pub values: Heads,
    pub scale: f32,
    pub within: Within,
    pub out: Part,
}

/// to = Σ weight · row, or to += it, for `parts` equal parts of each row. The rule says which rows of a buffer or of a table, and their
/// weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mix {
    pub from: MixSource,
    pub to: BufferId,
    pub parts: usize,
    /// Whether a part's elements lie `parts` apart.
    pub interleaved: bool,
    pub rule: Rule,
    pub add: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MixSource {
    Rows(BufferId),
    Table(TensorId),
}

/// to += a slice of the embeddings that rows came with. Slice 0 entered the stream. Rows that are tokens stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddSlice {
    pub slice: usize,
    pub to: BufferId,
}

/// The place of a mixer's state: the index in [`Program::states`](super::Program::states), and its first float.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatePart {
    pub state: usize,
    pub first: usize,
}

/// A causal convolution over time, each channel alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Convolve {
    pub from: Part,
    pub to: Part,
    pub channels: usize,
    /// The number of rows that it covers.
    pub taps: usize,
    /// [channels, taps]
    pub kernel: TensorId,
    pub bias: Option<TensorId>,
    /// Whether SiLU follows.
    pub silu: bool,
    pub state: StatePart,
}

/// The decay of a scan's state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Decay {
    /// One factor per row and head, and the factor of each head's input.
    PerHead { factors: Part, steps: Part },
    /// One factor per head.
    Constant(TensorId),
    /// e^(step · a), with a step per channel that is also the factor of the input.
    PerChannel { steps: Part, a: TensorId },
}

/// A selective scan: S = decay · S + b ⊗ (step · x), out = Sᵀ c. `group` heads share b and c.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scan {
    pub x: Part,
    pub b: Part,
    pub c: Part,
    pub group: usize,
    pub decay: Decay,
    pub state: StatePart,
    pub heads: usize,
    /// Elements per key: the rows of the state.
    pub keys: usize,
    /// Elements per value: the columns of the state.
    pub values: usize,
    pub out: BufferId,
}

/// The gated delta rule: S = decay · S, S += k ⊗ (beta · (v − Sᵀ k)), out = Sᵀ q.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Delta {
    pub q: Part,
    pub k: Part,
    pub v: Part,
    pub decay: Part,
    pub beta: Part,
    /// Whether there is a decay per element of a key.
    pub by_key: bool,
    /// Whether value heads cycle through the key heads (0, 1, 0, 1) instead of sharing one with their neighbours (0, 0, 1, 1).
    pub tiled: bool,
    pub state: StatePart,
    pub heads: usize,
    pub key_heads: usize,
    pub keys: usize,
    pub values: usize,
    pub out: BufferId,
}

/// out (+)= factor · Σ weight · expert(in) over those of the tensors' experts that the scores choose for each row.
///
/// The sum is a tree like that of a product in slices. Its leaves are the sums over each eighth of all experts' ids, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    pub experts: model::Experts,
    /// Whether the experts are the adjugates of the chosen ones (GroveMoE).
    pub adjugate: bool,
    pub scores: BufferId,
    pub input: BufferId,
    pub out: BufferId,
    pub add: bool,
    /// The ids of the tensors' experts.
    pub own: Span,
    /// None if the activation is applied to `up`.
    pub gate: Option<TensorId>,
    pub up: TensorId,
    pub down: TensorId,
    /// The inner dimension of an expert.
    pub dim: usize,
    /// The biases of gate, up and down.
    pub biases: [Option<TensorId>; 3],
    /// Added to the scores for the choice alone.
    pub choice_bias: Option<TensorId>,
    /// The factors of the experts' outputs.
    pub output_scales: Option<TensorId>,
    pub activation: Activation,
    /// Whether the weights scale the experts' inputs instead of their outputs.
    pub weigh_input: bool,
    pub factor: f32,
}

/// to += weight · from: the output of the expert that all rows share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddShared {
    pub from: BufferId,
    pub to: BufferId,
    /// [hidden] The weight is sigmoid(router · in). Without a router, it is 1.
    pub router: Option<TensorId>,
    pub input: BufferId,
    /// Whether the shared expert and the others are averaged instead of added.
    pub mean: bool,
}

/// The streams of AltUp: out[to] += Σ (coefficients[to, from] · router) · in[from]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Predict {
    pub streams: BufferId,
    pub router: BufferId,
    pub coefficients: TensorId,
}

/// streams[to] += (x − streams[0]) · (1 + coefficients[to] · router)
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Correct {
    pub streams: BufferId,
    pub x: BufferId,
    pub router: BufferId,
    pub coefficients: TensorId,
}

/// to (+)= from · |like| / |from|, for each row
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Match {
    pub from: Part,
    pub like: Part,
    pub to: Part,
    pub dim: usize,
    pub add: bool,
}
