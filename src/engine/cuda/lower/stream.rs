//! Norms, and how they share work with the branches before them and the products behind them.

use super::super::sys;
use super::lowering::Lowering;
use super::parts::{NO_NORM, NONE, copy};
use crate::EngineError;
use crate::program::{Function, Map, Norm, NormParams, Op, ToLength};
use model::NormKind;

impl Lowering<'_> {
    pub fn norm(&mut self, op: &Norm) -> Result<(), EngineError> {
        if self.is_of_stream(op) {
            let norm = self.fused(&op.params, true);
            if self.is_for_next_product(op) {
                self.held = Some((op.to.buffer, norm));
            } else {
                let out = self.buffer(op.to.buffer);
                self.op(sys::pen_normalise { norm, out });
            }
            return Ok(());
        }
        if let Some(weight) = self.branch_norm(op) {
            // the next norm of the stream adds the branch
            self.pending = Some((op.to.buffer, self.vector(weight)));
            self.at += 1;
            return Ok(());
        }
        let (from, to) = (self.part(op.from), self.part(op.to));
        let norm = self.group_norm([from, to], [op.heads, op.dim], &op.params);
        self.op(sys::pen_group_norm { own: u32::from(op.own), ..norm });
        Ok(())
    }

    /// Whether a norm reads the stream and its result is float16, so that it can also add a branch, and a product can compute it.
    fn is_of_stream(&self, op: &Norm) -> bool {
        let has_form = op.params.kind == NormKind::Layer || op.params.bias.is_none();
        has_form && op.from.buffer == self.from.stream && op.to.buffer != op.from.buffer && self.is_half[op.to.buffer.0]
    }

    /// Whether the next op is the only one that reads the result of a norm, and a product that computes the norm itself.
    fn is_for_next_product(&self, op: &Norm) -> bool {
        let Some(Op::Linear(linear)) = self.next() else { return false };
        if linear.input != op.to.buffer || !self.computes_norms(linear) {
            return false;
        }
        let width = |id| self.from.buffer(id).width;
        let uses = self.from.ops[self.at + 2..].iter().flat_map(|placed| placed.op.uses(&width));
        // an op lists what it reads before what it writes
        uses.into_iter().find(|used| used.part.buffer == op.to.buffer).is_none_or(|used| !used.kind.reads())
    }

    /// The weight of an RMS norm of a branch that the next op adds to the stream.
    fn branch_norm(&self, op: &Norm) -> Option<crate::program::TensorId> {
        let is_rms = op.params.kind == NormKind::Rms && op.params.bias.is_none() && op.heads == 1 && !op.own;
        let whole = op.from == op.to && op.dim == self.from.buffer(op.from.buffer).width;
        let Some(Op::Map(map)) = self.next() else { return None };
        let is_added = is_plain_add(map) && map.from.buffer == op.to.buffer && map.to.buffer == self.from.stream;
        op.params.weight.filter(|_| is_rms && whole && is_added && map.factor == 1.0)
    }

    /// The norm of the stream as a product takes it. It adds a pending branch to the stream first.
    pub fn fused(&mut self, norm: &NormParams, keeps_stream: bool) -> sys::pen_norm {
        let (eps, weight) = (norm.eps, self.vector_or_none(norm.weight));
        if norm.kind == NormKind::Layer {
            self.settle();
            let (x, bias) = (self.buffer(self.from.stream), self.vector_or_none(norm.bias));
            return sys::pen_norm { kind: sys::PEN_LAYER_NORM, x, weight, bias, eps, ..NO_NORM };
        }
        let x = self.buffer(self.from.stream);
        let mut of = sys::pen_norm { kind: sys::PEN_RMS_NORM, x, weight, eps, ..NO_NORM };
        if let Some((branch, branch_weight)) = self.pending.take() {
            (of.branch, of.branch_weight) = (self.buffer(branch), branch_weight);
            if keeps_stream {
                let hidden = self.from.buffer(self.from.stream).width;
                // two buffers take turns
                let other = self.shared_floats("x, moved", hidden);
                let other = if x == other { self.shared_floats("x", hidden) } else { other };
                self.shared.entry(("x", hidden, self.rows)).or_insert(x);
                of.x_out = other;
                self.move_to(self.from.stream, other, 0);
                self.rounded.remove(&self.from.stream);
            }
        }
        of
    }

    /// Adds a pending branch to the stream before an op that reads or writes either, unless that op is a norm that adds it.
    pub fn settle_for(&mut self, op: &Op) {
        let Some((branch, _)) = self.pending else { return };
        if matches!(op, Op::Norm(norm) if self.is_of_stream(norm)) {
            return;
        }
        let (from, stream) = (self.from, self.from.stream);
        let touches = |used: &crate::program::uses::Use| used.part.buffer == branch || used.part.buffer == stream;
        if op.uses(&|id| from.buffer(id).width).iter().any(touches) {
            self.settle();
        }
    }

    pub fn settle(&mut self) {
        let Some((branch, weight)) = self.pending.take() else { return };
        self.rows = self.from.buffer(self.from.stream).rows;
        let hidden = self.from.buffer(branch).width;
        let (branch, x) = (self.buffer(branch), self.buffer(self.from.stream));
        let at = sys::pen_part { buffer: branch, first: 0, stride: 0 };
        let params = NormParams { kind: NormKind::Rms, weight: None, bias: None, eps: self.weights.spec.norm_eps };
        let norm = self.group_norm([at; 2], [1, hidden], &params);
        self.op(sys::pen_group_norm { weight, ..norm });
        self.op(sys::pen_map { add: 1, ..copy(at, sys::pen_part { buffer: x, ..at }, 1, hidden) });
        self.rounded.remove(&self.from.stream);
    }

    /// Adds a pending branch to the stream at the end of a range of layers, with the bits of the op that does so in the whole model. If
    /// that is a norm, its own result is not used, so any weights will do. The next layer begins as those of the range do.
    pub fn settle_at_end(&mut self) {
        let first = self.from.ops.iter().find(|placed| placed.layer.is_some()).map(|placed| &placed.op);
        let begins_with_norm = matches!(first, Some(Op::Norm(norm)) if self.is_of_stream(norm));
        let Some((branch, weight)) = self.pending.filter(|_| begins_with_norm) else { return self.settle() };
        let unused = self.shared_halves("unused rows", self.from.buffer(branch).width);
        let params = NormParams { kind: NormKind::Rms, weight: None, bias: None, eps: self.weights.spec.norm_eps };
        let norm = self.fused(&params, true);
        self.op(sys::pen_normalise { norm: sys::pen_norm { weight, ..norm }, out: unused });
    }

    /// Normalises whole rows in place.
    pub fn norm_row(&mut self, buffer: u32, dim: usize, params: &NormParams) {
        let at = sys::pen_part { buffer, first: 0, stride: 0 };
        let norm = self.group_norm([at; 2], [1, dim], params);
        self.op(norm);
    }

    /// A norm of each head alone.
    pub fn group_norm(&mut self, [from, to]: [sys::pen_part; 2], [heads, dim]: [usize; 2], norm: &NormParams) -> sys::pen_group_norm {
        sys::pen_group_norm {
            r#in: from,
            out: to,
            kind: if norm.kind == NormKind::Layer { sys::PEN_LAYER_NORM } else { sys::PEN_RMS_NORM },
            heads: heads as u32,
            dim: dim as u32,
            weight: self.vector_or_none(norm.weight),
            bias: self.vector_or_none(norm.bias),
            own: 0,
            eps: norm.eps,
            length: 0.0,
        }
    }

    pub fn scale_to_length(&mut self, op: &ToLength) -> Result<(), EngineError> {
        let at = self.part(op.at);
        self.op(sys::pen_group_norm {
            r#in: at,
            out: at,
            kind: sys::PEN_LENGTH,
            heads: op.heads as u32,
            dim: op.dim as u32,
            weight: NONE,
            bias: NONE,
            own: 0,
            eps: op.eps,
            length: op.length,
        });
        Ok(())
    }
}

/// Whether a map adds rows and does nothing else but to scale them.
pub fn is_plain_add(map: &Map) -> bool {
    let nothing = map.bias.is_none() && map.f == Function::Identity && map.scale.is_none() && map.by.is_none();
    map.add && nothing && map.heads == 1
}
