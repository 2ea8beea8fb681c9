//! [`Conversion`]: converts a folder to a GGUF file.

use std::path::Path;

use gguf::{Value, ggml_type};
use quantize::{FILE_TYPES, FileType, Output, QUANTIZATION_VERSION, may_write, threads};

use crate::assign::assign;
use crate::checkpoint::Checkpoint;
use crate::config::Config;
use crate::error::{ConvertError, Fallible, fault, wrong};
use crate::families;
use crate::general;
use crate::metadata::describe;
use crate::output_header::{self, OutputTensor, TensorContent};
use crate::vocabulary;

#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The file type. None means the float type of most of the checkpoint's weights.
    pub kind: Option<&'static FileType>,
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
    pub elements: u64,
    pub bytes: u64,
    /// The squared error relative to the squared weights. 0 if no weight changed.
    pub relative_error: f64,
}

#[derive(Clone, Debug, Default)]
pub struct Report {
    pub tensors: Vec<TensorReport>,
    /// The size of the output in bytes.
    pub bytes: u64,
    /// Facts about the checkpoint that the output cannot express.
    pub notes: Vec<String>,
}

/// A checkpoint that has been read and checked, ready to be written.
pub struct Conversion {
    checkpoint: Checkpoint,
    pub kind: &'static FileType,
    /// `general.architecture`
    pub architecture: &'static str,
    pairs: Vec<(String, Value)>,
    tensors: Vec<OutputTensor>,
    notes: Vec<String>,
    options: Options,
}

impl Conversion {
    /// Reads a folder and checks that the engines accept the result. Writes a draft without weights to the system's temporary folder.
    pub fn plan(dir: &Path, options: Options) -> Fallible<Self> {
        let checkpoint = Checkpoint::open(dir)?;
        let whole = Config::open(dir)?;
        let family = families::find(&whole)?;
        let section = match family.section {
            Some((name, defaults)) => whole.section(name, defaults)?,
            None => None,
        };
        let config = section.as_ref().unwrap_or(&whole);
        refuse_quantised(&whole)?;
        let described = describe(config, family)?;
        let tied = match config.flag(&["tie_word_embeddings"])? {
            Some(tied) => Some(tied),
            None => whole.flag(&["tie_word_embeddings"])?,
        };
        let assigned = assign(&checkpoint, family, &described.shape, tied)?;
        let embedding = assigned.iter().find(|tensor| tensor.name == "token_embd.weight");
        let Some(rows) = embedding.map(|tensor| tensor.shape[0]) else { return wrong("the checkpoint has no embeddings of tokens") };
        let mut tensors = output_header::tensors(assigned, described.factors)?;
        let kind = options.kind.unwrap_or_else(|| own_type(&tensors));
        let elements = tensors.iter().map(|tensor| tensor.dims.iter().product::<u64>()).sum();
        let mut pairs = general::pairs(dir, &whole, family.arch, elements)?;
        pairs.push(("general.file_type".into(), Value::U32(kind.id)));
        pairs.push(("general.quantization_version".into(), Value::U32(QUANTIZATION_VERSION)));
        pairs.extend(described.keys.pairs);
        let vocabulary = vocabulary::read(dir, &whole, family.arch, rows)?;
        pairs.push((format!("{}.vocab_size", family.arch), Value::U32(rows.try_into().unwrap_or(u32::MAX))));
        pairs.extend(vocabulary.pairs);
        output_header::typed(&pairs, &mut tensors, family, kind)?;
        Ok(Self { checkpoint, kind, architecture: family.arch, pairs, tensors, notes: vocabulary.notes, options })
    }

    /// Reports what would be written.
    pub fn report(&self) -> Report {
        let tensors: Vec<TensorReport> = self.tensors.iter().map(|tensor| report(tensor, 0.0)).collect();
        let bytes = tensors.iter().map(|tensor| tensor.bytes).sum();
        Report { bytes, tensors, notes: self.notes.clone() }
    }

    /// Writes the file. Calls `progress` after each tensor.
    ///
    /// # Errors
    /// If the file cannot be written. Then no output file exists, and a file that existed before is unchanged.
    pub fn write(&self, out: &Path, progress: &mut dyn FnMut(&TensorReport)) -> Fallible<Report> {
        may_write(out, self.options.force)?;
        let mut output = Output::create(out)?;
        output.put(&output_header::head_of(&self.pairs, &self.tensors))?;
        let mut written = Report { notes: self.notes.clone(), ..Report::default() };
        for tensor in &self.tensors {
            output.align()?;
            let error = crate::write::write(&self.checkpoint, tensor, threads(self.options.threads), &mut output)?;
            let report = report(tensor, error);
            progress(&report);
            written.tensors.push(report);
        }
        written.bytes = output.written();
        output.finish::<ConvertError>(|path| output_header::check(path).map(drop).or_else(|found| fault(out, found.to_string())))?;
        Ok(written)
    }

    /// The number of tensors in the output.
    pub fn tensors(&self) -> usize {
        self.tensors.len()
    }
}

fn report(tensor: &OutputTensor, relative_error: f64) -> TensorReport {
    let name_of = |id: u32| ggml_type(id).map_or("unknown", |kind| kind.name);
    let from = match &tensor.content {
        TensorContent::Assigned(assigned) => assigned.type_id,
        TensorContent::Factors(_) => 0,
    };
    TensorReport {
        name: tensor.name.clone(),
        from: name_of(from),
        to: name_of(tensor.type_id),
        elements: tensor.dims.iter().product(),
        bytes: tensor.bytes,
        relative_error,
    }
}

/// The float type of most of the matrices' weights.
fn own_type(tensors: &[OutputTensor]) -> &'static FileType {
    let weights =
        |id: u32| tensors.iter().filter(|tensor| tensor.type_id == id && tensor.dims.len() > 1).map(|tensor| tensor.bytes).sum::<u64>();
    let floats = FILE_TYPES.iter().filter(|kind| [0, 1, 30].contains(&kind.base));
    floats.max_by_key(|kind| weights(kind.base)).unwrap_or(&FILE_TYPES[0])
}

/// Refuses weights that other tensors scale or unpack.
fn refuse_quantised(config: &Config) -> Fallible<()> {
    match config.text(&["quantization_config.quant_method"])? {
        Some(method) => {
            let text = format!("the checkpoint is quantised ({method}), which is not supported: use the BF16 checkpoint and add --type");
            Err(config.error(text))
        }
        None => Ok(()),
    }
}
