//! Mixes rows of a set from rows of another one, or from rows of a table.

use super::super::matrix::dequantize_row;
use super::buffers::Buffers;
use super::step::{Kernel, Step};
use super::tensors::Tensors;
use crate::EngineError;
use crate::program::{BufferId, Mix, MixSource, Source};
use model::{Weight, Weights};

pub struct MixKernel {
    op: Mix,
    table: Table,
}

/// Where the rows come from.
enum Table {
    Rows(BufferId),
    File(Weight),
    /// Rows that are computed when the model is loaded.
    Floats(Vec<f32>),
}

impl MixKernel {
    pub fn new(op: &Mix, tensors: &Tensors) -> Result<Self, EngineError> {
        let table = match op.from {
            MixSource::Rows(from) => Table::Rows(from),
            MixSource::Table(table) if tensors.program.tensor(table).source == Source::Waves => Table::Floats(tensors.vector(table)),
            MixSource::Table(table) => Table::File(tensors.weight(table)?),
        };
        Ok(Self { op: *op, table })
    }

    /// The source's row `row` of `len` elements.
    fn row<'a>(&'a self, (buffers, weights): (&'a Buffers, &Weights), row: usize, len: usize, scratch: &'a mut Vec<f32>) -> &'a [f32] {
        match &self.table {
            Table::Rows(from) => buffers.rows(*from).row(row),
            Table::Floats(floats) => &floats[row * len..][..len],
            Table::File(table) => {
                scratch.resize(len, 0.0);
                dequantize_row(weights, table, row, scratch);
                scratch
            }
        }
    }
}

impl Kernel for MixKernel {
    fn run(&self, step: &mut Step) {
        let Mix { to, parts, interleaved, rule, add, .. } = self.op;
        let terms = step.pictures.terms(rule);
        let mut rows = step.buffers.take(to);
        let len = rows.width() / parts;
        let source = (&*step.buffers, step.weights);
        rows.for_each(step.pool, |i, row| {
            let mut scratch = Vec::new();
            if !add {
                row.fill(0.0);
            }
            for part in 0..parts {
                let (first, stride) = if interleaved { (part, parts) } else { (part * len, 1) };
                for &(from, weight) in terms.of(i * parts + part) {
                    let from = self.row(source, from as usize, len, &mut scratch);
                    row[first..].iter_mut().step_by(stride).zip(from).for_each(|(to, from)| *to += weight * from);
                }
            }
        });
        step.buffers.put(to, rows);
    }
}
