//! [`DeviceProgram`]: a program in the form that the C side runs.

use std::fmt::Write;

use super::super::sys;
use super::op::Op;
use super::tensor::Tensor;
use crate::program::{RowSet, Rule, Within};

/// Stands for no tensor and for no buffer.
pub const NONE: u32 = sys::PEN_NONE;

/// A program in the C side's form.
pub struct DeviceProgram {
    pub tensors: Vec<Tensor>,
    pub buffers: Vec<sys::pen_buffer>,
    /// The caches that layers read and write.
    pub caches: Vec<sys::pen_cache>,
    /// Floats of recurrent state per sequence, for each layer that has one.
    pub states: Vec<u32>,
    /// The buffers of the rows that the program begins with, one per shard. None if it begins with tokens.
    pub inputs: Vec<u32>,
    pub ops: Vec<Op>,
    /// The set of rows that each op works on.
    pub op_rows: Vec<RowSet>,
    /// The rules of an encoder's lists of mixed rows.
    pub mixes: Vec<Rule>,
    /// An encoder's lists of rows that see each other: what they see, and the set of the rows that do.
    pub spans: Vec<(Within, RowSet)>,
    /// The buffer of the rows that the program ends with. None if it ends with logits.
    pub output: Option<u32>,
    pub head: sys::pen_head,
}

impl Default for DeviceProgram {
    /// A program without ops.
    fn default() -> Self {
        Self {
            tensors: Vec::new(),
            buffers: Vec::new(),
            caches: Vec::new(),
            states: Vec::new(),
            inputs: Vec::new(),
            ops: Vec::new(),
            op_rows: Vec::new(),
            mixes: Vec::new(),
            spans: Vec::new(),
            output: None,
            head: sys::pen_head { norm: NO_NORM, w: NONE, bias: NONE, scale: 1.0, soft_cap: 0.0 },
        }
    }
}

impl DeviceProgram {
    pub fn push(&mut self, op: impl Into<Op>, rows: RowSet) {
        self.ops.push(op.into());
        self.op_rows.push(rows);
    }

    /// The ops in the C side's form. They point into the program's ops.
    pub fn raw_ops(&self) -> Vec<sys::pen_op> {
        self.ops.iter().zip(&self.op_rows).map(|(op, &rows)| op.raw(row_set(rows))).collect()
    }

    /// The program as text: the tensors, the buffers and the ops with their arguments, which name tensors and buffers by their numbers.
    pub fn listing(&self) -> String {
        let mut out = String::from("tensors: rows × columns of each matrix\n");
        for (i, tensor) in self.tensors.iter().enumerate() {
            let sys::pen_tensor { kind, r#type, rows, cols, count, .. } = tensor.desc;
            let kind = ["vector", "matrix", "upper half", "lower half"].get(kind as usize).unwrap_or(&"");
            let _ = writeln!(out, "{i:>5}  {kind:10} {count:>4} of {rows} × {cols}, type {type}  {}", tensor.name);
        }
        out.push_str("buffers: elements per row\n");
        for (i, sys::pen_buffer { r#type, width, per_token, .. }) in self.buffers.iter().enumerate() {
            let kind = if *r#type == sys::PEN_F16 { "float16" } else { "float32" };
            let _ = writeln!(out, "{i:>5}  {kind:10} {per_token:>4} of {width}");
        }
        out.push_str("ops\n");
        for input in &self.inputs {
            let _ = writeln!(out, "{:>5}  rows of the stream in buffer {input}", "");
        }
        for (i, op) in self.ops.iter().enumerate() {
            let _ = writeln!(out, "{i:>5}  {op:?}");
        }
        let _ = match self.output {
            None => writeln!(out, "{:>5}  {:?}", "", self.head),
            Some(output) => writeln!(out, "{:>5}  rows of the stream in buffer {output}", ""),
        };
        // stands for no tensor and no buffer
        out.replace(&NONE.to_string(), "-")
    }
}

/// The C side's number of a set of rows.
pub fn row_set(rows: RowSet) -> u32 {
    match rows {
        RowSet::Step => sys::PEN_ROWS_STEP,
        RowSet::Patches => sys::PEN_ROWS_PATCHES,
        RowSet::Tower => sys::PEN_ROWS_TOWER,
        RowSet::Cells => sys::PEN_ROWS_CELLS,
        RowSet::Queries => sys::PEN_ROWS_QUERIES,
        RowSet::Broken => sys::PEN_ROWS_BROKEN,
    }
}

pub const NO_PART: sys::pen_part = sys::pen_part { buffer: NONE, first: 0, stride: 0 };
pub const NO_NORM: sys::pen_norm =
    sys::pen_norm { kind: sys::PEN_NO_NORM, x: NONE, branch: NONE, branch_weight: NONE, x_out: NONE, weight: NONE, bias: NONE, eps: 0.0 };

/// Copies `dim` elements of each head. Every elementwise op starts from this one.
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
