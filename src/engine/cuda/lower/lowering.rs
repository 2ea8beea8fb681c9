//! [`Lowering`]: walks the ops of a program and writes those of the device.

use std::collections::HashMap;

use super::super::groups::has_groups;
use super::super::sys;
use super::op::Op;
use super::parts::{DeviceProgram, NO_NORM};
use super::rounding::halves;
use super::tensor::Form;
use crate::EngineError;
use crate::program::{self, BufferId, Exchange, Program, RowSet, TensorId};
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
    /// The device's program, which the shards of a model write together: see [`Lowering::lend`].
    pub out: DeviceProgram,
    /// The number of the program's first cache among those of the device.
    pub first_cache: usize,
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
    /// The buffers that layers share, by name, width and rows.
    pub shared: HashMap<(&'static str, usize, RowSet), u32>,
    /// The set of rows that the op being lowered works on.
    pub rows: RowSet,
    /// A branch that is not yet added to the stream, and the weight of its RMS norm.
    pub pending: Option<(BufferId, u32)>,
    /// A norm of the stream that the next product computes: of which buffer it is the value.
    pub held: Option<(BufferId, sys::pen_norm)>,
    /// The device's buffers of the sums that the next exchange adds: one per product in slices. None: an empty slice.
    pub parts: Vec<Option<u32>>,
    /// Whether they are added in halves.
    pub in_halves: bool,
}

impl<'a> Lowering<'a> {
    pub fn new(weights: &'a Weights, from: &'a Program) -> Self {
        Self {
            weights,
            from,
            at: 0,
            out: DeviceProgram::default(),
            first_cache: 0,
            tensors: HashMap::new(),
            places: vec![None; from.buffers.len()],
            is_half: halves(from),
            query_strides: HashMap::new(),
            rounded: HashMap::new(),
            copies: HashMap::new(),
            shared: HashMap::new(),
            rows: from.buffer(from.stream).rows,
            pending: None,
            held: None,
            parts: Vec::new(),
            in_halves: false,
        }
    }

    /// Calls `write` while the lowering has a device's program.
    pub fn lend<T>(&mut self, out: &mut DeviceProgram, write: impl FnOnce(&mut Self) -> T) -> T {
        std::mem::swap(&mut self.out, out);
        let written = write(self);
        std::mem::swap(&mut self.out, out);
        written
    }

    /// Places caches, states and the rows that the program begins with.
    pub fn begin(&mut self) {
        self.place_memory();
        self.find_query_strides();
        if self.from.scope.layers.start > 0 {
            let input = self.buffer(self.from.stream);
            self.out.inputs.push(input);
        }
    }

    /// Lowers the ops up to the next exchange, which follows in all shards. Returns where its sum goes and whether it is added there. None
    /// at the program's end.
    pub fn run_to_exchange(&mut self) -> Result<Option<(u32, bool)>, EngineError> {
        while let Some(placed) = self.from.ops.get(self.at) {
            self.settle_for(&placed.op);
            let exchange = match &placed.op {
                program::Op::Exchange(Exchange { to, add, .. }) => Some((self.buffer(*to), *add)),
                op => {
                    self.lower(op)?;
                    None
                }
            };
            self.forget_copies(&placed.op);
            self.at += 1;
            if exchange.is_some() {
                return Ok(exchange);
            }
        }
        Ok(None)
    }

    /// The device's number of a cache.
    pub fn cache(&self, cache: usize) -> usize {
        self.first_cache + cache
    }

    /// The error of what a part of a model cannot compute on a GPU, in the layer whose ops are lowered.
    pub fn cannot(&self, what: &str) -> EngineError {
        let placed = self.from.ops.get(self.at);
        let layer = placed.and_then(|placed| placed.layer).map_or(String::new(), |layer| format!(" in layer {layer}"));
        let name = placed.map_or("head", |placed| placed.op.name());
        EngineError::Unsupported(format!("op {name}{layer} on a GPU in {} shards: {what}", self.from.scope.shard.count))
    }

    /// The op behind the one that is lowered.
    pub fn next(&self) -> Option<&'a program::Op> {
        self.from.ops.get(self.at + 1).map(|placed| &placed.op)
    }

    fn lower(&mut self, op: &program::Op) -> Result<(), EngineError> {
        use program::Op::*;
        let from = self.from;
        let written = op.uses(&|id| from.buffer(id).width).into_iter().find(|used| used.kind.writes());
        self.rows = written.map_or(self.rows, |used| from.buffer(used.part.buffer).rows);
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
            AddSlice(op) => self.add_slice(op),
            Among(op) => self.among(op),
            Mix(op) => self.mix(op),
            Exchange(_) | AddShared(_) => Err(EngineError::Unsupported(format!("op {} on a GPU", op.name()))),
        }
    }

    pub fn op(&mut self, op: impl Into<Op>) {
        self.out.push(op, self.rows);
    }

    /// Assigns caches and states to the layers.
    fn place_memory(&mut self) {
        let spec = &self.weights.spec;
        self.first_cache = self.out.caches.len();
        let first_place = self.out.caches.iter().map(|cache| cache.place + 1).max().unwrap_or(0);
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
            let (heads, key_dim, place) = (cache.heads as u32, dim(cache.key_dim), first_place + place);
            self.out.caches.push(sys::pen_cache { heads, key_dim, value_dim, group, place });
        }
        self.out.states = self.from.states.iter().map(|state| state.width as u32).collect();
    }

    /// Writes what follows the last layer, or names the rows that the program ends with.
    pub fn end(&mut self) -> Result<(), EngineError> {
        let Some(head) = self.from.head else {
            self.settle_at_end();
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
