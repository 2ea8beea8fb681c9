//! Lists what an op reads and writes.

use super::op::*;
use super::tensor::TensorId;

/// Elements that an op reads or writes: `heads` heads of `dim` elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Use {
    pub part: Part,
    pub heads: usize,
    pub dim: usize,
    pub kind: UseKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UseKind {
    Read,
    /// Read as the rows that a matrix multiplies.
    Factor,
    Write,
    /// Added to.
    Update,
}

impl UseKind {
    pub fn reads(self) -> bool {
        self != UseKind::Write
    }

    pub fn writes(self) -> bool {
        matches!(self, UseKind::Write | UseKind::Update)
    }
}

/// Collects the uses of an op. `width` is the width of a buffer.
struct Uses<'a> {
    all: Vec<Use>,
    width: &'a dyn Fn(BufferId) -> usize,
}

impl Uses<'_> {
    fn part(&mut self, kind: UseKind, part: Part, heads: usize, dim: usize) {
        self.all.push(Use { part, heads, dim, kind });
    }

    fn whole(&mut self, kind: UseKind, buffer: BufferId) {
        let dim = (self.width)(buffer);
        self.part(kind, Part { buffer, first: 0, stride: 0 }, 1, dim);
    }

    fn result(&mut self, add: bool, part: Part, heads: usize, dim: usize) {
        self.part(if add { UseKind::Update } else { UseKind::Write }, part, heads, dim);
    }
}

impl Op {
    /// The parts of buffers that the op reads and writes.
    pub fn uses(&self, width: &dyn Fn(BufferId) -> usize) -> Vec<Use> {
        use UseKind::*;
        let mut uses = Uses { all: Vec::new(), width };
        match self {
            Op::Embed(op) => uses.whole(Write, op.out),
            Op::Norm(op) => {
                uses.part(Read, op.from, op.heads, op.dim);
                uses.part(Write, op.to, op.heads, op.dim);
            }
            Op::ToLength(op) => uses.part(Update, op.at, op.heads, op.dim),
            Op::Linear(op) => {
                uses.whole(Factor, op.input);
                for (_, out) in op.products.iter() {
                    let dim = width(out);
                    uses.result(op.add, Part { buffer: out, first: 0, stride: 0 }, 1, dim);
                }
            }
            Op::Exchange(op) => {
                uses.whole(Read, op.from);
                uses.whole(if op.add { Update } else { Write }, op.to);
            }
            Op::EachHead(op) => {
                uses.whole(Factor, op.input);
                uses.whole(Write, op.out);
            }
            Op::Activate(op) => {
                op.gate.into_iter().chain([op.up]).for_each(|from| uses.whole(Read, from));
                uses.whole(Write, op.out);
            }
            Op::Map(op) => map_uses(op, &mut uses),
            Op::Heads(op) => {
                uses.part(Read, op.heads.from, op.heads.count, op.heads.dim);
                uses.part(Write, op.to, op.heads.count, op.heads.dim);
            }
            Op::Attention(op) => attention_uses(op, &mut uses),
            Op::Among(op) => among_uses(op, &mut uses),
            Op::Mix(op) => mix_uses(op, &mut uses),
            Op::AddSlice(op) => uses.whole(Update, op.to),
            Op::Convolve(op) => {
                uses.part(Read, op.from, 1, op.channels);
                uses.part(Write, op.to, 1, op.channels);
            }
            Op::Scan(op) => scan_uses(op, &mut uses),
            Op::Delta(op) => delta_uses(op, &mut uses),
            Op::Experts(op) => experts_uses(op, &mut uses),
            Op::AddShared(op) => {
                uses.whole(Read, op.from);
                op.router.iter().for_each(|_| uses.whole(Read, op.input));
                uses.whole(Update, op.to);
            }
            Op::Predict(op) => {
                uses.whole(Read, op.router);
                uses.whole(Update, op.streams);
            }
            Op::Correct(op) => {
                uses.whole(Read, op.x);
                uses.whole(Read, op.router);
                uses.whole(Update, op.streams);
            }
            Op::Match(op) => {
                uses.part(Read, op.from, 1, op.dim);
                uses.part(Read, op.like, 1, op.dim);
                uses.result(op.add, op.to, 1, op.dim);
            }
        }
        uses.all
    }

    /// The tensors that the op reads.
    pub fn tensors(&self) -> Vec<TensorId> {
        let norm = |params: &NormParams| [params.weight, params.bias];
        let heads = |heads: &Heads| {
            let of_norm = heads.norm.map_or([None; 2], |(params, _)| norm(&params));
            [heads.bias, of_norm[0], of_norm[1]]
        };
        let all: Vec<Option<TensorId>> = match self {
            Op::Embed(op) => vec![Some(op.table), op.types, op.positions],
            Op::Norm(op) => norm(&op.params).into(),
            Op::ToLength(_) | Op::Exchange(_) | Op::Match(_) | Op::AddSlice(_) => Vec::new(),
            Op::Among(op) => [op.queries, op.keys, op.values].iter().flat_map(heads).collect(),
            Op::Mix(op) => vec![if let MixSource::Table(table) = op.from { Some(table) } else { None }],
            Op::Linear(op) => op.products.iter().map(|(matrix, _)| Some(matrix)).collect(),
            Op::EachHead(op) => vec![Some(op.stack)],
            Op::Activate(op) => vec![op.gate_bias, op.up_bias],
            Op::Map(op) => vec![op.bias, op.scale.map(|(scale, _)| scale)],
            Op::Heads(op) => heads(&op.heads).into(),
            Op::Attention(op) => {
                let all = [Some(op.queries), op.keys, op.values];
                all.iter().flatten().flat_map(heads).chain([op.sinks]).collect()
            }
            Op::Convolve(op) => vec![Some(op.kernel), op.bias],
            Op::Scan(op) => match op.decay {
                Decay::Constant(a) | Decay::PerChannel { a, .. } => vec![Some(a)],
                Decay::PerHead { .. } => Vec::new(),
            },
            Op::Delta(_) => Vec::new(),
            Op::Experts(op) => {
                let own = [op.gate, Some(op.up), Some(op.down), op.choice_bias, op.output_scales];
                own.into_iter().chain(op.biases).collect()
            }
            Op::AddShared(op) => vec![op.router],
            Op::Predict(op) => vec![Some(op.coefficients)],
            Op::Correct(op) => vec![Some(op.coefficients)],
        };
        all.into_iter().flatten().collect()
    }
}

fn map_uses(op: &Map, uses: &mut Uses) {
    uses.part(UseKind::Read, op.from, op.heads, op.dim);
    if let Some((by, _)) = op.by {
        uses.part(UseKind::Read, by, op.heads, op.dim);
    }
    uses.result(op.add, op.to, op.heads, op.dim);
}

fn among_uses(op: &Among, uses: &mut Uses) {
    [op.queries, op.keys, op.values].iter().for_each(|heads| uses.part(UseKind::Read, heads.from, heads.count, heads.dim));
    uses.part(UseKind::Write, op.out, op.queries.count, op.values.dim);
}

fn mix_uses(op: &Mix, uses: &mut Uses) {
    if let MixSource::Rows(from) = op.from {
        uses.whole(UseKind::Read, from);
    }
    uses.whole(if op.add { UseKind::Update } else { UseKind::Write }, op.to);
}

fn attention_uses(op: &Attention, uses: &mut Uses) {
    for heads in [Some(op.queries), op.keys, op.values].into_iter().flatten() {
        uses.part(UseKind::Read, heads.from, heads.count, heads.dim);
    }
    uses.part(UseKind::Write, op.out, op.queries.count, op.value_dim);
}

fn experts_uses(op: &Experts, uses: &mut Uses) {
    uses.whole(UseKind::Read, op.scores);
    uses.whole(UseKind::Factor, op.input);
    uses.whole(if op.add { UseKind::Update } else { UseKind::Write }, op.out);
}

fn scan_uses(op: &Scan, uses: &mut Uses) {
    let groups = op.heads.div_ceil(op.group.max(1));
    uses.part(UseKind::Read, op.x, op.heads, op.values);
    [op.b, op.c].into_iter().for_each(|part| uses.part(UseKind::Read, part, groups, op.keys));
    match op.decay {
        Decay::PerHead { factors, steps } => [factors, steps].into_iter().for_each(|part| uses.part(UseKind::Read, part, op.heads, 1)),
        Decay::PerChannel { steps, .. } => uses.part(UseKind::Read, steps, op.heads, op.values),
        Decay::Constant(_) => {}
    }
    uses.whole(UseKind::Write, op.out);
}

fn delta_uses(op: &Delta, uses: &mut Uses) {
    [op.q, op.k].into_iter().for_each(|part| uses.part(UseKind::Read, part, op.key_heads, op.keys));
    uses.part(UseKind::Read, op.v, op.heads, op.values);
    uses.part(UseKind::Read, op.decay, op.heads, if op.by_key { op.keys } else { 1 });
    uses.part(UseKind::Read, op.beta, op.heads, 1);
    uses.whole(UseKind::Write, op.out);
}
