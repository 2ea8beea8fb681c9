//! [`quantize`]: copies a file with its tensors in other types.

use std::path::Path;

use crate::encoder::Encoder;
use crate::error::QuantizeError;
use crate::file_type::FileType;
use crate::output::{ALIGNMENT, Output, may_write};
use crate::piece::{Piece, encode_weights, write_pieces};
use crate::plan::{TensorPlan, plan};
use gguf::writer::{TensorHead, head};
use gguf::{GgufFile, TensorInfo, Value};
use model::Quant;

/// The version of the block layouts: `general.quantization_version`.
pub const QUANTIZATION_VERSION: u32 = 2;
/// Weights that a thread takes at once: 4 MiB in float32.
pub const PIECE: usize = 1 << 20;

#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The number of encoding threads. 0: one per processor.
    pub threads: usize,
    /// Whether to replace the output if it exists.
    pub force: bool,
}

/// The result for one tensor.
#[derive(Clone, Debug)]
pub struct TensorReport {
    pub name: String,
    pub from: &'static str,
    pub to: &'static str,
    pub bytes: u64,
    /// The squared error relative to the squared weights. 0 if the tensor was copied.
    pub relative_error: f64,
}

#[derive(Clone, Debug, Default)]
pub struct Report {
    pub tensors: Vec<TensorReport>,
    /// The size of the output in bytes.
    pub bytes: u64,
}

/// Writes `source` to `out` in another file type. Calls `progress` after each tensor.
///
/// # Errors
/// If the file cannot be written. Then no output file exists, and a file that existed before is unchanged.
pub fn quantize(
    source: &GgufFile,
    kind: &FileType,
    out: &Path,
    options: &Options,
    progress: &mut dyn FnMut(&TensorReport),
) -> Result<Report, QuantizeError> {
    check_output(source, out, options.force)?;
    let planned = plan(source, kind)?;
    let mut output = Output::create(out)?;
    output.put(&head_of(source, kind, &planned))?;
    let mut report = Report::default();
    for planned in &planned {
        output.align()?;
        let tensor = write_tensor(source, planned, threads(options.threads), &mut output)?;
        progress(&tensor);
        report.tensors.push(tensor);
    }
    report.bytes = output.written();
    // Confirms that everything read was what the file held when it was opened.
    output.finish(|_| source.verify_unchanged().map_err(QuantizeError::File))?;
    Ok(report)
}

fn check_output(source: &GgufFile, out: &Path, force: bool) -> Result<(), QuantizeError> {
    let same = |path: &Path| path.canonicalize().ok().zip(out.canonicalize().ok()).is_some_and(|(a, b)| a == b);
    if source.paths().any(same) {
        return Err(QuantizeError::SameFile(out.to_owned()));
    }
    may_write(out, force)
}

/// The number of threads to use. 0 means one per processor.
pub fn threads(wanted: usize) -> usize {
    if wanted > 0 { wanted } else { std::thread::available_parallelism().map_or(1, usize::from) }
}

/// The header of the file: the source's metadata without entries that are no longer true, and the table of tensors.
fn head_of(source: &GgufFile, kind: &FileType, planned: &[TensorPlan]) -> Vec<u8> {
    let stale = |key: &str| {
        key == "general.file_type"
            || key == "general.quantization_version"
            || key == "general.alignment"
            || key.starts_with("split.")
            || key.starts_with("quantize.imatrix.")
    };
    let (file_type, version) = (Value::U32(kind.id), Value::U32(QUANTIZATION_VERSION));
    let mut pairs: Vec<(&str, &Value)> = source.metadata().filter(|(key, _)| !stale(key)).collect();
    pairs.push(("general.file_type", &file_type));
    pairs.push(("general.quantization_version", &version));
    let of = |planned: &TensorPlan| {
        let tensor = &source.tensors()[planned.tensor];
        TensorHead { name: &tensor.name, dims: &tensor.dims, type_id: planned.type_id, bytes: planned.bytes }
    };
    head(3, ALIGNMENT, &pairs, &planned.iter().map(of).collect::<Vec<_>>())
}

fn write_tensor(source: &GgufFile, planned: &TensorPlan, threads: usize, out: &mut Output) -> Result<TensorReport, QuantizeError> {
    let tensor = &source.tensors()[planned.tensor];
    let data = source.data(tensor);
    let mut report = TensorReport {
        name: tensor.name.clone(),
        from: tensor.type_name(),
        to: tensor.type_name(),
        bytes: planned.bytes,
        relative_error: 0.0,
    };
    let codec = Quant::by_id(tensor.type_id).zip(Encoder::by_id(planned.type_id)).filter(|_| planned.type_id != tensor.type_id);
    let Some((from, to)) = codec else {
        for piece in data.chunks(4 * PIECE) {
            out.put(piece)?;
        }
        return Ok(report);
    };
    report.to = to.quant.name;
    // A piece consists of whole blocks of both types.
    let piece_bytes = PIECE / from.block_size * from.block_bytes;
    let pieces = data.chunks(piece_bytes).enumerate();
    report.relative_error = write_pieces(pieces, threads, out, |(i, piece)| encode_piece(tensor, (from, &to), piece, (i * PIECE) as u64))?;
    Ok(report)
}

/// Encodes some of a tensor's weights. `first` is the index of the first weight, for errors.
fn encode_piece(tensor: &TensorInfo, (from, to): (&Quant, &Encoder), piece: &[u8], first: u64) -> Result<Piece, QuantizeError> {
    let count = piece.len() / from.block_bytes * from.block_size;
    let mut weights = vec![0f32; count];
    (from.dequantize)(piece, &mut weights);
    encode_weights(&tensor.name, to, &weights, first)
}
