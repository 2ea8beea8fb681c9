//! Checks that a program's shapes fit and that nothing is read before it is written.

use super::op::*;
use super::parts::{Buffer, EncoderProgram, Head, LayerOp, Program};
use super::uses::{Use, UseKind};
use crate::EngineError;

impl Program {
    /// Checks every op.
    ///
    /// # Errors
    /// [`EngineError::Tensor`] names the op, its layer and what does not fit.
    pub fn check(&self, hidden: usize) -> Result<(), EngineError> {
        let mut is_written = vec![false; self.buffers.len()];
        if let Some(stream) = is_written.get_mut(self.stream.0) {
            *stream = self.scope.layers.start > 0;
        }
        self.check_ops(&mut is_written)?;
        let stream = self.buffers.get(self.stream.0).filter(|stream| stream.width == hidden && stream.per_row == 1);
        let fits =
            |head: Head| self.tensors.get(head.matrix.0).is_some_and(|matrix| [matrix.cols, matrix.rows] == [hidden, head.vocab.len]);
        match stream {
            Some(_) if is_written[self.stream.0] && self.head.is_none_or(fits) => Ok(()),
            _ => Err(EngineError::Tensor(format!("the head does not fit a stream of {hidden} elements"))),
        }
    }

    fn check_ops(&self, is_written: &mut [bool]) -> Result<(), EngineError> {
        self.ops.iter().try_for_each(|placed| {
            let named = |why: String| EngineError::Tensor(format!("{}: {why}", placed.place()));
            self.check_uses(placed, is_written).map_err(named)?;
            self.check_shapes(&placed.op).map_err(named)
        })
    }

    fn check_uses(&self, placed: &LayerOp, is_written: &mut [bool]) -> Result<(), String> {
        let width = |id: BufferId| self.buffers.get(id.0).map_or(0, |buffer| buffer.width);
        let uses = placed.op.uses(&width);
        for used in &uses {
            let id = used.part.buffer.0;
            let buffer = self.buffers.get(id).ok_or_else(|| format!("there is no buffer {id}"))?;
            used.check(buffer)?;
            if used.kind.reads() && !is_written[id] {
                return Err(format!("`{}` is read before it is written", buffer.name));
            }
        }
        uses.iter().filter(|used| used.kind.writes()).for_each(|used| is_written[used.part.buffer.0] = true);
        match placed.op.tensors().into_iter().find(|id| id.0 >= self.tensors.len()) {
            Some(id) => Err(format!("there is no tensor {}", id.0)),
            None => Ok(()),
        }
    }

    fn check_shapes(&self, op: &Op) -> Result<(), String> {
        let width = |id: BufferId| self.buffers[id.0].width;
        let len = |id: super::tensor::TensorId| self.tensors[id.0].rows * self.tensors[id.0].cols * self.tensors[id.0].count;
        let fits = |what: &str, got: usize, due: usize| match got == due {
            true => Ok(()),
            false => Err(format!("{what} has {got} elements, expected {due}")),
        };
        let matrix = |id: super::tensor::TensorId, input: usize, out: usize| {
            let tensor = self.tensor(id);
            match [tensor.cols, tensor.rows] == [input, out] {
                true => Ok(()),
                false => Err(format!("{} is [{}, {}], expected [{out}, {input}]", tensor.name, tensor.rows, tensor.cols)),
            }
        };
        match op {
            Op::Linear(op) => op.products.iter().try_for_each(|(id, out)| matrix(id, width(op.input), width(out))),
            Op::Exchange(op) => fits("what shards exchange", width(op.from), width(op.to)),
            Op::EachHead(op) => matrix(op.stack, width(op.input), width(op.out)),
            Op::Embed(op) => fits("the table's row", self.tensor(op.table).cols, width(op.out)),
            Op::Norm(op) => {
                let due = if op.own { op.heads * op.dim } else { op.dim };
                let weights = [op.params.weight, op.params.bias];
                weights.into_iter().flatten().try_for_each(|id| fits(&self.tensor(id).name, len(id), due))
            }
            Op::Map(op) => {
                let scale = op.scale.map(|(id, group)| fits(&self.tensor(id).name, len(id) * group, op.heads * op.dim));
                let bias = op.bias.map(|id| fits(&self.tensor(id).name, len(id), op.heads * op.dim));
                scale.into_iter().chain(bias).collect()
            }
            Op::Activate(op) => {
                let biases = [op.gate_bias, op.up_bias].into_iter().flatten();
                biases.into_iter().try_for_each(|id| fits(&self.tensor(id).name, len(id), op.dim))
            }
            Op::Experts(op) => {
                let hidden = width(op.input);
                op.gate.into_iter().chain([op.up]).try_for_each(|id| matrix(id, hidden, op.dim))?;
                matrix(op.down, op.dim, hidden)?;
                let stacks = op.gate.into_iter().chain([op.up, op.down]);
                stacks.into_iter().try_for_each(|id| match self.tensor(id).count == op.own.len {
                    true => Ok(()),
                    false => Err(format!("{} has {} experts, expected {}", self.tensor(id).name, self.tensor(id).count, op.own.len)),
                })
            }
            Op::AddShared(op) => fits("the shared expert", width(op.from), width(op.to)),
            Op::Convolve(op) => fits(&self.tensor(op.kernel).name, len(op.kernel), op.channels * op.taps),
            Op::Among(op) => {
                let width = |heads: &Heads| heads.count * heads.dim;
                fits("the heads of the values", width(&op.values), op.keys.count * op.values.dim)?;
                fits("a key", op.keys.dim, op.queries.dim)
            }
            Op::Mix(op) => {
                let from = match op.from {
                    MixSource::Rows(from) => width(from),
                    MixSource::Table(table) => self.tensor(table).cols,
                };
                fits("a row of parts", from * op.parts, width(op.to))
            }
            Op::AddSlice(op) => fits("a slice of embeddings", self.buffer(self.stream).width, width(op.to)),
            Op::Attention(op) => self.caches.get(op.cache).map(|_| ()).ok_or_else(|| format!("there is no cache {}", op.cache)),
            _ => Ok(()),
        }
    }
}

impl EncoderProgram {
    /// Checks every op, and that the output has rows of `width` floats.
    ///
    /// # Errors
    /// [`EngineError::Tensor`] names the op, its layer and what does not fit.
    pub fn check(&self, width: usize) -> Result<(), EngineError> {
        let mut is_written = vec![false; self.program.buffers.len()];
        is_written[self.input.0] = true;
        self.program.check_ops(&mut is_written)?;
        match is_written[self.output.0] && self.program.buffer(self.output).width == width {
            true => Ok(()),
            false => Err(EngineError::Tensor(format!("the encoder does not give rows of {width} elements"))),
        }
    }
}

impl Use {
    /// Checks that the heads lie within a buffer's rows.
    fn check(&self, buffer: &Buffer) -> Result<(), String> {
        let end = match buffer.per_row {
            1 => self.part.first + self.heads.saturating_sub(1) * self.part.stride + self.dim,
            _ => self.part.first + self.dim,
        };
        let kind = if self.kind == UseKind::Factor { "as a factor" } else { "" };
        match end <= buffer.width {
            true => Ok(()),
            false => Err(format!("element {end} of `{}` is used {kind}, and its rows have {}", buffer.name, buffer.width)),
        }
    }
}

impl LayerOp {
    /// The name of the op and its layer, for errors.
    fn place(&self) -> String {
        let layer = self.layer.map_or("outside the layers".to_owned(), |layer| format!("in layer {layer}"));
        format!("op {} {layer}", self.op.name())
    }
}
