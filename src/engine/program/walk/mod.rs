//! [`Walk`]: the one walk over a model's description, which writes its program.

mod attention;
mod delta;
mod draft_head;
mod encoder;
mod experts;
mod feed_forward;
mod latent;
mod layer;
mod linear_attention;
mod mamba;
mod per_layer;
mod shard;
mod streams;
mod tensors;

use std::collections::HashMap;

use super::links::LayerLinks;
use super::op::*;
use super::parts::{Buffer, Cache, Classifier, Head, LayerOp, Program, State};
use super::rules::RowSet;
use super::scope::{Scope, Shard};
use super::tensor::{Slice, Source, TensorId};
use crate::EngineError;
use model::{ModelSpec, NormKind, TensorRole, VisionSpec, Weights};

/// A program that is being written.
pub struct Walk<'a> {
    weights: &'a Weights,
    links: &'a LayerLinks,
    scope: &'a Scope,
    program: Program,
    tensors: HashMap<(Source, Slice), TensorId>,
    buffers: HashMap<(String, usize, usize, RowSet), BufferId>,
    /// The index of each layer's cache and state.
    caches: Vec<Option<usize>>,
    states: Vec<Option<usize>>,
    /// The layer whose ops are written.
    layer: Option<usize>,
    /// The residual stream.
    x: BufferId,
    /// The set that the rows of new buffers are.
    rows: RowSet,
    /// None in a language model.
    vision: Option<&'a VisionSpec>,
}

/// The rows before an output projection, and the roles of its matrix and bias.
pub struct Mixed {
    rows: BufferId,
    output: TensorRole,
    bias: Option<TensorId>,
}

/// The operations on a branch before it is added to the stream.
#[derive(Clone, Copy)]
pub struct Finish {
    norm: Option<NormParams>,
    scale: f32,
    /// A factor for each element.
    scales: Option<TensorId>,
}

/// All elements of a buffer's rows, as one head.
fn whole(buffer: BufferId) -> Part {
    part(buffer, 0, 0)
}

fn part(buffer: BufferId, first: usize, stride: usize) -> Part {
    Part { buffer, first, stride }
}

/// Copies heads. Every other elementwise op starts from this one.
fn copy(from: Part, to: Part, heads: usize, dim: usize) -> Map {
    let (f, then) = (Function::Identity, Function::Identity);
    Map { from, to, heads, dim, bias: None, f, scale: None, then, factor: 1.0, by: None, add: false }
}

impl<'a> Walk<'a> {
    pub fn new(weights: &'a Weights, links: &'a LayerLinks, scope: &'a Scope) -> Self {
        let spec = &weights.spec;
        let program = Program {
            scope: scope.clone(),
            tensors: Vec::new(),
            buffers: Vec::new(),
            caches: Vec::new(),
            states: Vec::new(),
            pairing: spec.rope_pairing,
            ops: Vec::new(),
            stream: BufferId(0),
            head: None,
        };
        let (tensors, buffers, caches, states) = Default::default();
        let mut walk = Self {
            weights,
            links,
            scope,
            program,
            tensors,
            buffers,
            caches,
            states,
            layer: None,
            x: BufferId(0),
            rows: RowSet::Step,
            vision: None,
        };
        walk.x = walk.buffer("x", spec.hidden_dim);
        walk
    }

    pub fn program(mut self) -> Result<Program, EngineError> {
        self.check_streams()?;
        self.place_memory()?;
        let layers = self.scope.layers.clone();
        if layers.start == 0 {
            self.embed()?;
        } else if self.is_draft_head() {
            self.join_token()?;
        }
        for layer in layers.clone() {
            self.layer = Some(layer);
            self.check_mixer(layer)?;
            self.write_layer(layer)?;
        }
        self.layer = None;
        if layers.end == self.spec().num_layers() {
            self.end_streams()?;
            self.head()?;
        }
        Ok(self.program)
    }

    fn spec(&self) -> &'a ModelSpec {
        &self.weights.spec
    }

    fn hidden(&self) -> usize {
        self.spec().hidden_dim
    }

    /// Numbers the caches and states of the layers. Shards share the one key of latent attention, and the heads of all others are cut.
    fn place_memory(&mut self) -> Result<(), EngineError> {
        for (layer, spec) in self.spec().layers.iter().enumerate() {
            if !self.scope.layers.contains(&layer) {
                self.caches.push(None);
                self.states.push(None);
                continue;
            }
            self.layer = Some(layer);
            let mut cache = None;
            if let Some(kept) = spec.cached().filter(|_| self.links.caches[layer] == Some(layer)) {
                let heads = if spec.latent().is_some() { kept.heads } else { self.own_kv_heads(kept.heads)?.len };
                self.program.caches.push(Cache { layer, heads, key_dim: kept.key, value_dim: kept.value });
                cache = Some(self.program.caches.len() - 1);
            }
            self.caches.push(cache);
            let width = spec.state_width();
            self.states.push((width > 0).then(|| {
                self.program.states.push(State { layer, width });
                self.program.states.len() - 1
            }));
        }
        self.layer = None;
        Ok(())
    }

    fn embed(&mut self) -> Result<(), EngineError> {
        use TensorRole::*;
        let table = self.table(TokenEmbd)?;
        let positions = if self.has(PositionEmbd, 0) { Some(self.table(PositionEmbd)?) } else { None };
        let types = self.vector(TokenTypes, 0);
        self.op(Op::Embed(Embed { table, types, positions, scale: self.spec().embedding_scale, pads_embeddings: false, out: self.x }));
        if let Some(norm) = self.own_norm(TokenNorm, TokenNormBias, 0) {
            self.norm_in_place(self.x, norm);
        }
        self.begin_per_layer()?;
        self.begin_streams()
    }

    fn head(&mut self) -> Result<(), EngineError> {
        use TensorRole::*;
        let spec = self.spec();
        if self.is_draft_head() && self.has(NextnOutput, self.scope.layers.start) {
            return self.own_draft_output();
        }
        let norm = if self.is_draft_head() { self.draft_norm() } else { self.norm(OutputNorm, OutputNormBias, 0) };
        // tied embeddings: the head is the embedding's matrix
        let tied = crate::info::has_tied_head(self.weights) || !self.has(Output, 0);
        let vocab = self.shard().span(self.weight(if tied { TokenEmbd } else { Output }, 0)?.rows);
        let matrix = match tied {
            true if vocab.is_whole() => self.table(TokenEmbd)?,
            true => self.rows(TokenEmbd, 0, vocab)?,
            false => self.rows(Output, 0, vocab)?,
        };
        let classifier = self.classifier()?;
        let bias = self.vector_part(OutputBias, 0, vocab);
        let (scale, soft_cap) = (spec.logit_scale, spec.final_soft_cap);
        self.program.head = Some(Head { norm, vocab, matrix, bias, scale, soft_cap, classifier });
        Ok(())
    }

    fn classifier(&mut self) -> Result<Option<Classifier>, EngineError> {
        use TensorRole as Role;
        if !self.has(Role::ClassifierOutput, 0) {
            return Ok(None);
        }
        let mut dense = None;
        if self.has(Role::Classifier, 0) {
            dense = Some((self.matrix(Role::Classifier, 0)?, self.vector(Role::ClassifierBias, 0)));
        }
        let output = (self.matrix(Role::ClassifierOutput, 0)?, self.vector(Role::ClassifierOutputBias, 0));
        Ok(Some(Classifier { dense, output }))
    }

    fn op(&mut self, op: Op) {
        self.program.ops.push(LayerOp { layer: self.layer, op });
    }

    fn map(&mut self, map: Map) {
        self.op(Op::Map(map));
    }

    /// The buffer of this name and width. Layers share buffers.
    fn buffer(&mut self, name: &str, width: usize) -> BufferId {
        self.rows_buffer(name, width, 1)
    }

    /// A buffer with `per_row` rows for each row of the step.
    fn rows_buffer(&mut self, name: &str, width: usize, per_row: usize) -> BufferId {
        let (buffers, rows) = (&mut self.program.buffers, self.rows);
        *self.buffers.entry((name.to_owned(), width, per_row, rows)).or_insert_with(|| {
            buffers.push(Buffer { name: name.to_owned(), width, per_row, rows });
            BufferId(buffers.len() - 1)
        })
    }

    fn width(&self, buffer: BufferId) -> usize {
        self.program.buffers[buffer.0].width
    }

    /// Products of one input.
    fn products(&mut self, input: BufferId, products: impl IntoIterator<Item = (TensorId, BufferId)>, add: bool) {
        self.op(Op::Linear(Linear { input, products: products.into_iter().collect(), add, in_slices: false }));
    }

    /// The product of a buffer and a matrix, in a buffer of this name.
    fn product(&mut self, input: BufferId, matrix: TensorId, name: &str) -> BufferId {
        let out = self.product_buffer(matrix, name);
        self.products(input, [(matrix, out)], false);
        out
    }

    /// A buffer for the product of a matrix.
    fn product_buffer(&mut self, matrix: TensorId, name: &str) -> BufferId {
        self.buffer(name, self.program.tensors[matrix.0].rows)
    }

    /// The norm of a role, if the file has one. In architectures whose norms have no weights, every role has one.
    fn norm(&mut self, role: TensorRole, bias: TensorRole, layer: usize) -> Option<NormParams> {
        let arch = self.spec().arch;
        self.own_norm(role, bias, layer).or_else(|| {
            arch.weightless_norms.then(|| {
                let weight = Some(self.ones(self.hidden()));
                NormParams { kind: arch.norm, weight, bias: None, eps: self.spec().norm_eps }
            })
        })
    }

    /// The norm of a role, if the file has one.
    fn own_norm(&mut self, role: TensorRole, bias: TensorRole, layer: usize) -> Option<NormParams> {
        let weight = Some(self.vector(role, layer)?);
        Some(NormParams { kind: self.spec().arch.norm, weight, bias: self.vector(bias, layer), eps: self.spec().norm_eps })
    }

    /// The RMS norm of a role. It is required, whatever norms the architecture uses otherwise.
    fn rms_norm(&mut self, role: TensorRole, layer: usize) -> Result<NormParams, EngineError> {
        let weight = self.required_vector(role, layer)?;
        Ok(self.rms(Some(weight)))
    }

    fn rms(&self, weight: Option<TensorId>) -> NormParams {
        NormParams { kind: NormKind::Rms, weight, bias: None, eps: self.spec().norm_eps }
    }

    /// out = norm(from), over whole rows
    fn norm_to(&mut self, from: BufferId, to: BufferId, params: NormParams) {
        let dim = self.width(from);
        self.op(Op::Norm(Norm { from: whole(from), to: whole(to), heads: 1, dim, params, own: false }));
    }

    fn norm_in_place(&mut self, buffer: BufferId, params: NormParams) {
        self.norm_to(buffer, buffer, params);
    }

    /// x += finish(W · in + bias)
    fn branch(&mut self, i: usize, mixed: &Mixed, finish: Finish) -> Result<(), EngineError> {
        let (hidden, bias) = (self.hidden(), mixed.bias);
        let direct = finish.norm.is_none() && finish.scale == 1.0 && finish.scales.is_none();
        let out = if direct { self.x } else { self.buffer("branch", hidden) };
        self.joined_product(i, mixed.output, mixed.rows, out, direct)?;
        if bias.is_some() {
            self.map(Map { bias, ..copy(whole(out), whole(out), 1, hidden) });
        }
        if !direct {
            self.add_branch(finish);
        }
        Ok(())
    }

    /// x += finish(branch)
    fn add_branch(&mut self, finish: Finish) {
        let hidden = self.hidden();
        let branch = self.buffer("branch", hidden);
        if let Some(norm) = finish.norm {
            self.norm_in_place(branch, norm);
        }
        let scale = finish.scales.map(|scales| (scales, 1));
        self.map(Map { add: true, scale, factor: finish.scale, ..copy(whole(branch), whole(self.x), 1, hidden) });
    }

    /// x *= factor
    fn scale_stream(&mut self, factor: f32) {
        self.map(Map { factor, ..copy(whole(self.x), whole(self.x), 1, self.hidden()) });
    }
}
