//! [`Shard`]: one safetensors file. The header is checked when the file is opened. Data is read when it is needed.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use outside::open_regular;
use safetensors::tensor::{Dtype, Metadata};

use crate::error::{Fallible, fault};

/// The library's own limit on a header.
const MAX_HEADER: u64 = 100_000_000;
/// The bytes before the header, which hold its length.
const LENGTH: u64 = 8;
/// The most dimensions of a tensor. No known model has more.
const MAX_DIMS: usize = 8;

/// A tensor of a checkpoint.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub name: String,
    /// Outermost dimension first.
    pub shape: Vec<u64>,
    pub dtype: Dtype,
    /// The start of the tensor's data in its file.
    offset: u64,
}

pub struct Shard {
    pub path: PathBuf,
    file: File,
}

impl Shard {
    /// Opens a file and lists its tensors in the order of their data.
    ///
    /// # Errors
    /// If the header is malformed, or if the tensors do not fill the rest of the file without gaps and overlaps.
    pub fn open(path: &Path) -> Fallible<(Self, Vec<Tensor>)> {
        let opened = open_regular(path).and_then(|file| Ok((file.metadata()?.len(), file)));
        let (bytes, file) = match opened {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return fault(path, "is a part of the checkpoint, and there is no such file");
            }
            opened => opened.or_else(|error| fault(path, error.to_string()))?,
        };
        let shard = Self { path: path.to_owned(), file };
        let mut length = [0; LENGTH as usize];
        if bytes < LENGTH {
            return fault(path, format!("has {bytes} bytes, too few for a safetensors file"));
        }
        shard.read(0, &mut length)?;
        let header = u64::from_le_bytes(length);
        if header > MAX_HEADER || header > bytes - LENGTH {
            return fault(path, format!("its header claims {header} bytes, but the file has {bytes}: is it truncated, or another format?"));
        }
        let mut text = vec![0; header as usize];
        shard.read(LENGTH, &mut text)?;
        // The library checks that the offsets leave no gaps and fit types and shapes.
        let metadata: Metadata = serde_json::from_slice(&text).or_else(|error| fault(path, format!("malformed header: {error}")))?;
        let data = metadata.data_len() as u64;
        if data != bytes - LENGTH - header {
            let there = bytes - LENGTH - header;
            return fault(path, format!("its tensors take {data} bytes, but {there} follow the header: download the file again"));
        }
        let mut tensors = Vec::new();
        for name in metadata.offset_keys() {
            let Some(info) = metadata.info(&name) else { continue };
            if info.shape.len() > MAX_DIMS || info.shape.contains(&0) {
                return fault(path, format!("tensor {name} has the shape {:?}, expected 1 to {MAX_DIMS} dimensions above 0", info.shape));
            }
            let shape = info.shape.iter().map(|&dim| dim as u64).collect();
            let offset = LENGTH + header + info.data_offsets.0 as u64;
            tensors.push(Tensor { name, shape, dtype: info.dtype, offset });
        }
        Ok((shard, tensors))
    }

    /// Fills `out` with a tensor's bytes, starting at byte `from`.
    pub fn read_tensor(&self, tensor: &Tensor, from: u64, out: &mut [u8]) -> Fallible<()> {
        self.read(tensor.offset + from, out)
    }

    fn read(&self, from: u64, out: &mut [u8]) -> Fallible<()> {
        self.file.read_exact_at(out, from).or_else(|error| fault(&self.path, format!("cannot read byte {from}: {error}")))
    }
}

/// ggml's type of a tensor's weights. None for types that are not floats, or whose floats another tensor scales.
pub fn float_type(dtype: Dtype) -> Option<u32> {
    match dtype {
        Dtype::F32 => Some(0),
        Dtype::F16 => Some(1),
        Dtype::BF16 => Some(30),
        _ => None,
    }
}
