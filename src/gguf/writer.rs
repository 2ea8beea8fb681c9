//! Writes GGUF files: the header of any file, and whole files for tests that need small models.

use std::io;
use std::path::Path;

use crate::value::{Array, Value};

/// Collects metadata and tensors and writes them as one file. Checks nothing, so that tests can write malformed files too.
#[derive(Clone, Debug)]
pub struct GgufBuilder {
    pub version: u32,
    /// Written as `general.alignment` unless it is the format's default (32).
    pub alignment: u32,
    pub metadata: Vec<(String, Value)>,
    pub tensors: Vec<TensorData>,
}

/// A tensor to write. `dims` has the innermost dimension first. `bytes` are whole blocks of the type.
#[derive(Clone, Debug)]
pub struct TensorData {
    pub name: String,
    pub dims: Vec<u64>,
    pub type_id: u32,
    pub bytes: Vec<u8>,
}

impl TensorData {
    fn head(&self) -> TensorHead<'_> {
        TensorHead { name: &self.name, dims: &self.dims, type_id: self.type_id, bytes: self.bytes.len() as u64 }
    }
}

impl Default for GgufBuilder {
    fn default() -> Self {
        GgufBuilder { version: 3, alignment: 32, metadata: Vec::new(), tensors: Vec::new() }
    }
}

impl GgufBuilder {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a pair. Replaces the value if the key exists.
    pub fn kv(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.set(key, value);
        self
    }

    pub fn set(&mut self, key: &str, value: impl Into<Value>) {
        let value = value.into();
        match self.metadata.iter_mut().find(|(k, _)| k == key) {
            Some(pair) => pair.1 = value,
            None => self.metadata.push((key.to_owned(), value)),
        }
    }

    pub fn remove(&mut self, key: &str) {
        self.metadata.retain(|(k, _)| k != key);
    }

    pub fn tensor(mut self, name: &str, dims: &[u64], type_id: u32, bytes: Vec<u8>) -> Self {
        self.tensors.push(TensorData { name: name.to_owned(), dims: dims.to_vec(), type_id, bytes });
        self
    }

    /// Adds a float32 tensor.
    pub fn tensor_f32(self, name: &str, dims: &[u64], weights: &[f32]) -> Self {
        self.tensor(name, dims, 0, weights.iter().flat_map(|x| x.to_le_bytes()).collect())
    }

    /// The bytes of the whole file. The file ends with the last tensor, without padding.
    pub fn build(&self) -> Vec<u8> {
        let pairs: Vec<_> = self.metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
        let tensors: Vec<_> = self.tensors.iter().map(TensorData::head).collect();
        let mut out = head(self.version, self.alignment, &pairs, &tensors);
        for tensor in &self.tensors {
            out.resize(out.len().next_multiple_of(self.alignment.max(1) as usize), 0);
            out.extend(&tensor.bytes);
        }
        out
    }

    pub fn write(&self, path: &Path) -> io::Result<()> {
        std::fs::write(path, self.build())
    }
}

/// A tensor's entry in the table of a file to be written. `dims` has the innermost dimension first.
#[derive(Clone, Copy, Debug)]
pub struct TensorHead<'a> {
    pub name: &'a str,
    pub dims: &'a [u64],
    pub type_id: u32,
    /// The length of the tensor's data, in bytes.
    pub bytes: u64,
}

/// Builds everything before the first tensor's data. The data of each tensor follows in order, at the next multiple of the alignment. The
/// alignment is written as `general.alignment` unless it is the format's default (32).
pub fn head(version: u32, alignment: u32, metadata: &[(&str, &Value)], tensors: &[TensorHead]) -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    out.extend(version.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    let custom = alignment != 32;
    out.extend((metadata.len() as u64 + u64::from(custom)).to_le_bytes());
    if custom {
        put_pair(&mut out, "general.alignment", &Value::U32(alignment));
    }
    for (key, value) in metadata {
        put_pair(&mut out, key, value);
    }
    let mut offset = 0u64;
    for tensor in tensors {
        put_str(&mut out, tensor.name);
        out.extend((tensor.dims.len() as u32).to_le_bytes());
        tensor.dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
        out.extend(tensor.type_id.to_le_bytes());
        out.extend(offset.to_le_bytes());
        offset = (offset + tensor.bytes).next_multiple_of(u64::from(alignment.max(1)));
    }
    out
}

fn put_str(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_pair(out: &mut Vec<u8>, key: &str, value: &Value) {
    put_str(out, key);
    let type_id: u32 = match value {
        Value::U8(_) => 0,
        Value::I8(_) => 1,
        Value::U16(_) => 2,
        Value::I16(_) => 3,
        Value::U32(_) => 4,
        Value::I32(_) => 5,
        Value::F32(_) => 6,
        Value::Bool(_) => 7,
        Value::String(_) => 8,
        Value::Array(_) => 9,
        Value::U64(_) => 10,
        Value::I64(_) => 11,
        Value::F64(_) => 12,
    };
    out.extend(type_id.to_le_bytes());
    match value {
        Value::U8(n) => out.push(*n),
        Value::I8(n) => out.extend(n.to_le_bytes()),
        Value::U16(n) => out.extend(n.to_le_bytes()),
        Value::I16(n) => out.extend(n.to_le_bytes()),
        Value::U32(n) => out.extend(n.to_le_bytes()),
        Value::I32(n) => out.extend(n.to_le_bytes()),
        Value::F32(x) => out.extend(x.to_le_bytes()),
        Value::Bool(flag) => out.push(u8::from(*flag)),
        Value::String(text) => put_str(out, text),
        Value::Array(array) => put_array(out, array),
        Value::U64(n) => out.extend(n.to_le_bytes()),
        Value::I64(n) => out.extend(n.to_le_bytes()),
        Value::F64(x) => out.extend(x.to_le_bytes()),
    }
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    let mut head = |type_id: u32, len: usize| {
        out.extend(type_id.to_le_bytes());
        out.extend((len as u64).to_le_bytes());
    };
    macro_rules! numbers {
        ($type_id:expr, $items:expr) => {{
            head($type_id, $items.len());
            $items.iter().for_each(|item| out.extend(item.to_le_bytes()));
        }};
    }
    match array {
        Array::U8(items) => numbers!(0, items),
        Array::I8(items) => numbers!(1, items),
        Array::U16(items) => numbers!(2, items),
        Array::I16(items) => numbers!(3, items),
        Array::U32(items) => numbers!(4, items),
        Array::I32(items) => numbers!(5, items),
        Array::F32(items) => numbers!(6, items),
        Array::Bool(items) => {
            head(7, items.len());
            out.extend(items.iter().map(|&flag| u8::from(flag)));
        }
        Array::Strings(items) => {
            head(8, items.len());
            items.iter().for_each(|text| put_str(out, text));
        }
        Array::Nested(items) => {
            head(9, items.len());
            items.iter().for_each(|item| put_array(out, item));
        }
        Array::U64(items) => numbers!(10, items),
        Array::I64(items) => numbers!(11, items),
        Array::F64(items) => numbers!(12, items),
    }
}
