//! [`Bound`]: an adapter whose changes are assigned to the tensors of a program.

use std::collections::HashMap;
use std::ops::Range;

use super::super::simd::rows::Rows;
use super::change::Change;
use crate::adapter::{RowsInFile, rows_in_file};
use crate::program::tensor::Slice;
use crate::program::{BufferId, Op, Program, RowSet, Source, TensorId};
use crate::{Adapter, EngineError, WeightChange};
use model::Weights;

pub struct Bound {
    /// The change of each tensor of the program.
    pub changes: Vec<Option<Change>>,
    pub head: Option<Change>,
    /// By layer. Each has one row.
    pub directions: HashMap<usize, Rows>,
}

/// A tensor, as far as a change must know it.
pub struct Site {
    name: String,
    /// [count, rows, cols] of the whole tensor
    shape: [usize; 3],
    own: Range<usize>,
    /// How the program reads it.
    reads: Reads,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reads {
    /// In no way that a change concerns.
    Not,
    /// As a matrix that rows of the step are multiplied with, or as a table.
    Rows,
    /// In another way.
    Otherwise(&'static str),
}

/// What an adapter must know of a program.
pub struct ProgramFacts {
    tensors: Vec<Site>,
    head: Option<Site>,
    num_layers: usize,
    hidden: usize,
}

impl ProgramFacts {
    pub fn of(program: &Program, weights: &Weights) -> Self {
        let mut reads = vec![Reads::Not; program.tensors.len()];
        let mut read = |id: TensorId, how: Reads| {
            let of = &mut reads[id.0];
            *of = if *of == Reads::Not || *of == how { how } else { Reads::Otherwise("it is read in two ways") };
        };
        for op in &program.ops {
            match &op.op {
                Op::Linear(op) => op.products.iter().for_each(|(id, out)| {
                    let is_plain = [op.input, out].iter().all(|&buffer| has_step_rows(program, buffer));
                    read(id, if is_plain { Reads::Rows } else { Reads::Otherwise("its product has several rows per token") });
                }),
                Op::Experts(op) => [op.gate, Some(op.up), Some(op.down)].into_iter().flatten().for_each(|id| read(id, Reads::Rows)),
                Op::AddShared(op) => op.router.into_iter().for_each(|id| read(id, Reads::Rows)),
                Op::Embed(op) => read(op.table, Reads::Rows),
                Op::EachHead(op) => read(op.stack, Reads::Otherwise("each head has a matrix of its own, computed from the file's")),
                _ => {}
            }
        }
        let site = |(i, reads)| Site::new((program, weights), TensorId(i), reads);
        let tensors: Vec<Site> = reads.into_iter().enumerate().map(site).collect();
        // also where the head shares the table of tokens
        let head =
            program.head.map(|head| Site { name: "output.weight".into(), ..Site::new((program, weights), head.matrix, Reads::Rows) });
        let num_layers = program.ops.iter().filter_map(|op| op.layer).max().map_or(0, |last| last + 1);
        Self { tensors, head, num_layers, hidden: program.buffer(program.stream).width }
    }
}

/// Whether a buffer's rows are those of the step, one each.
fn has_step_rows(program: &Program, id: BufferId) -> bool {
    let buffer = program.buffer(id);
    buffer.per_row == 1 && buffer.rows == RowSet::Step
}

impl Site {
    fn new((program, weights): (&Program, &Weights), id: TensorId, reads: Reads) -> Self {
        let tensor = program.tensor(id);
        let is_cut = !matches!((tensor.slice, tensor.count), (Slice::Whole, _) | (Slice::Rows(_), 1));
        let reads = match (reads, tensor.source) {
            (Reads::Not, _) => Reads::Not,
            (_, Source::File(..)) if is_cut => Reads::Otherwise("the model is cut into shards, each with some columns or experts"),
            (_, Source::File(..)) => reads,
            _ => Reads::Otherwise("it is computed from the file's tensor"),
        };
        let Some(weight) = tensor.weight(weights).filter(|_| reads == Reads::Rows) else {
            return Self { name: tensor.name.clone(), shape: [0; 3], own: 0..0, reads };
        };
        let whole = RowsInFile { name: tensor.name.clone(), rows: tensor.rows, first: 0 };
        let RowsInFile { name, rows, first } = rows_in_file(&weight, [tensor.count, tensor.cols], weights).unwrap_or(whole);
        let own = if rows == tensor.rows { 0..rows } else { first..first + tensor.rows };
        Self { name, shape: [tensor.count.max(1), rows, tensor.cols], own, reads }
    }

    /// Makes the change of the tensor.
    fn bind(&self, change: &WeightChange) -> Result<Option<Change>, EngineError> {
        match self.reads {
            Reads::Not => Ok(None),
            Reads::Otherwise(why) => Err(EngineError::Adapter(format!("{} cannot change: {why}", change.tensor))),
            Reads::Rows if self.shape == [change.count, change.rows, change.cols] => Ok(Some(Change::new(change, &self.own))),
            Reads::Rows => {
                let (have, want) = ([change.count, change.rows, change.cols], self.shape);
                Err(EngineError::Adapter(format!("{} has the shape {have:?} (matrices, rows, columns), expected {want:?}", change.tensor)))
            }
        }
    }
}

impl Bound {
    /// Assigns changes to tensors. Sets `bound` for those that have one.
    pub fn new(facts: &ProgramFacts, adapter: &Adapter, bound: &mut [bool]) -> Result<Self, EngineError> {
        let mut changes: Vec<Option<Change>> = facts.tensors.iter().map(|_| None).collect();
        let (mut head, mut directions) = (None, HashMap::new());
        for (change, is_bound) in adapter.changes.iter().zip(&mut *bound) {
            if let Some(site) = facts.head.as_ref().filter(|site| site.name == change.tensor) {
                head = site.bind(change)?;
                *is_bound = true;
                continue;
            }
            for (site, of) in facts.tensors.iter().zip(&mut changes).filter(|(site, _)| site.name == change.tensor) {
                *of = site.bind(change)?;
                *is_bound |= of.is_some();
            }
        }
        for direction in &adapter.directions {
            if direction.vector.len() != facts.hidden {
                let (have, want) = (direction.vector.len(), facts.hidden);
                return Err(EngineError::Adapter(format!("direction {} has {have} numbers, expected {want}", direction.layer)));
            }
            if direction.layer < facts.num_layers {
                let mut row = Rows::new(facts.hidden);
                row.resize(1);
                row.row_mut(0).copy_from_slice(&direction.vector);
                directions.insert(direction.layer, row);
            }
        }
        Ok(Self { changes, head, directions })
    }
}
