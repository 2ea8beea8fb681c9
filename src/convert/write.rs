//! Writes the output's weights, a few rows at a time.

use model::Quant;
use quantize::{Encoder, Output, PIECE, check_finite, encode_weights, write_pieces};

use crate::assign::{Assigned, Part, matrix};
use crate::checkpoint::Checkpoint;
use crate::error::{Fallible, wrong};
use crate::output_header::{OutputTensor, TensorContent};
use crate::rows::RowSelection;

/// Writes a tensor. Returns the squared error relative to the squared weights.
pub fn write(checkpoint: &Checkpoint, planned: &OutputTensor, threads: usize, out: &mut Output) -> Fallible<f64> {
    let tensor = match &planned.content {
        TensorContent::Factors(factors) => {
            let bytes: Vec<u8> = factors.iter().flat_map(|x| x.to_le_bytes()).collect();
            out.put(&bytes)?;
            return Ok(0.0);
        }
        TensorContent::Assigned(tensor) => tensor,
    };
    let source = Source::new(checkpoint, tensor)?;
    let codec = Quant::by_id(tensor.type_id).zip(Encoder::by_id(planned.type_id));
    let Some((from, to)) = codec else { return wrong(format!("{} has a type that cannot be written", planned.name)) };
    // Whole rows, and therefore whole blocks.
    let step = (PIECE as u64 / source.cols).max(1);
    let starts = (0..source.rows).step_by(step as usize);
    write_pieces(starts, threads, out, |start| piece(&source, tensor, (from, &to), start..(start + step).min(source.rows)))
}

fn piece(source: &Source, tensor: &Assigned, (from, to): (&Quant, &Encoder), rows: std::ops::Range<u64>) -> Fallible<quantize::Piece> {
    let first = rows.start * source.cols;
    let bytes = source.read(rows)?;
    let mut weights = vec![0f32; bytes.len() / from.block_bytes];
    (from.dequantize)(&bytes, &mut weights);
    if from.id == to.quant.id && !tensor.plus_one {
        check_finite(&tensor.name, &weights, first)?;
        return Ok(quantize::Piece { bytes, error: 0.0, square: 0.0 });
    }
    if tensor.plus_one {
        weights.iter_mut().for_each(|x| *x += 1.0);
    }
    Ok(encode_weights(&tensor.name, to, &weights, first)?)
}

/// A tensor's weights in the checkpoint's type, row by row in the output's order.
struct Source<'a> {
    checkpoint: &'a Checkpoint,
    parts: Vec<(Part, u64)>,
    rows: u64,
    cols: u64,
    /// Bytes of a row.
    row_bytes: u64,
    /// The bytes of a tensor that is stored transposed.
    turned: Option<Vec<u8>>,
}

impl<'a> Source<'a> {
    fn new(checkpoint: &'a Checkpoint, tensor: &Assigned) -> Fallible<Self> {
        let size = Quant::by_id(tensor.type_id).map_or(4, |quant| quant.block_bytes as u64);
        let (mut parts, mut rows, mut cols, mut turned) = (Vec::new(), 0, 1, None);
        for &part in &tensor.parts {
            let (there, width) = matrix(&checkpoint.tensor(part.tensor).shape);
            let count = part.rows.count(there, width).unwrap_or(0);
            cols = width;
            if part.rows == RowSelection::Columns {
                cols = there;
                turned = Some(transposed(checkpoint, part.tensor, (there, width), size as usize)?);
            }
            parts.push((part, count));
            rows += count;
        }
        if rows.checked_mul(cols) != Some(tensor.shape.iter().product()) {
            return wrong(format!("{}: {rows} rows of {cols} weights do not fill the shape {:?}", tensor.name, tensor.shape));
        }
        Ok(Self { checkpoint, parts, rows, cols, row_bytes: cols * size, turned })
    }

    /// The bytes of some rows.
    fn read(&self, rows: std::ops::Range<u64>) -> Fallible<Vec<u8>> {
        let row_bytes = self.row_bytes as usize;
        if let Some(turned) = &self.turned {
            return Ok(turned[rows.start as usize * row_bytes..rows.end as usize * row_bytes].to_vec());
        }
        let mut out = vec![0; (rows.end - rows.start) as usize * row_bytes];
        let (mut at, mut before) = (rows.start, 0);
        for (part, count) in &self.parts {
            while at < rows.end && at < before + count {
                // As many rows as are contiguous in the source.
                let first = part.rows.source(at - before);
                let most = rows.end.min(before + count) - at;
                let run = (1..most).find(|n| part.rows.source(at - before + n) != first + n).unwrap_or(most);
                let place = (at - rows.start) as usize * row_bytes;
                self.checkpoint.read(part.tensor, first * self.row_bytes, &mut out[place..place + run as usize * row_bytes])?;
                at += run;
            }
            before += count;
        }
        Ok(out)
    }
}

/// The bytes of a transposed matrix: its columns become rows.
fn transposed(checkpoint: &Checkpoint, index: usize, (rows, cols): (u64, u64), size: usize) -> Fallible<Vec<u8>> {
    let (rows, cols) = (rows as usize, cols as usize);
    let mut bytes = vec![0; rows * cols * size];
    checkpoint.read(index, 0, &mut bytes)?;
    let mut out = vec![0; bytes.len()];
    for (row, line) in bytes.chunks_exact(cols * size).enumerate() {
        for (col, element) in line.chunks_exact(size).enumerate() {
            let place = (col * rows + row) * size;
            out[place..place + size].copy_from_slice(element);
        }
    }
    Ok(out)
}
