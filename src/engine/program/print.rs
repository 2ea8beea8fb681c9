//! Prints a program: a line per op, with what it reads and writes per row of a step.

use std::fmt::Write;

use super::op::*;
use super::parts::{Buffer, LayerOp, Program};
use super::rules::Within;
use super::scope::Span;
use super::tensor::{Slice, TensorId};
use model::Weights;
use model::spec::RunSight;

/// The memory traffic of an op for one row of a step [bytes].
#[derive(Clone, Copy, Default)]
struct Traffic {
    weights: u64,
    read: u64,
    written: u64,
}

impl std::ops::AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        self.weights += other.weights;
        self.read += other.read;
        self.written += other.written;
    }
}

impl Program {
    /// The program as text: the ops in their order with layer, buffers, shapes and weights, and the bytes that each of them reads and
    /// writes for one row. Matrices count in the file's type, everything else as float32.
    pub fn listing(&self, weights: &Weights) -> String {
        let mut out = String::new();
        let mut total = Traffic::default();
        let _ = writeln!(out, "{:>5}  {:10} {:>12} {:>10} {:>10}  what", "layer", "op", "weights", "read", "written");
        for placed in &self.ops {
            let traffic = self.traffic(&placed.op, weights);
            total += traffic;
            let layer = placed.layer.map_or("-".into(), |layer| layer.to_string());
            let Traffic { weights, read, written } = traffic;
            let _ = writeln!(out, "{layer:>5}  {:10} {weights:>12} {read:>10} {written:>10}  {}", placed.op.name(), self.what(placed));
        }
        if let Some(head) = self.head {
            let bytes = self.tensor_bytes(head.matrix, weights);
            let norm = head.norm.map_or("as it is".into(), |norm| self.norm_text(&norm));
            let what = format!("x[{}] · {}, {norm}", self.tensor(head.matrix).cols, self.name(head.matrix));
            let _ = writeln!(out, "{:>5}  {:10} {bytes:>12} {:>10} {:>10}  {what}", "-", "head", "", "");
            total.weights += bytes;
        }
        let Traffic { weights, read, written } = total;
        let count = self.ops.len() + usize::from(self.head.is_some());
        let _ = writeln!(out, "{:>5}  {:10} {weights:>12} {read:>10} {written:>10}  {count} ops", "all", "");
        for cache in &self.caches {
            let (layer, heads, key, value) = (cache.layer, cache.heads, cache.key_dim, cache.value_dim);
            let _ = writeln!(out, "cache of layer {layer}: {heads} heads, keys [{key}], values [{value}]");
        }
        for state in &self.states {
            let _ = writeln!(out, "state of layer {}: {} floats", state.layer, state.width);
        }
        out
    }

    fn traffic(&self, op: &Op, weights: &Weights) -> Traffic {
        let mut sum = Traffic::default();
        let width = |id: BufferId| self.buffer(id).width;
        for used in op.uses(&width) {
            let rows = if used.heads == 1 { self.buffer(used.part.buffer).per_row } else { 1 };
            let bytes = 4 * (rows * used.heads * used.dim) as u64;
            sum.read += if used.kind.reads() { bytes } else { 0 };
            sum.written += if used.kind.writes() { bytes } else { 0 };
        }
        sum.weights = match op {
            // a row of each table
            Op::Embed(op) => [Some(op.table), op.types, op.positions].into_iter().flatten().map(|id| self.row_bytes(id, weights)).sum(),
            _ => op.tensors().into_iter().map(|id| self.tensor_bytes(id, weights)).sum(),
        };
        sum
    }

    /// The bytes of a tensor that a row reads: matrices in the file's type, vectors as float32.
    fn tensor_bytes(&self, id: TensorId, weights: &Weights) -> u64 {
        let tensor = self.tensor(id);
        match tensor.weight(weights).filter(|_| tensor.rows > 1) {
            Some(weight) => (tensor.rows * weight.quant.row_bytes(tensor.cols) * tensor.read) as u64,
            None => 4 * (tensor.rows * tensor.cols * tensor.read.max(1)) as u64,
        }
    }

    fn row_bytes(&self, id: TensorId, weights: &Weights) -> u64 {
        let tensor = self.tensor(id);
        tensor.weight(weights).map_or(0, |weight| weight.quant.row_bytes(weight.cols) as u64)
    }

    /// The name of a tensor, with the part of it that a shard has.
    fn name(&self, id: TensorId) -> String {
        let tensor = self.tensor(id);
        let part = |what: &str, span: Span| format!("{}, {what} {}..{} of {}", tensor.name, span.first, span.range().end, span.of);
        match tensor.slice {
            Slice::Whole => tensor.name.clone(),
            Slice::Rows(span) => part("rows", span),
            Slice::Columns(span) => part("columns", span),
            Slice::Matrices(span) => part("matrices", span),
        }
    }

    fn names(&self, ids: impl IntoIterator<Item = Option<TensorId>>) -> String {
        let names: Vec<String> = ids.into_iter().flatten().map(|id| self.name(id)).collect();
        if names.is_empty() { String::new() } else { format!(", {}", names.join(", ")) }
    }

    fn whole_text(&self, id: BufferId) -> String {
        let Buffer { name, width, per_row, .. } = self.buffer(id);
        if *per_row == 1 { format!("{name}[{width}]") } else { format!("{name}[{per_row}, {width}]") }
    }

    fn part_text(&self, part: Part, heads: usize, dim: usize) -> String {
        let name = &self.buffer(part.buffer).name;
        match (heads, part.first) {
            (1, 0) => format!("{name}[{dim}]"),
            (1, first) => format!("{name}[{first}.., {dim}]"),
            (_, 0) => format!("{name}[{heads} of {dim}]"),
            (_, first) => format!("{name}[{first}.., {heads} of {dim}]"),
        }
    }

    fn norm_text(&self, norm: &NormParams) -> String {
        let kind = if norm.kind == model::NormKind::Rms { "RMS norm" } else { "layer norm" };
        format!("{kind}{}", self.names([norm.weight, norm.bias]))
    }

    fn heads_text(&self, heads: &Heads) -> String {
        let mut text = format!("{}{}", self.part_text(heads.from, heads.count, heads.dim), self.names([heads.bias]));
        if let Some(clamp) = &heads.clamp {
            text += &format!(", clamp {clamp}");
        }
        if let Some((norm, covers)) = &heads.norm {
            let _ = write!(text, ", {} of {covers:?}", self.norm_text(norm));
        }
        if let Some((rope, first)) = &heads.rope {
            text += &format!(", rotation {rope} from {first}");
        }
        if heads.temperature.is_some() {
            text.push_str(", temperature");
        }
        text
    }

    /// Describes the computation of an op.
    fn what(&self, placed: &LayerOp) -> String {
        match &placed.op {
            Op::Embed(op) => {
                format!("{} = {} · {}{}", self.whole_text(op.out), self.name(op.table), op.scale, self.names([op.types, op.positions]))
            }
            Op::Norm(op) => {
                let (to, from) = (self.part_text(op.to, op.heads, op.dim), self.part_text(op.from, op.heads, op.dim));
                format!("{to} = {from}, {}", self.norm_text(&op.params))
            }
            Op::ToLength(op) => format!("{} to length {}", self.part_text(op.at, op.heads, op.dim), op.length),
            Op::Linear(op) => {
                let sign = if op.add { "+=" } else { "=" };
                let products = op.products.iter().map(|(matrix, out)| format!("{} {sign} {}", self.whole_text(out), self.name(matrix)));
                let order = if op.in_slices { ", in slices" } else { "" };
                format!("{} · {}{order}", products.collect::<Vec<_>>().join(", "), self.whole_text(op.input))
            }
            Op::Exchange(op) => {
                let sign = if op.add { "+=" } else { "=" };
                format!("{} {sign} the sum of {} shards' {}", self.whole_text(op.to), self.scope.shard.count, self.whole_text(op.from))
            }
            Op::EachHead(op) => format!("{} = {} · {}", self.whole_text(op.out), self.name(op.stack), self.whole_text(op.input)),
            Op::Activate(op) => {
                let from: Vec<String> = op.gate.into_iter().chain([op.up]).map(|id| self.whole_text(id)).collect();
                let biases = self.names([op.gate_bias, op.up_bias]);
                format!("{} = {:?} of {}{biases}", self.whole_text(op.out), op.activation, from.join(" · "))
            }
            Op::Map(op) => self.map_text(op),
            Op::Heads(op) => {
                format!("{} = {}", self.part_text(op.to, op.heads.count, op.heads.dim), self.heads_text(&op.heads))
            }
            Op::Attention(op) => self.attention_text(op),
            Op::Among(op) => self.among_text(op),
            Op::Mix(op) => self.mix_text(op),
            Op::AddSlice(op) => format!("{} += slice {} of embeddings", self.whole_text(op.to), op.slice),
            Op::Convolve(op) => {
                let (to, from) = (self.part_text(op.to, 1, op.channels), self.part_text(op.from, 1, op.channels));
                format!("{to} = {} rows of {from}{}", op.taps, self.names([Some(op.kernel), op.bias]))
            }
            Op::Scan(op) => {
                let (heads, keys, values) = (op.heads, op.keys, op.values);
                format!("{} = {heads} states [{keys}, {values}] of {}", self.whole_text(op.out), self.part_text(op.x, heads, values))
            }
            Op::Delta(op) => {
                let (heads, keys, values) = (op.heads, op.keys, op.values);
                format!("{} = {heads} states [{keys}, {values}] of {}", self.whole_text(op.out), self.part_text(op.v, heads, values))
            }
            Op::Experts(op) => {
                let (sign, used, count) = (if op.add { "+=" } else { "=" }, op.experts.used, op.own.of);
                let what = format!("{} {sign} {used} of {count} experts [{}]", self.whole_text(op.out), op.dim);
                format!("{what} of {}{}", self.whole_text(op.input), self.names([op.gate, Some(op.up), Some(op.down)]))
            }
            Op::AddShared(op) => {
                let (to, from) = (self.whole_text(op.to), self.whole_text(op.from));
                let by = op
                    .router
                    .map_or(String::new(), |router| format!(" · sigmoid of {} · {}", self.whole_text(op.input), self.name(router)));
                format!("{to} {} {from}{by}", if op.mean { "averaged with" } else { "+=" })
            }
            Op::Predict(op) => format!("{} by {}, {}", self.whole_text(op.streams), self.whole_text(op.router), self.name(op.coefficients)),
            Op::Correct(op) => format!("{} by {}, {}", self.whole_text(op.streams), self.whole_text(op.x), self.name(op.coefficients)),
            Op::Match(op) => {
                let [to, from, like] = [op.to, op.from, op.like].map(|part| self.part_text(part, 1, op.dim));
                format!("{to} {} {from} as long as {like}", if op.add { "+=" } else { "=" })
            }
        }
    }

    fn among_text(&self, op: &Among) -> String {
        let out = self.part_text(op.out, op.queries.count, op.values.dim);
        let [q, k, v] = [&op.queries, &op.keys, &op.values].map(|heads| self.heads_text(heads));
        let within = if op.within == Within::Picture { "picture" } else { "window" };
        format!("{out} = q {q}; k {k}; v {v}; within a {within}")
    }

    fn mix_text(&self, op: &Mix) -> String {
        let (sign, to) = (if op.add { "+=" } else { "=" }, self.whole_text(op.to));
        let from = match op.from {
            MixSource::Rows(from) => self.whole_text(from),
            MixSource::Table(table) => self.name(table),
        };
        format!("{to} {sign} {} of {from}, {:?}", if op.parts == 1 { "rows".into() } else { format!("{} rows", op.parts) }, op.rule)
    }

    fn map_text(&self, op: &Map) -> String {
        let sign = if op.add { "+=" } else { "=" };
        let (to, from) = (self.part_text(op.to, op.heads, op.dim), self.part_text(op.from, op.heads, op.dim));
        let mut text = format!("{to} {sign} {from}");
        if let Some(bias) = &op.bias {
            text += &format!(" + {}", self.name(*bias));
        }
        if op.f != Function::Identity {
            let _ = write!(text, ", {:?}", op.f);
        }
        if let Some((scale, _)) = op.scale {
            let _ = write!(text, " · {}", self.name(scale));
        }
        if op.then != Function::Identity {
            let _ = write!(text, ", {:?}", op.then);
        }
        if op.factor != 1.0 {
            let _ = write!(text, " · {}", op.factor);
        }
        if let Some((by, g)) = op.by {
            let of = if g == Function::Identity { String::new() } else { format!("{g:?} of ") };
            let _ = write!(text, " · {of}{}", self.part_text(by, op.heads, op.dim));
        }
        text
    }

    fn attention_text(&self, op: &Attention) -> String {
        let out = self.part_text(op.out, op.queries.count, op.value_dim);
        let mut text = format!("{out} = q {}", self.heads_text(&op.queries));
        for (name, heads) in [("k", &op.keys), ("v", &op.values)] {
            if let Some(heads) = heads {
                text += &format!("; {name} {}", self.heads_text(heads));
            }
        }
        let _ = write!(text, "; cache of layer {}", self.caches[op.cache].layer);
        if let Some(window) = &op.window {
            text += &format!(", {:?} window of {window}", op.window_kind);
        }
        if let Some(cap) = &op.soft_cap {
            text += &format!(", cap {cap}");
        }
        if let Some(alibi) = &op.alibi {
            text += &format!(", ALiBi {alibi}");
        }
        text.push_str(&self.names([op.sinks]));
        text.push_str(if op.bidirectional { ", both ways" } else { "" });
        text.push_str(match op.run_sight {
            RunSight::Causal => "",
            RunSight::Whole => ", whole runs",
            RunSight::Later => ", whole runs in the window",
        });
        text
    }
}

impl Op {
    /// The name of the op.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Embed(_) => "embed",
            Op::Norm(_) => "norm",
            Op::ToLength(_) => "to_length",
            Op::Linear(_) => "linear",
            Op::Exchange(_) => "exchange",
            Op::EachHead(_) => "each_head",
            Op::Activate(_) => "activate",
            Op::Map(_) => "map",
            Op::Heads(_) => "heads",
            Op::Attention(_) => "attention",
            Op::Among(_) => "among",
            Op::Mix(_) => "mix",
            Op::AddSlice(_) => "add_slice",
            Op::Convolve(_) => "convolve",
            Op::Scan(_) => "scan",
            Op::Delta(_) => "delta",
            Op::Experts(_) => "experts",
            Op::AddShared(_) => "add_shared",
            Op::Predict(_) => "predict",
            Op::Correct(_) => "correct",
            Op::Match(_) => "match",
        }
    }
}
