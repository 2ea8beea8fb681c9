//! Products, and the activation of a feed-forward part.

use super::super::sys;
use super::convert::activation;
use super::lowering::Lowering;
use super::parts::{NO_NORM, NONE};
use crate::EngineError;
use crate::program::slices::MAX_SLICES;
use crate::program::{Activate, BufferId, EachHead, Heads, Linear, Op, TensorId};
use model::Activation;

impl Lowering<'_> {
    /// Whether products can compute the norm of their input: they are one op of the device, and no other op reads the result.
    pub fn computes_norms(&self, op: &Linear) -> bool {
        let behind = self.from.ops.get(self.at + 2).map(|step| &step.op);
        match behind {
            Some(Op::Attention(attention)) if op.products.iter().any(|(_, out)| out == attention.queries.from.buffer) => {
                self.finishes_heads(attention, op)
            }
            Some(Op::Activate(activate)) if op.products.iter().any(|(_, out)| out == activate.up) => true,
            Some(Op::Among(among)) if op.products.iter().any(|(_, out)| out == among.queries.from.buffer) => true,
            _ => op.products.iter().count() == 1,
        }
    }

    pub fn linear(&mut self, op: &Linear) -> Result<(), EngineError> {
        let products: Vec<(TensorId, BufferId)> = op.products.iter().collect();
        match self.next() {
            Some(Op::Attention(attention)) if products[0].1 == attention.queries.from.buffer => {
                self.heads_side_by_side(op.input, &products, &[Some(attention.queries), attention.keys, attention.values])
            }
            Some(Op::Among(among)) if products[0].1 == among.queries.from.buffer => {
                self.heads_side_by_side(op.input, &products, &[among.queries, among.keys, among.values].map(Some))
            }
            Some(Op::Activate(activate)) if products.last().map(|(_, out)| *out) == Some(activate.up) => {
                if let Some(both) = self.gate_and_up(activate, &products)? {
                    self.at += 1;
                    let out = self.buffer(activate.out);
                    let epilogue = epilogue(activate.activation).unwrap_or(sys::PEN_STORE);
                    return self.products(op.input, &[both], out, epilogue);
                }
                self.side_by_side(op.input, &products, "gate and up")
            }
            _ if op.in_slices => products.into_iter().try_for_each(|product| self.joined_product(op.input, product, op.add)),
            _ => products.into_iter().try_for_each(|product| self.product(op.input, product, op.add)),
        }
    }

    /// Products of which q, k and v lie side by side. A gate has its own buffer.
    fn heads_side_by_side(
        &mut self,
        input: BufferId,
        products: &[(TensorId, BufferId)],
        heads: &[Option<Heads>],
    ) -> Result<(), EngineError> {
        let is_of_heads = |id: BufferId| heads.iter().flatten().any(|heads| heads.from.buffer == id);
        let together = products.iter().take_while(|(_, out)| is_of_heads(*out)).count();
        let (qkv, others) = products.split_at(together);
        self.side_by_side(input, qkv, "qkv")?;
        others.iter().try_for_each(|&product| self.product(input, product, false))
    }

    /// The matrix that gate and up share, if the product itself can apply the activation.
    fn gate_and_up(&mut self, activate: &Activate, products: &[(TensorId, BufferId)]) -> Result<Option<u32>, EngineError> {
        let [(gate, _), (up, _)] = products else { return Ok(None) };
        let plain = activate.gate_bias.is_none() && activate.up_bias.is_none() && activate.cutoff.is_none();
        if !plain || epilogue(activate.activation).is_none() {
            return Ok(None);
        }
        Ok(self.pair([*gate, *up])?.map(|[both, _]| both))
    }

    /// One product, in the buffer of its own.
    fn product(&mut self, input: BufferId, (matrix, out): (TensorId, BufferId), add: bool) -> Result<(), EngineError> {
        let (matrix, out) = (self.matrix(matrix)?, self.buffer(out));
        self.products(input, &[matrix], out, if add { sys::PEN_ADD } else { sys::PEN_STORE })
    }

    /// Products of one input, which lie next to each other in a buffer.
    fn side_by_side(&mut self, input: BufferId, products: &[(TensorId, BufferId)], name: &'static str) -> Result<(), EngineError> {
        let width = products.iter().map(|(matrix, _)| self.rows(*matrix)).sum();
        let buffer = self.shared_floats(name, width);
        let (mut matrices, mut first) = (Vec::new(), 0);
        for &(matrix, out) in products {
            matrices.push(self.matrix(matrix)?);
            self.move_to(out, buffer, first);
            first += self.rows(matrix);
        }
        self.products(input, &matrices, buffer, sys::PEN_STORE)
    }

    fn products(&mut self, input: BufferId, matrices: &[u32], out: u32, epilogue: u32) -> Result<(), EngineError> {
        let op = self.products_of(input, matrices, out);
        self.op(sys::pen_linear { epilogue, ..op });
        Ok(())
    }

    /// The op of some products, all columns of which are added slice by slice.
    pub fn products_of(&mut self, input: BufferId, matrices: &[u32], out: u32) -> sys::pen_linear {
        let norm = self.held.take().filter(|(id, _)| *id == input).map(|(_, norm)| norm);
        let from = if norm.is_some() { self.buffer(input) } else { self.factor(input) };
        let rows = |i: usize| matrices.get(i).map_or(0, |&matrix| self.out.tensors[matrix as usize].desc.rows);
        let at = |i: usize| matrices.get(i).copied().unwrap_or(NONE);
        sys::pen_linear {
            norm: norm.unwrap_or(NO_NORM),
            r#in: from,
            first: 0,
            w0: at(0),
            w1: at(1),
            w2: at(2),
            offset1: rows(0),
            offset2: rows(0) + rows(1),
            out,
            epilogue: sys::PEN_STORE,
            slices: MAX_SLICES as u32,
            halves: 0,
        }
    }

    pub fn each_head(&mut self, op: &EachHead) -> Result<(), EngineError> {
        if !self.from.scope.shard.is_whole() {
            return Err(self.cannot("a product of each head"));
        }
        let (stack, from, out) = (self.matrix(op.stack)?, self.factor(op.input), self.buffer(op.out));
        self.op(sys::pen_each_head { stack, r#in: from, out, heads: op.heads as u32 });
        Ok(())
    }

    pub fn activate(&mut self, op: &Activate) -> Result<(), EngineError> {
        let [xielu0, xielu1, xielu2, xielu3] = op.xielu;
        // gate and up lie side by side
        let gate_up = self.buffer(op.up);
        let (gate_bias, up_bias) = (self.vector_or_none(op.gate_bias), self.vector_or_none(op.up_bias));
        let out = self.buffer(op.out);
        self.op(sys::pen_activate {
            gate_up,
            gate_bias,
            up_bias,
            out,
            dim: op.dim as u32,
            gated: u32::from(op.gate.is_some()),
            activation: activation(op.activation),
            cutoff: op.cutoff.unwrap_or(0.0),
            xielu0,
            xielu1,
            xielu2,
            xielu3,
        });
        Ok(())
    }
}

/// The epilogue of a product of gate and up that applies an activation.
fn epilogue(kind: Activation) -> Option<u32> {
    match kind {
        Activation::Silu => Some(sys::PEN_SILU_MUL),
        Activation::Gelu => Some(sys::PEN_GELU_MUL),
        _ => None,
    }
}
