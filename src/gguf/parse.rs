//! Parses the header, metadata and tensor table of one file and checks them against the file's length.

use std::collections::{HashMap, HashSet};

use crate::reader::{Read, Reader};
use crate::tensor::TensorInfo;
use crate::types::ggml_type;
use crate::value::Value;

const MAGIC: &[u8] = b"GGUF";
const DEFAULT_ALIGNMENT: u64 = 32;
/// Real files use 32, and some use a page. A larger alignment would only move offsets past the end of the file.
const MAX_ALIGNMENT: u64 = 1 << 20;
const MAX_NAME_BYTES: usize = 65_535;
/// The size of the smallest key-value pair, in bytes: the key's length, one byte of key, the type and one byte of value.
const MIN_PAIR_BYTES: u64 = 14;
/// The size of the smallest entry of the tensor table, in bytes.
const MIN_TENSOR_BYTES: u64 = 33;
/// Far above any real file. Without this limit, entries of minimal size would take many times the file's size in memory.
const MAX_ENTRIES: u64 = 1 << 18;

/// Metadata in file order, with an index by key.
#[derive(Default)]
pub(super) struct Metadata {
    pub pairs: Vec<(String, Value)>,
    pub index: HashMap<String, usize>,
}

impl Metadata {
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&i| &self.pairs[i].1)
    }
}

pub(super) struct Parsed {
    pub version: u32,
    pub metadata: Metadata,
    pub tensors: Vec<TensorInfo>,
}

/// Parses everything except the tensors' data. `shard` is the file's index within a split model.
pub(super) fn parse(bytes: &[u8], shard: usize) -> Read<Parsed> {
    let mut reader = Reader::new(bytes);
    let magic = reader.take(4, "the magic number")?;
    if magic != MAGIC {
        return Reader::fault(0, format!("not a GGUF file: starts with {:?}, expected \"GGUF\"", String::from_utf8_lossy(magic)));
    }
    let version = reader.u32("the version")?;
    if !(2..=3).contains(&version) {
        let why = match version {
            v if (1..=3).contains(&v.swap_bytes()) => "the file is big-endian, but only little-endian files are supported".to_owned(),
            v => format!("GGUF version {v} is not supported, expected 2 or 3"),
        };
        return Reader::fault(4, why);
    }
    let num_tensors = reader.u64("the number of tensors")?;
    let num_pairs = reader.u64("the number of metadata pairs")?;
    if num_pairs > reader.left() / MIN_PAIR_BYTES {
        return Reader::cut(16, format!("{num_pairs} metadata pairs do not fit into the {} bytes that are left", reader.left()));
    }
    if num_tensors > reader.left() / MIN_TENSOR_BYTES {
        return Reader::cut(8, format!("{num_tensors} tensors do not fit into the {} bytes that are left", reader.left()));
    }
    if num_pairs.max(num_tensors) > MAX_ENTRIES {
        let text = format!("{num_tensors} tensors and {num_pairs} metadata pairs, expected at most {MAX_ENTRIES} of each");
        return Reader::fault(8, text);
    }
    let (metadata, alignment) = read_metadata(&mut reader, num_pairs)?;
    let tensors = read_tensors(&mut reader, num_tensors, alignment, shard)?;
    check_layout(&tensors, bytes.len() as u64)?;
    Ok(Parsed { version, metadata, tensors: tensors.into_iter().map(|entry| entry.info).collect() })
}

/// Reads the metadata pairs. Returns them together with the alignment that they set.
fn read_metadata(reader: &mut Reader, count: u64) -> Read<(Metadata, u64)> {
    let (mut metadata, mut alignment) = (Metadata::default(), DEFAULT_ALIGNMENT);
    for i in 0..count {
        let at = reader.pos();
        let key = read_name(reader, &format!("the key of metadata pair {i}"))?;
        let type_at = reader.pos();
        let type_id = reader.u32(key)?;
        let value_at = reader.pos();
        let value = reader.value(type_id, type_at, key)?;
        if key == "general.alignment" {
            alignment = read_alignment(&value, value_at)?;
        }
        if metadata.index.insert(key.to_owned(), metadata.pairs.len()).is_some() {
            return Reader::fault(at, format!("key {key:?} occurs twice"));
        }
        metadata.pairs.push((key.to_owned(), value));
    }
    Ok((metadata, alignment))
}

/// Reads a key or a tensor's name. `what` names it in an error message.
fn read_name<'a>(reader: &mut Reader<'a>, what: &str) -> Read<&'a str> {
    let at = reader.pos();
    let name = reader.str(what)?;
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        return Reader::fault(at, format!("{what} has {} bytes, expected 1 to {MAX_NAME_BYTES}", name.len()));
    }
    Ok(name)
}

fn read_alignment(value: &Value, at: u64) -> Read<u64> {
    match value {
        Value::U32(n) if n.is_power_of_two() && (8..=MAX_ALIGNMENT).contains(&u64::from(*n)) => Ok(u64::from(*n)),
        Value::U32(n) => Reader::fault(at, format!("general.alignment is {n}, expected a power of two from 8 to {MAX_ALIGNMENT}")),
        other => Reader::fault(at, format!("general.alignment is of type {}, expected u32", other.type_name())),
    }
}

/// An entry of the tensor table.
struct TensorEntry {
    info: TensorInfo,
    /// The entry's position in the file, for error messages.
    at: u64,
}

fn read_tensors(reader: &mut Reader, count: u64, alignment: u64, shard: usize) -> Read<Vec<TensorEntry>> {
    let mut entries = Vec::new();
    let mut names = HashSet::new();
    for i in 0..count {
        let at = reader.pos();
        let info = read_tensor(reader, i, alignment, shard)?;
        if !names.insert(info.name.clone()) {
            return Reader::fault(at, format!("tensor {:?} occurs twice", info.name));
        }
        entries.push(TensorEntry { info, at });
    }
    // Offsets in the table are relative to the first aligned byte after it.
    let Some(data_start) = reader.pos().checked_next_multiple_of(alignment) else {
        return Reader::fault(reader.pos(), "the start of the tensor data overflows 64 bits");
    };
    for TensorEntry { info, at } in &mut entries {
        let Some(offset) = info.offset.checked_add(data_start) else {
            return Reader::fault(*at, format!("tensor {:?}: offset {} overflows 64 bits", info.name, info.offset));
        };
        info.offset = offset;
    }
    Ok(entries)
}

/// Reads one entry. Its offset is still relative to the start of the tensor data.
fn read_tensor(reader: &mut Reader, i: u64, alignment: u64, shard: usize) -> Read<TensorInfo> {
    let name = read_name(reader, &format!("the name of tensor {i}"))?;
    let dims_at = reader.pos();
    let num_dims = reader.u32(name)?;
    if !(1..=4).contains(&num_dims) {
        return Reader::fault(dims_at, format!("tensor {name:?} has {num_dims} dimensions, expected 1 to 4"));
    }
    let mut dims = Vec::with_capacity(num_dims as usize);
    for _ in 0..num_dims {
        dims.push(reader.u64(name)?);
    }
    if dims.iter().any(|&dim| dim == 0 || dim > i64::MAX as u64) {
        return Reader::fault(dims_at + 4, format!("tensor {name:?} has shape {dims:?}, expected dimensions of 1 to 2^63 - 1"));
    }
    let type_at = reader.pos();
    let type_id = reader.u32(name)?;
    let Some(kind) = ggml_type(type_id) else {
        return Reader::fault(type_at, format!("tensor {name:?} has unknown type {type_id}"));
    };
    if dims[0] % kind.block_size != 0 {
        let (row, block) = (dims[0], kind.block_size);
        let text = format!("tensor {name:?} has rows of {row} weights, expected a multiple of the {} block size {block}", kind.name);
        return Reader::fault(dims_at + 4, text);
    }
    let blocks = dims[1..].iter().try_fold(dims[0] / kind.block_size, |product, &dim| product.checked_mul(dim));
    let Some(nbytes) = blocks.and_then(|blocks| blocks.checked_mul(kind.block_bytes)) else {
        return Reader::fault(dims_at + 4, format!("tensor {name:?}: the size of shape {dims:?} overflows 64 bits"));
    };
    let offset_at = reader.pos();
    let offset = reader.u64(name)?;
    if offset % alignment != 0 {
        return Reader::fault(offset_at, format!("tensor {name:?}: offset {offset} is not a multiple of the alignment {alignment}"));
    }
    Ok(TensorInfo { name: name.to_owned(), dims, type_id, shard, offset, nbytes })
}

/// Checks that every tensor lies inside the file and that no two tensors overlap.
fn check_layout(entries: &[TensorEntry], file_len: u64) -> Read<()> {
    let mut order: Vec<&TensorEntry> = entries.iter().collect();
    order.sort_by_key(|entry| entry.info.offset);
    for entry in &order {
        let TensorInfo { name, offset, nbytes, .. } = &entry.info;
        if offset.checked_add(*nbytes).is_none_or(|end| end > file_len) {
            let text = format!("tensor {name:?}: {nbytes} bytes at offset {offset} reach past the end of the file ({file_len} bytes)");
            return Reader::cut(entry.at, text);
        }
    }
    for pair in order.windows(2) {
        let (a, b) = (&pair[0].info, &pair[1].info);
        if a.offset + a.nbytes > b.offset {
            return Reader::fault(
                pair[1].at,
                format!("tensor {:?} at {} overlaps tensor {:?}, which ends at {}", b.name, b.offset, a.name, a.offset + a.nbytes),
            );
        }
    }
    Ok(())
}
