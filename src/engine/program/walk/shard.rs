//! Writes a shard: its own heads, inner elements and experts, and the sums that it shares with the others.
//!
//! Rows that all shards need are whole on each of them: the residual stream and its norms, the scores of routers, biases and norms of a
//! branch, which each shard adds or applies to the whole sum. What is cut are the rows of queries, keys, values, gate and up, the columns
//! of the matrices behind them, and the stacks of experts. Each sum over cut columns or experts ends in an exchange.

use super::*;
use crate::program::scope::Span;
use crate::program::slices::{Slices, TILE};
use model::Mixer;
use model::arch::Block;

impl Walk<'_> {
    pub fn shard(&self) -> Shard {
        self.scope.shard
    }

    /// The error of what the scope cannot cut, in the layer whose ops are written.
    pub fn cannot(&self, op: &str, why: String) -> EngineError {
        let layer = self.layer.map_or(String::new(), |layer| format!(" in layer {layer}"));
        EngineError::Unsupported(format!("op {op}{layer}: {why}"))
    }

    /// Refuses a shard for what only a whole device computes.
    pub fn must_be_whole(&self, op: &str, what: &str) -> Result<(), EngineError> {
        match self.shard().is_whole() {
            true => Ok(()),
            false => Err(self.cannot(op, format!("{what} cannot be cut into {} shards", self.shard().count))),
        }
    }

    /// Refuses a scope that cuts what passes from the first layer to the last.
    pub fn check_streams(&self) -> Result<(), EngineError> {
        let (spec, all) = (self.spec(), 0..self.spec().num_layers());
        for (has, op, what) in
            [(spec.block == Block::Altup, "predict", "the streams of AltUp"), (spec.per_layer_input > 0, "embed", "the layers' own inputs")]
        {
            if has {
                self.must_be_whole(op, what)?;
            }
            if has && self.scope.layers != all {
                return Err(self.cannot(op, format!("{what} pass through all layers")));
            }
        }
        Ok(())
    }

    /// Refuses a layer whose mixer the scope cuts.
    pub fn check_mixer(&self, i: usize) -> Result<(), EngineError> {
        let mixer = &self.spec().layers[i].mixer;
        if matches!(mixer, Mixer::Recurrent(_) | Mixer::Both(..)) {
            self.must_be_whole("scan", "a recurrent state")?;
        }
        self.check_cache(i)
    }

    /// Refuses a layer whose attention cannot read the cache that it is linked to.
    fn check_cache(&self, i: usize) -> Result<(), EngineError> {
        let layers = &self.spec().layers;
        let shape = |layer: usize| layers[layer].attention().map(|a| (a.num_kv_heads, a.head_dim, a.value_dim, a.window));
        let has_own = layers[i].cached().is_some();
        let why = match self.links.caches[i] {
            Some(of) if of == i && !has_own => "it has no keys and values of its own".to_owned(),
            None if has_own => "it has no cache".to_owned(),
            Some(of) if of > i || !self.scope.layers.contains(&of) => {
                format!("it reads the cache of layer {of}, which is not one of {:?}", self.scope.layers.start..i)
            }
            Some(of) if of != i && (shape(of).is_none() || shape(of) != shape(i)) => {
                format!("it reads the cache of layer {of}, whose keys and values have another shape")
            }
            _ => return Ok(()),
        };
        Err(self.cannot("attention", why))
    }

    /// The shard's own query heads of `of`.
    pub fn own_heads(&self, of: usize) -> Result<Span, EngineError> {
        let shard = self.shard();
        shard.even_span(of).ok_or_else(|| self.cannot("attention", format!("{of} heads cannot be cut into {} shards", shard.count)))
    }

    /// The shard's own heads of keys and values. If there are fewer heads than shards, several shards have a copy of the same head.
    pub fn own_kv_heads(&self, of: usize) -> Result<Span, EngineError> {
        let Shard { index, count } = self.shard();
        match of {
            1.. if of < count && count.is_multiple_of(of) => Ok(Span { first: index * of / count, len: 1, of }),
            _ => self.own_heads(of),
        }
    }

    /// The shard's own columns of a matrix whose sums the shards share: some of its slices.
    pub fn own_columns(&self, role: TensorRole, i: usize) -> Result<Span, EngineError> {
        let (weight, shard) = (self.weight(role, i)?, self.shard());
        if shard.is_whole() {
            return Ok(shard.span(weight.cols));
        }
        let slices = Slices::of(weight.cols, weight.quant.block_size, TILE);
        let own = slices.of_shard(shard).map(|(_, columns)| columns);
        own.ok_or_else(|| {
            let (count, block, have) = (shard.count, weight.quant.block_size, slices.ends().len());
            let why = format!("the {} columns of {}, in blocks of {block}", weight.cols, role.name(i));
            self.cannot("linear", format!("{why}, are cut into {have} slices at most, and there are {count} shards"))
        })
    }

    /// The shard's own experts of `of`.
    pub fn own_experts(&self, of: usize) -> Result<Span, EngineError> {
        let shard = self.shard();
        match of >= shard.count {
            true => Ok(shard.span(of)),
            false => Err(self.cannot("experts", format!("{of} experts for {} shards", shard.count))),
        }
    }

    /// out = W · in, or out += W · in. Each shard has some columns of W and their inputs.
    pub fn joined_product(&mut self, i: usize, role: TensorRole, input: BufferId, out: BufferId, add: bool) -> Result<(), EngineError> {
        let own = self.own_columns(role, i)?;
        let width = self.width(input);
        if own.len != width {
            let why = format!("{width} inputs of a shard are not the {} columns of its slices of {}", own.len, role.name(i));
            return Err(self.cannot("linear", why));
        }
        let matrix = self.columns(role, i, own)?;
        let whole = self.shard().is_whole();
        let sums = if whole { out } else { self.partial_sums(out) };
        let products = [(matrix, sums)].into_iter().collect();
        self.op(Op::Linear(Linear { input, products, add: add && whole, in_slices: true }));
        self.exchange(sums, out, add);
        Ok(())
    }

    /// A buffer for a shard's part of sums.
    pub fn partial_sums(&mut self, out: BufferId) -> BufferId {
        let width = self.width(out);
        self.buffer("partial sums", width)
    }

    /// to = the sum of all shards' `from`, or to += it. Nothing if there is one shard.
    pub fn exchange(&mut self, from: BufferId, to: BufferId, add: bool) {
        if !self.shard().is_whole() {
            self.op(Op::Exchange(Exchange { from, to, add }));
        }
    }
}
