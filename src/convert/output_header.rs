//! [`OutputTensor`] and the output's header: the file without its weights, which shows whether the engines accept it and which type each
//! tensor gets.

use std::sync::Arc;

use gguf::writer::{TensorHead, head};
use gguf::{GgufFile, Value, ggml_type};
use model::{ModelError, ModelFault, Weights};
use quantize::{ALIGNMENT, FileType, is_matrix, plan};
use tokenizer::Tokenizer;

use crate::assign::{Assigned, origin};
use crate::error::{ConvertError, Fallible, wrong};
use crate::family::Family;
use crate::rope::Factors;

/// The source of an output tensor's contents.
#[derive(Clone, Debug)]
pub enum TensorContent {
    Assigned(Assigned),
    Factors(Vec<f32>),
}

/// A tensor of the output.
#[derive(Clone, Debug)]
pub struct OutputTensor {
    pub name: String,
    /// Innermost dimension first.
    pub dims: Vec<u64>,
    /// The type in the output, as ggml's id.
    pub type_id: u32,
    pub bytes: u64,
    pub content: TensorContent,
}

impl OutputTensor {
    fn head(&self) -> TensorHead<'_> {
        TensorHead { name: &self.name, dims: &self.dims, type_id: self.type_id, bytes: self.bytes }
    }
}

/// The size of a tensor in bytes. None if the tensor is not whole blocks, or if the size overflows.
fn bytes_of(dims: &[u64], type_id: u32) -> Option<u64> {
    let kind = ggml_type(type_id)?;
    let elements = dims.iter().try_fold(1u64, |product, dim| product.checked_mul(*dim))?;
    elements.is_multiple_of(kind.block_size).then(|| (elements / kind.block_size).checked_mul(kind.block_bytes))?
}

/// The tensors of the output in the types of the checkpoint. Tensors that are not matrices are float32, as every program expects.
pub fn tensors(assigned: Vec<Assigned>, factors: Factors) -> Fallible<Vec<OutputTensor>> {
    let mut all = Vec::new();
    for (name, factors) in factors.0 {
        let (dims, bytes) = (vec![factors.len() as u64], 4 * factors.len() as u64);
        all.push(OutputTensor { name: name.to_owned(), dims, type_id: 0, bytes, content: TensorContent::Factors(factors) });
    }
    for tensor in assigned {
        let dims: Vec<u64> = tensor.shape.iter().rev().copied().collect();
        let type_id = if is_matrix(&tensor.name, &dims) { tensor.type_id } else { 0 };
        let Some(bytes) = bytes_of(&dims, type_id) else { return wrong(format!("{}: the shape {dims:?} is too large", tensor.name)) };
        all.push(OutputTensor { name: tensor.name.clone(), dims, type_id, bytes, content: TensorContent::Assigned(tensor) });
    }
    Ok(all)
}

/// The header of the output.
pub fn head_of(pairs: &[(String, Value)], tensors: &[OutputTensor]) -> Vec<u8> {
    let pairs: Vec<(&str, &Value)> = pairs.iter().map(|(key, value)| (key.as_str(), value)).collect();
    head(3, ALIGNMENT, &pairs, &tensors.iter().map(OutputTensor::head).collect::<Vec<_>>())
}

/// Gives each tensor its type in the output. Checks a draft with the output's header and holes in place of the weights, so that the
/// engines' verdict is known before anything large is written.
pub fn typed(pairs: &[(String, Value)], tensors: &mut [OutputTensor], family: &'static Family, kind: &FileType) -> Fallible<()> {
    let failed = |error: std::io::Error| ConvertError::Checkpoint(format!("cannot write a draft: {error}"));
    let draft = tempfile::Builder::new().prefix("penstock-").suffix(".gguf").tempfile().map_err(failed)?;
    let mut at = head_of(pairs, tensors);
    let data = at.len().next_multiple_of(ALIGNMENT as usize) as u64;
    at.resize(data as usize, 0);
    std::fs::write(draft.path(), &at).map_err(failed)?;
    let mut end = data;
    for tensor in tensors.iter() {
        let start = end.next_multiple_of(ALIGNMENT.into());
        end = start + tensor.bytes;
        if let TensorContent::Factors(factors) = &tensor.content {
            let bytes: Vec<u8> = factors.iter().flat_map(|x| x.to_le_bytes()).collect();
            std::os::unix::fs::FileExt::write_all_at(draft.as_file(), &bytes, start).map_err(failed)?;
        }
    }
    draft.as_file().set_len(end).map_err(failed)?;
    let file = check(draft.path()).or_else(|fault| wrong(explained(fault, family)))?;
    for planned in plan(&file, kind)? {
        let tensor = &mut tensors[planned.tensor];
        (tensor.type_id, tensor.bytes) = (planned.type_id, planned.bytes);
    }
    Ok(())
}

/// Explains the fault of a draft. If the fault is a tensor's, uses the tensor's name in the checkpoint.
fn explained(fault: HeaderFault, family: &'static Family) -> String {
    let HeaderFault::Model(ModelError { fault, .. }) = fault else { return format!("the engines would not take the model: {fault}") };
    let origin = |tensor: &str| origin(family, tensor).unwrap_or_else(|| "a tensor".to_owned());
    match &fault {
        ModelFault::MissingTensor { tensor, .. } => format!("the checkpoint has no {}, which becomes {tensor}", origin(tensor)),
        ModelFault::TensorShape { tensor, .. } => format!("{} does not fit config.json: {fault}", origin(tensor)),
        _ => format!("the engines would not take the model: {fault}"),
    }
}

pub enum HeaderFault {
    Model(ModelError),
    Other(String),
}

impl std::fmt::Display for HeaderFault {
    fn fmt(&self, out: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            HeaderFault::Model(error) => error.fmt(out),
            HeaderFault::Other(text) => out.write_str(text),
        }
    }
}

/// Opens a file and checks its metadata, every tensor and the vocabulary, as an engine would.
pub fn check(path: &std::path::Path) -> Result<Arc<GgufFile>, HeaderFault> {
    let file = Arc::new(GgufFile::open(path).map_err(|error| HeaderFault::Other(error.to_string()))?);
    Weights::load(file.clone()).map_err(HeaderFault::Model)?;
    if file.get("tokenizer.ggml.model").and_then(Value::as_str).is_some_and(|model| model != "no_vocab") {
        Tokenizer::from_gguf(&file).map_err(|error| HeaderFault::Other(error.to_string()))?;
    }
    Ok(file)
}
