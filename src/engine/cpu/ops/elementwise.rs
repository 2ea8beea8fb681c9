//! Applies functions to elements.

use super::super::activation::{Activate as Activation, sigmoid};
use super::super::simd::{Gate, Kernels};
use super::step::{Kernel, Step};
use super::tensors::Tensors;
use crate::program::{Activate, Function, Map};
use model::Activation as Kind;

pub struct MapKernel {
    op: Map,
    bias: Option<Vec<f32>>,  // [heads · dim]
    scale: Option<Vec<f32>>, // [heads · dim], but one per group for the decays of a recurrence
}

impl MapKernel {
    pub fn new(op: &Map, tensors: &Tensors) -> Self {
        let mut op = *op;
        let has_row_per_head = [op.from, op.to].iter().any(|part| tensors.program.buffer(part.buffer).per_row > 1);
        let is_dense = |stride: usize| stride == op.dim;
        if !has_row_per_head && is_dense(op.from.stride) && is_dense(op.to.stride) && op.by.is_none_or(|(by, _)| is_dense(by.stride)) {
            (op.heads, op.dim) = (1, op.heads * op.dim);
        }
        let scale = op.scale.map(|(scale, group)| {
            let all = tensors.vector(scale);
            if op.then == Function::Exp { all } else { all.iter().flat_map(|&x| std::iter::repeat_n(x, group)).collect() }
        });
        Self { op, bias: tensors.optional(op.bias), scale }
    }

    /// y = factor · then(scale · f(y + bias)) · g(by). `first` is the first of the elements in the row.
    fn apply(&self, kernels: &Kernels, y: &mut [f32], by: Option<&[f32]>, first: usize) {
        let op = &self.op;
        let bias = self.bias.as_deref().map(|bias| &bias[first..][..y.len()]);
        match (op.f, bias) {
            (Function::Softplus, Some(bias)) => kernels.softplus(y, bias),
            (f, bias) => {
                if let Some(bias) = bias {
                    kernels.add_to(y, bias);
                }
                match (f, op.by, by) {
                    (Function::Activation(kind), Some((_, Function::Identity)), Some(by)) => {
                        return Activation { kind, xielu: [0.0; 4] }.gated(kernels, y, by);
                    }
                    _ => apply(kernels, f, y),
                }
            }
        }
        if let (Some(scale), Some((_, group))) = (&self.scale, op.scale) {
            if op.then == Function::Exp {
                y.chunks_mut(group).zip(&scale[first / group..]).for_each(|(y, &factor)| kernels.exp(y, factor));
            } else {
                y.iter_mut().zip(&scale[first..]).for_each(|(y, scale)| *y *= scale);
                apply(kernels, op.then, y);
            }
        }
        if op.factor != 1.0 {
            y.iter_mut().for_each(|y| *y *= op.factor);
        }
        match (op.by, by) {
            (Some((_, Function::Sigmoid)), Some(by)) => kernels.gate(y, by, Gate::Sigmoid),
            (Some((_, Function::Activation(Kind::Silu))), Some(by)) => kernels.gate(y, by, Gate::Silu),
            (Some(_), Some(by)) => y.iter_mut().zip(by).for_each(|(y, by)| *y *= by),
            _ => {}
        }
    }

    /// to += y
    fn add(&self, kernels: &Kernels, to: &mut [f32], from: &[f32], by: Option<&[f32]>, first: usize) {
        let op = &self.op;
        let is_plain = self.bias.is_none() && op.f == Function::Identity && op.then == Function::Identity && op.by.is_none();
        match &self.scale {
            None if is_plain && op.factor == 1.0 => kernels.add_to(to, from),
            None if is_plain => to.iter_mut().zip(from).for_each(|(to, from)| *to += from * op.factor),
            Some(scale) if is_plain && op.factor == 1.0 => kernels.multiply_add(to, from, &scale[first..][..to.len()]),
            _ => {
                let mut y = from.to_vec();
                self.apply(kernels, &mut y, by, first);
                kernels.add_to(to, &y);
            }
        }
    }
}

fn apply(kernels: &Kernels, f: Function, y: &mut [f32]) {
    match f {
        Function::Identity => {}
        Function::Sigmoid => y.iter_mut().for_each(|y| *y = sigmoid(*y)),
        Function::Tanh => y.iter_mut().for_each(|y| *y = y.tanh()),
        Function::Softplus => kernels.softplus(y, &vec![0.0; y.len()]),
        Function::Exp => kernels.exp(y, 1.0),
        Function::Activation(kind) => Activation { kind, xielu: [0.0; 4] }.apply(kernels, y),
    }
}

impl Kernel for MapKernel {
    fn run(&self, step: &mut Step) {
        let (op, kernels) = (&self.op, step.kernels);
        let in_place = op.from.buffer == op.to.buffer;
        step.buffers.update(step.pool, op.to, [op.heads, op.dim], |buffers, i, head, to| {
            let first = head * op.dim;
            let by = op.by.map(|(by, _)| buffers.head(by, (i, head), op.dim));
            if in_place {
                return self.apply(kernels, to, by, first);
            }
            let from = buffers.head(op.from, (i, head), op.dim);
            if op.add {
                return self.add(kernels, to, from, by, first);
            }
            to.copy_from_slice(from);
            self.apply(kernels, to, by, first);
        });
    }
}

pub struct ActivateKernel {
    op: Activate,
    gate_bias: Option<Vec<f32>>,
    up_bias: Option<Vec<f32>>,
    activation: Activation,
}

impl ActivateKernel {
    pub fn new(op: &Activate, tensors: &Tensors) -> Self {
        let activation = Activation { kind: op.activation, xielu: op.xielu };
        Self { op: *op, gate_bias: tensors.optional(op.gate_bias), up_bias: tensors.optional(op.up_bias), activation }
    }
}

impl Kernel for ActivateKernel {
    /// Computes in place, then exchanges the input and the output.
    fn run(&self, step: &mut Step) {
        let (op, kernels) = (&self.op, step.kernels);
        let add = |row: &mut [f32], bias: &Option<Vec<f32>>| bias.iter().for_each(|bias| kernels.add_to(row, bias));
        let mut up = step.buffers.take(op.up);
        if let Some(id) = op.gate {
            if self.up_bias.is_some() {
                up.for_each(step.pool, |_, row| add(row, &self.up_bias));
            }
            let mut gate = step.buffers.take(id);
            gate.for_each(step.pool, |i, row| {
                add(row, &self.gate_bias);
                if let Some(cutoff) = op.cutoff {
                    keep_largest(row, cutoff);
                }
                self.activation.gated(kernels, row, up.row(i));
            });
            step.buffers.put(id, gate);
        } else {
            up.for_each(step.pool, |_, row| {
                add(row, &self.up_bias);
                self.activation.apply(kernels, row);
            });
        }
        step.buffers.put(op.up, up);
        step.buffers.swap(op.gate.unwrap_or(op.up), op.out);
    }
}

/// row = max(row − (mean + cutoff · deviation), 0)
fn keep_largest(row: &mut [f32], cutoff: f32) {
    let count = row.len() as f32;
    let mean = row.iter().sum::<f32>() / count;
    let variance = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / (count - 1.0).max(1.0);
    let least = mean + cutoff * variance.sqrt();
    // the product keeps a NaN visible
    row.iter_mut().for_each(|x| *x = (*x - least).max(0.0) + 0.0 * *x);
}
