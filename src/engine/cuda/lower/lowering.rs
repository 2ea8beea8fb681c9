//! [`Lowering`]: walks the ops of a program and writes those of the device.

use std::collections::HashMap;

use super::super::groups::has_groups;
use super::super::sys;
use super::op::Op;
use super::parts::{DeviceProgram, NO_NORM, NONE};
use super::rounding::halves;
use super::tensor::Form;
use crate::EngineError;
use crate::program::{self, BufferId, Program, Shard, TensorId};
use model::{LayerGroup, NormKind, Weights};

/// Where the device holds a buffer: a buffer of its own, or elements of a shared one.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub buffer: u32,
    pub first: usize,
}

/// A program that is being lowered.
pub struct Lowering<'a> {
    pub weights: &'a Weights,
    pub from: &'a Program,
    /// The index of the op that is lowered.
    pub at: usize,
    pub out: DeviceProgram,
    pub tensors: HashMap<(TensorId, Form), u32>,
    /// Where the device holds each buffer of the program.
    pub places: Vec<Option<Place>>,
    /// Which buffers are float16.
    pub is_half: Vec<bool>,
    /// The elements between heads of the queries that attention reads as they are.
    pub query_strides: HashMap<BufferId, (usize, usize)>,
    /// The float16 copies of float32 buffers that are up to date.
    pub rounded: HashMap<BufferId, u32>,
    /// The copies' buffers.
    pub copies: HashMap<BufferId, u32>,
    pub shared: HashMap<(&'static str, usize), u32>,
    /// A branch that is not yet added to the stream, and the weight of its RMS norm.
    pub pending: Option<(BufferId, u32)>,
    /// A norm of the stream that the next product computes: of which buffer it is the value.
    pub held: Option<(BufferId, sys::pen_norm)>,
}

impl<'a> Lowering<'a> {
    pub fn new(weights: &'a Weights, from: &'a Program) -> Self {
        let head = sys::pen_head { norm: NO_NORM, w: NONE, bias: NONE, scale: 1.0, soft_cap: 0.0 };
        let out = DeviceProgram {
            tensors: Vec::new(),
            buffers: Vec::new(),
            caches: Vec::new(),
            states: Vec::new(),
            input: None,
            ops: Vec::new(),
            output: None,
            head,
        };
        Self {
            weights,
            from,
            at: 0,
            out,
            tensors: HashMap::new(),
            places: vec![None; from.buffers.len()],
            is_half: halves(from),
            query_strides: HashMap::new(),
            rounded: HashMap::new(),
            copies: HashMap::new(),
            shared: HashMap::new(),
            pending: None,
            held: None,
        }
    }

    pub fn run(mut self) -> Result<DeviceProgram, EngineError> {
        self.check_scope()?;
        self.place_memory();
        self.find_query_strides();
        if self.from.scope.layers.start > 0 {
            self.out.input = Some(self.buffer(self.from.stream));
        }
        while let Some(placed) = self.from.ops.get(self.at) {
            self.settle_for(&placed.op);
            self.lower(&placed.op)?;
            self.forget_copies(&placed.op);
            self.at += 1;
        }
        self.head()?;
        Ok(self.out)
    }

    /// Refuses a shard: the device exchanges nothing.
    fn check_scope(&self) -> Result<(), EngineError> {
        let Shard { index, count } = self.from.scope.shard;
        match count {
            1 => Ok(()),
            _ => Err(EngineError::Unsupported(format!("shard {index} of {count} on a GPU: use --backend cpu"))),
        }
    }

    /// The op behind the one that is lowered.
    pub fn next(&self) -> Option<&'a program::Op> {
        self.from.ops.get(self.at + 1).map(|placed| &placed.op)
    }

    fn lower(&mut self, op: &program::Op) -> Result<(), EngineError> {
        use program::Op::*;
        match op {
            Embed(op) => self.embed(op),
            Norm(op) => self.norm(op),
            ToLength(op) => self.scale_to_length(op),
            Linear(op) => self.linear(op),
            EachHead(op) => self.each_head(op),
            Activate(op) => self.activate(op),
            Map(op) => self.map(op),
            Heads(op) => self.finish_heads(op),
            Attention(op) => self.attention(op),
            Convolve(op) => self.convolve(op),
            Scan(op) => self.scan(op),
            Delta(op) => self.delta(op),
            Experts(op) => self.experts(op),
            Predict(op) => self.predict(op),
            Correct(op) => self.correct(op),
            Match(op) => self.match_length(op),
            Exchange(_) | AddShared(_) => Err(EngineError::Unsupported(format!("op {} on a GPU", op.name()))),
        }
    }

    pub fn op(&mut self, op: impl Into<Op>) {
        self.out.ops.push(op.into());
    }

    /// Assigns caches and states to the layers.
    fn place_memory(&mut self) {
        let spec = &self.weights.spec;
        let (in_groups, groups) = (has_groups(spec), spec.cache_groups());
        for (number, cache) in self.from.caches.iter().enumerate() {
            let dim = |elements: usize| elements.next_multiple_of(8) as u32;
            // the values of latent attention are the first elements of its keys
            let is_latent = spec.layers[cache.layer].latent().is_some();
            let value_dim = if is_latent { 0 } else { dim(cache.value_dim) };
            // the number among the group's layers that the program has
            let within = |(group, of): (usize, &LayerGroup)| {
                let mut own = of.layers.iter().filter(|layer| self.from.scope.layers.contains(layer));
                Some((group as u32, own.position(|&layer| layer == cache.layer)? as u32))
            };
            let found = groups.iter().enumerate().find_map(within).filter(|_| in_groups);
            let (group, place) = found.unwrap_or((0, number as u32));
            self.out.caches.push(sys::pen_cache { heads: cache.heads as u32, key_dim: dim(cache.key_dim), value_dim, group, place });
        }
        self.out.states = self.from.states.iter().map(|state| state.width as u32).collect();
    }

    fn head(&mut self) -> Result<(), EngineError> {
        let Some(head) = self.from.head else {
            self.settle();
            self.out.output = Some(self.buffer(self.from.stream));
            return Ok(());
        };
        let norm = match head.norm {
            Some(norm) if norm.kind == NormKind::Layer || norm.bias.is_none() => self.fused(&norm, false),
            other => {
                self.settle();
                let x = self.buffer(self.from.stream);
                if let Some(norm) = other {
                    self.norm_row(x, self.from.buffer(self.from.stream).width, &norm);
                }
                sys::pen_norm { x, ..NO_NORM }
            }
        };
        let (w, bias) = (self.matrix(head.matrix)?, self.vector_or_none(head.bias));
        self.out.head = sys::pen_head { norm, w, bias, scale: head.scale, soft_cap: head.soft_cap.unwrap_or(0.0) };
        Ok(())
    }
}
