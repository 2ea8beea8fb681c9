//! [`quantize`]: the copy of a file with its tensors in other types.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::encoder::Encoder;
use crate::error::QuantizeError;
use crate::file_type::FileType;
use crate::plan::{Planned, plan};
use gguf::writer::{TensorHead, head};
use gguf::{GgufFile, TensorInfo, Value};
use model::Quant;

/// The version of the block layouts: `general.quantization_version`.
const QUANTIZATION_VERSION: u32 = 2;
/// Weights that a thread takes at once: 4 MiB in float32.
const PIECE: usize = 1 << 20;
const ALIGNMENT: u32 = 32;

#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Threads that encode. 0: one per processor.
    pub threads: usize,
    /// Replace the output if it exists.
    pub force: bool,
}

/// What became of a tensor.
#[derive(Clone, Debug)]
pub struct TensorReport {
    pub name: String,
    pub from: &'static str,
    pub to: &'static str,
    pub bytes: u64,
    /// The squared error as a share of the squared weights. 0 if the tensor was copied.
    pub relative_error: f64,
}

#[derive(Clone, Debug, Default)]
pub struct Report {
    pub tensors: Vec<TensorReport>,
    /// Bytes of the output.
    pub bytes: u64,
}

/// Removes the unfinished output unless it was renamed.
struct Unfinished {
    path: PathBuf,
    renamed: bool,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.renamed {
            // It may not have come into being; nothing else can be done about it here.
            drop(std::fs::remove_file(&self.path));
        }
    }
}

/// Writes `source` to `out` in another file type. `progress` is told of each tensor that was written.
///
/// # Errors
/// No output file exists then, and one that existed before is as it was.
pub fn quantize(
    source: &GgufFile,
    kind: &FileType,
    out: &Path,
    options: &Options,
    progress: &mut dyn FnMut(&TensorReport),
) -> Result<Report, QuantizeError> {
    check_output(source, out, options.force)?;
    let planned = plan(source, kind)?;
    let mut name = out.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.partial", std::process::id()));
    let failed = |error| QuantizeError::Write { path: out.to_owned(), error };
    let mut unfinished = Unfinished { path: out.with_file_name(name), renamed: false };
    let file = OpenOptions::new().write(true).create_new(true).open(&unfinished.path).map_err(failed)?;
    let mut output = Output { file: BufWriter::new(file), written: 0, path: out };
    output.put(&head_of(source, kind, &planned))?;
    let mut report = Report::default();
    for planned in &planned {
        output.align()?;
        let tensor = write_tensor(source, planned, threads(options.threads), &mut output)?;
        progress(&tensor);
        report.tensors.push(tensor);
    }
    report.bytes = output.written;
    output.file.into_inner().map_err(|error| failed(error.into_error()))?.sync_all().map_err(failed)?;
    // Whatever was read was what the file held when it was opened.
    source.verify_unchanged()?;
    std::fs::rename(&unfinished.path, out).map_err(failed)?;
    unfinished.renamed = true;
    Ok(report)
}

fn check_output(source: &GgufFile, out: &Path, force: bool) -> Result<(), QuantizeError> {
    if !out.exists() {
        return Ok(());
    }
    let same = |path: &Path| path.canonicalize().ok().zip(out.canonicalize().ok()).is_some_and(|(a, b)| a == b);
    if source.paths().any(same) {
        return Err(QuantizeError::SameFile(out.to_owned()));
    }
    if force { Ok(()) } else { Err(QuantizeError::Exists(out.to_owned())) }
}

fn threads(wanted: usize) -> usize {
    if wanted > 0 { wanted } else { std::thread::available_parallelism().map_or(1, usize::from) }
}

/// The file's head: the source's metadata without what is no longer true, and the table of tensors.
fn head_of(source: &GgufFile, kind: &FileType, planned: &[Planned]) -> Vec<u8> {
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
    let of = |planned: &Planned| {
        let tensor = &source.tensors()[planned.tensor];
        TensorHead { name: &tensor.name, dims: &tensor.dims, type_id: planned.type_id, bytes: planned.bytes }
    };
    head(3, ALIGNMENT, &pairs, &planned.iter().map(of).collect::<Vec<_>>())
}

/// The unfinished output.
struct Output<'a> {
    file: BufWriter<File>,
    written: u64,
    /// The name in errors.
    path: &'a Path,
}

impl Output<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<(), QuantizeError> {
        self.written += bytes.len() as u64;
        self.file.write_all(bytes).map_err(|error: io::Error| QuantizeError::Write { path: self.path.to_owned(), error })
    }

    fn align(&mut self) -> Result<(), QuantizeError> {
        let gap = self.written.next_multiple_of(u64::from(ALIGNMENT)) - self.written;
        self.put(&vec![0; gap as usize])
    }
}

fn write_tensor(source: &GgufFile, planned: &Planned, threads: usize, out: &mut Output) -> Result<TensorReport, QuantizeError> {
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
    // A piece is whole blocks of both types.
    let piece_bytes = PIECE / from.block_size * from.block_bytes;
    let (mut error, mut square) = (0.0, 0.0);
    let pieces: Vec<&[u8]> = data.chunks(piece_bytes).collect();
    for (round, pieces) in pieces.chunks(threads).enumerate() {
        let first = (round * threads * PIECE) as u64;
        let encoded: Vec<Result<Piece, QuantizeError>> = std::thread::scope(|scope| {
            let mut running = Vec::with_capacity(pieces.len());
            for (i, &piece) in pieces.iter().enumerate() {
                let to = &to;
                running.push(scope.spawn(move || encode_piece(tensor, (from, to), piece, first + (i * PIECE) as u64)));
            }
            running.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        });
        for piece in encoded {
            let piece = piece?;
            out.put(&piece.bytes)?;
            error += piece.error;
            square += piece.square;
        }
    }
    report.relative_error = if square > 0.0 { error / square } else { 0.0 };
    Ok(report)
}

/// Encoded weights, the sum of their squared errors, and that of their squares.
struct Piece {
    bytes: Vec<u8>,
    error: f64,
    square: f64,
}

/// Encodes some of a tensor's weights. `first`: the index of the first, for errors.
fn encode_piece(tensor: &TensorInfo, (from, to): (&Quant, &Encoder), piece: &[u8], first: u64) -> Result<Piece, QuantizeError> {
    let count = piece.len() / from.block_bytes * from.block_size;
    let mut weights = vec![0f32; count];
    (from.dequantize)(piece, &mut weights);
    if let Some(i) = weights.iter().position(|x| !x.is_finite()) {
        return Err(QuantizeError::NotFinite { tensor: tensor.name.clone(), index: first + i as u64, value: weights[i] });
    }
    let mut bytes = vec![0; count / to.quant.block_size * to.quant.block_bytes];
    to.encode(&weights, &mut bytes);
    let mut back = vec![0f32; count];
    (to.quant.dequantize)(&bytes, &mut back);
    if let Some(i) = back.iter().position(|x| !x.is_finite()) {
        let (tensor, type_name) = (tensor.name.clone(), to.quant.name);
        return Err(QuantizeError::TooLarge { tensor, index: first + i as u64, value: weights[i], type_name });
    }
    let (mut error, mut square) = (0.0, 0.0);
    for (x, back) in weights.iter().zip(&back) {
        error += f64::from(back - x).powi(2);
        square += f64::from(*x).powi(2);
    }
    Ok(Piece { bytes, error, square })
}
