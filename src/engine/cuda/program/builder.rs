//! Builds the parts of a program: buffers, norms, products and branches.

use std::collections::HashMap;

use super::super::groups::has_groups;
use super::super::sys;
use super::op::Op;
use super::parts::{NONE, Program};
use super::tensor::Key;
use crate::EngineError;
use model::arch::Block;
use model::{Activation, LayerGroup, NormKind, TensorRole, Weights};

/// The weights of a norm.
#[derive(Clone, Copy)]
pub struct Norm {
    pub kind: NormKind,
    pub weight: u32,
    pub bias: u32,
}

/// The input of a product.
#[derive(Clone, Copy)]
pub enum Input {
    /// A norm that the product computes itself, and the buffer for the normalised rows if they are stored.
    Norm(sys::pen_norm, u32),
    /// A float16 buffer.
    Ready(u32),
}

pub struct Builder<'a> {
    pub weights: &'a Weights,
    /// The index of each layer's rotation.
    pub ropes: &'a [Option<usize>],
    pub program: Program,
    pub tensors: HashMap<Key, u32>,
    buffers: HashMap<(String, u32, u32, u32), u32>,
    /// The buffer of the residual stream.
    pub x: u32,
    /// The weights of the RMS norm of a branch that is not yet added to the stream.
    pending: Option<u32>,
    /// The cache that each layer reads, and its state.
    pub caches: Vec<u32>,
    pub states: Vec<u32>,
}

/// A part of a buffer, with its first element and the distance between heads.
pub fn part(buffer: u32, first: usize, stride: usize) -> sys::pen_part {
    sys::pen_part { buffer, first: first as u32, stride: stride as u32 }
}

pub const NO_PART: sys::pen_part = sys::pen_part { buffer: NONE, first: 0, stride: 0 };
const NO_NORM: sys::pen_norm =
    sys::pen_norm { kind: sys::PEN_NO_NORM, x: NONE, branch: NONE, branch_weight: NONE, x_out: NONE, weight: NONE, bias: NONE, eps: 0.0 };

/// Copies `dim` elements. Every elementwise op starts from this one.
pub fn copy(from: sys::pen_part, to: sys::pen_part, heads: usize, dim: usize) -> sys::pen_map {
    sys::pen_map {
        r#in: from,
        by: NO_PART,
        out: to,
        heads: heads as u32,
        dim: dim as u32,
        bias: NONE,
        f: sys::PEN_IDENTITY,
        scale: NONE,
        scale_group: 0,
        then: sys::PEN_IDENTITY,
        g: sys::PEN_IDENTITY,
        add: 0,
        factor: 1.0,
    }
}

pub fn activation(kind: Activation) -> u32 {
    match kind {
        Activation::Silu => sys::PEN_SILU,
        Activation::Gelu => sys::PEN_GELU,
        Activation::GeluErf => sys::PEN_GELU_ERF,
        Activation::Relu => sys::PEN_RELU,
        Activation::ReluSquared => sys::PEN_RELU_SQUARED,
        Activation::SwigluClamped => sys::PEN_SWIGLU_CLAMPED,
        Activation::Xielu => sys::PEN_XIELU,
    }
}

impl<'a> Builder<'a> {
    pub fn new(weights: &'a Weights, ropes: &'a [Option<usize>]) -> Self {
        let head = sys::pen_head { norm: NO_NORM, w: NONE, bias: NONE, scale: 1.0, soft_cap: 0.0 };
        let program = Program { tensors: Vec::new(), buffers: Vec::new(), caches: Vec::new(), states: Vec::new(), ops: Vec::new(), head };
        let mut builder = Self {
            weights,
            ropes,
            program,
            tensors: HashMap::new(),
            buffers: HashMap::new(),
            x: NONE,
            pending: None,
            caches: Vec::new(),
            states: Vec::new(),
        };
        builder.x = builder.floats("x", weights.spec.hidden_dim);
        builder
    }

    pub fn build(mut self) -> Result<Program, EngineError> {
        self.place_memory();
        self.embed()?;
        for layer in 0..self.weights.spec.num_layers() {
            self.layer(layer)?;
        }
        self.end_streams()?;
        self.head()?;
        Ok(self.program)
    }

    /// Assigns caches and states to the layers.
    fn place_memory(&mut self) {
        let spec = &self.weights.spec;
        let in_groups = has_groups(spec);
        let groups = spec.cache_groups();
        for (i, layer) in spec.layers.iter().enumerate() {
            let kept = layer.cached().map(|kept| {
                let dim = |elements: usize| elements.next_multiple_of(8) as u32;
                // the values are the first elements of the latent keys
                let value_dim = if layer.latent().is_some() { 0 } else { dim(kept.value) };
                let number = self.program.caches.len() as u32;
                let within =
                    |(group, of): (usize, &LayerGroup)| Some((group as u32, of.layers.iter().position(|&layer| layer == i)? as u32));
                let found = groups.iter().enumerate().find_map(within).filter(|_| in_groups);
                let (group, place) = found.unwrap_or((0, number));
                self.program.caches.push(sys::pen_cache { heads: kept.heads as u32, key_dim: dim(kept.key), value_dim, group, place });
                number
            });
            self.caches.push(kept.unwrap_or(NONE));
            let state = (layer.state_width() > 0).then(|| {
                self.program.states.push(layer.state_width() as u32);
                self.program.states.len() as u32 - 1
            });
            self.states.push(state.unwrap_or(NONE));
        }
    }

    fn embed(&mut self) -> Result<(), EngineError> {
        use TensorRole::*;
        let spec = &self.weights.spec;
        let tied = crate::info::has_tied_head(self.weights);
        let table = self.stack(TokenEmbd, 0, 1, usize::from(tied))?;
        let positions = if self.has(PositionEmbd, 0) { self.stack(PositionEmbd, 0, 1, 0)? } else { NONE };
        let types = self.vector(TokenTypes, 0);
        self.op(sys::pen_embed { table, types, positions, out: self.x, scale: spec.embedding_scale });
        let hidden = spec.hidden_dim;
        if let Some(norm) = self.own_norm(TokenNorm, TokenNormBias, 0) {
            self.norm_in_place(self.x, hidden, norm);
        }
        self.begin_per_layer()?;
        self.begin_streams()
    }

    fn head(&mut self) -> Result<(), EngineError> {
        use TensorRole::*;
        let spec = &self.weights.spec;
        let norm = match self.norm(OutputNorm, OutputNormBias, 0) {
            Some(norm) if norm.kind == NormKind::Layer || norm.bias == NONE => self.fused(norm, false),
            Some(norm) => {
                self.settle();
                self.norm_in_place(self.x, spec.hidden_dim, norm);
                sys::pen_norm { x: self.x, ..NO_NORM }
            }
            None => {
                self.settle();
                sys::pen_norm { x: self.x, ..NO_NORM }
            }
        };
        let tied = crate::info::has_tied_head(self.weights) || !self.has(Output, 0);
        let w = self.matrix(if tied { TokenEmbd } else { Output }, 0)?;
        let bias = self.vector(OutputBias, 0);
        self.program.head = sys::pen_head { norm, w, bias, scale: spec.logit_scale, soft_cap: spec.final_soft_cap.unwrap_or(0.0) };
        Ok(())
    }

    pub fn op(&mut self, op: impl Into<Op>) {
        self.program.ops.push(op.into());
    }

    /// The float32 buffer of this name and width [num_tokens, width].
    pub fn floats(&mut self, name: &str, width: usize) -> u32 {
        self.buffer(name, sys::PEN_F32, width, 1)
    }

    /// The float16 buffer of this name and width [num_tokens, width].
    pub fn halves(&mut self, name: &str, width: usize) -> u32 {
        self.buffer(name, sys::PEN_F16, width, 1)
    }

    pub fn buffer(&mut self, name: &str, r#type: u32, width: usize, per_token: usize) -> u32 {
        let (width, per_token) = (width as u32, per_token as u32);
        let buffers = &mut self.program.buffers;
        *self.buffers.entry((name.to_owned(), r#type, width, per_token)).or_insert_with(|| {
            buffers.push(sys::pen_buffer { r#type, width, per_token });
            buffers.len() as u32 - 1
        })
    }

    /// Rounds elements of a float32 buffer to float16 for a product.
    pub fn rounded(&mut self, name: &str, from: sys::pen_part, dim: usize) -> u32 {
        let to = self.halves(name, dim);
        self.op(copy(from, part(to, 0, 0), 1, dim));
        to
    }

    /// Rounds the stream to float16.
    pub fn rounded_stream(&mut self, name: &str) -> u32 {
        self.settle();
        self.rounded(name, part(self.x, 0, 0), self.weights.spec.hidden_dim)
    }

    /// The norm of a role, if the file has one. In architectures whose norms have no weights, every role has one.
    pub fn norm(&mut self, role: TensorRole, bias: TensorRole, layer: usize) -> Option<Norm> {
        let (arch, hidden) = (self.weights.spec.arch, self.weights.spec.hidden_dim);
        if let Some(norm) = self.own_norm(role, bias, layer) {
            return Some(norm);
        }
        let ones = |builder: &mut Self| {
            let key = Key::Vector(TensorRole::OutputNorm, 0);
            builder.made_vector(key, "a norm without weights".into(), hidden, move |_| vec![1.0; hidden])
        };
        arch.weightless_norms.then(|| Norm { kind: arch.norm, weight: ones(self), bias: NONE })
    }

    /// The norm of a role, if the file has one.
    pub fn own_norm(&mut self, role: TensorRole, bias: TensorRole, layer: usize) -> Option<Norm> {
        let weight = self.vector(role, layer);
        let bias = self.vector(bias, layer);
        (weight != NONE).then_some(Norm { kind: self.weights.spec.arch.norm, weight, bias })
    }

    /// The RMS norm of a role. It is required, whatever norms the architecture uses otherwise.
    pub fn rms_norm(&mut self, role: TensorRole, layer: usize) -> Result<Norm, EngineError> {
        Ok(Norm { kind: NormKind::Rms, weight: self.required_vector(role, layer)?, bias: NONE })
    }

    /// The norm of the stream as a product takes it. The product adds a pending branch to the stream first.
    fn fused(&mut self, norm: Norm, keeps_stream: bool) -> sys::pen_norm {
        let eps = self.weights.spec.norm_eps;
        if norm.kind == NormKind::Layer {
            self.settle();
            return sys::pen_norm { kind: sys::PEN_LAYER_NORM, x: self.x, weight: norm.weight, bias: norm.bias, eps, ..NO_NORM };
        }
        let mut of = sys::pen_norm { kind: sys::PEN_RMS_NORM, x: self.x, weight: norm.weight, eps, ..NO_NORM };
        if let Some(weight) = self.pending.take() {
            let hidden = self.weights.spec.hidden_dim;
            of.branch = self.floats("branch", hidden);
            of.branch_weight = weight;
            if keeps_stream {
                let [x, other] = [self.floats("x", hidden), self.floats("x, moved", hidden)];
                self.x = if self.x == x { other } else { x };
                of.x_out = self.x;
            }
        }
        of
    }

    /// The input that a branch reads from the stream: the stream's norm, or the stream itself without a norm.
    pub fn input(&mut self, norm: Option<Norm>, name: &str) -> Input {
        let hidden = self.weights.spec.hidden_dim;
        match norm {
            None => Input::Ready(self.rounded_stream(name)),
            Some(norm) if norm.kind == NormKind::Rms && norm.bias != NONE => {
                self.settle();
                let to = self.halves(name, hidden);
                self.group_norm([part(self.x, 0, 0), part(to, 0, 0)], 1, hidden, norm);
                Input::Ready(to)
            }
            Some(norm) => {
                let of = self.fused(norm, true);
                Input::Norm(of, self.halves(name, hidden))
            }
        }
    }

    /// Stores the input in a buffer, for several readers.
    pub fn ready(&mut self, input: Input) -> u32 {
        match input {
            Input::Ready(buffer) => buffer,
            Input::Norm(norm, out) => {
                self.op(sys::pen_normalise { norm, out });
                out
            }
        }
    }

    /// Products of one input, which lie next to each other in `out`.
    pub fn products(&mut self, input: Input, matrices: &[u32], out: u32, epilogue: u32) {
        let (norm, from) = match input {
            Input::Norm(norm, buffer) => (norm, buffer),
            Input::Ready(buffer) => (NO_NORM, buffer),
        };
        let rows = |i: usize| matrices.get(i).map_or(0, |&matrix| self.program.tensors[matrix as usize].desc.rows);
        let at = |i: usize| matrices.get(i).copied().unwrap_or(NONE);
        let op = sys::pen_linear {
            norm,
            r#in: from,
            w0: at(0),
            w1: at(1),
            w2: at(2),
            offset1: rows(0),
            offset2: rows(0) + rows(1),
            out,
            epilogue,
        };
        self.op(op);
    }

    /// A product whose result is stored as float32.
    pub fn product(&mut self, from: u32, matrix: u32, name: &str) -> u32 {
        let rows = self.program.tensors[matrix as usize].desc.rows as usize;
        let out = self.floats(name, rows);
        self.products(Input::Ready(from), &[matrix], out, sys::PEN_STORE);
        out
    }

    /// Normalises each head alone, with weights that all heads share.
    pub fn group_norm(&mut self, [from, to]: [sys::pen_part; 2], heads: usize, dim: usize, norm: Norm) {
        let kind = if norm.kind == NormKind::Layer { sys::PEN_LAYER_NORM } else { sys::PEN_RMS_NORM };
        self.op(sys::pen_group_norm {
            r#in: from,
            out: to,
            kind,
            heads: heads as u32,
            dim: dim as u32,
            weight: norm.weight,
            bias: norm.bias,
            own: 0,
            eps: self.weights.spec.norm_eps,
            length: 0.0,
        });
    }

    pub fn norm_in_place(&mut self, buffer: u32, dim: usize, norm: Norm) {
        self.group_norm([part(buffer, 0, 0); 2], 1, dim, norm);
    }

    /// x += finish(W · in + bias)
    pub fn branch(&mut self, matrix: u32, from: u32, bias: u32, post: Option<Norm>, scale: f32) {
        let hidden = self.weights.spec.hidden_dim;
        self.settle();
        let direct = post.is_none() && scale == 1.0;
        let out = if direct { self.x } else { self.floats("branch", hidden) };
        self.products(Input::Ready(from), &[matrix], out, if direct { sys::PEN_ADD } else { sys::PEN_STORE });
        if bias != NONE {
            self.op(sys::pen_map { bias, ..copy(part(out, 0, 0), part(out, 0, 0), 1, hidden) });
        }
        if !direct {
            self.add(post, scale);
        }
    }

    /// x += finish(branch)
    pub fn add(&mut self, post: Option<Norm>, scale: f32) {
        let hidden = self.weights.spec.hidden_dim;
        let branch = self.floats("branch", hidden);
        if let Some(norm) = post {
            if norm.kind == NormKind::Rms && norm.bias == NONE && scale == 1.0 && self.weights.spec.block == Block::Sequential {
                // the next norm also adds the branch
                self.pending = Some(norm.weight);
                return;
            }
            self.norm_in_place(branch, hidden, norm);
        }
        self.op(sys::pen_map { add: 1, factor: scale, ..copy(part(branch, 0, 0), part(self.x, 0, 0), 1, hidden) });
    }

    /// Adds a pending branch to the stream, for ops that read the stream itself.
    pub fn settle(&mut self) {
        let Some(weight) = self.pending.take() else { return };
        let hidden = self.weights.spec.hidden_dim;
        let branch = self.floats("branch", hidden);
        self.norm_in_place(branch, hidden, Norm { kind: NormKind::Rms, weight, bias: NONE });
        self.op(sys::pen_map { add: 1, ..copy(part(branch, 0, 0), part(self.x, 0, 0), 1, hidden) });
    }

    /// x *= factor
    pub fn scale_stream(&mut self, factor: f32) {
        self.settle();
        self.op(sys::pen_map { factor, ..copy(part(self.x, 0, 0), part(self.x, 0, 0), 1, self.weights.spec.hidden_dim) });
    }
}
