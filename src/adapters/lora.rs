//! Reads LoRA adapters in GGUF files, in the form that llama.cpp's converter writes.
//!
//! A tensor `NAME` has two halves: `NAME.lora_a` [rank, cols] and `NAME.lora_b` [rows, rank], each with the experts in front if it is a
//! stack. In the table of tokens the halves' roles are turned round: `lora_a` [vocab, rank] is a table, and `lora_b` [hidden, rank] turns
//! its rows into embeddings.

use engine::LowRank;
use gguf::{GgufFile, TensorInfo};
use model::Weights;

use crate::assemble::Assembly;
use crate::budget::Budget;
use crate::numbers::numbers;
use crate::open_adapter::{OpenAdapter, invocation_of};
use crate::targets::{Shape, Targets};

const TABLE: &str = "token_embd.weight";

/// The halves of a tensor's change.
struct Halves<'a> {
    name: &'a str,
    a: &'a TensorInfo,
    b: &'a TensorInfo,
}

/// Reads an adapter.
///
/// # Errors
/// Names the key or the tensor that is malformed or does not fit the model.
pub fn read(file: &GgufFile, weights: &Weights) -> Result<OpenAdapter, String> {
    check_kind(file, weights)?;
    let alpha = alpha(file)?;
    let invocation = invocation(file, weights)?;
    let targets = Targets::of(weights);
    let (mut assembly, mut budget, mut unused) = (Assembly::default(), Budget::default(), Vec::new());
    let pairs = pairs(file)?;
    if pairs.is_empty() {
        return Err("the adapter has no tensors".to_owned());
    }
    for halves in &pairs {
        let (shape, rank) = shape_of(halves)?;
        check_rank(halves.name, rank, shape)?;
        let placements = targets.place(halves.name, shape)?;
        let (first, second) = (numbers(file, halves.a, &mut budget)?, numbers(file, halves.b, &mut budget)?);
        let (a, b) = if halves.name == TABLE { (transposed(&second, rank), first) } else { (first, second) };
        let scale = if alpha == 0.0 { 1.0 } else { alpha / rank as f32 };
        if placements.is_empty() {
            unused.push(halves.name.to_owned());
        }
        assembly.add(halves.name, LowRank { rank, a, b, scale, gain: None }, shape, placements);
    }
    let changes = assembly.finish(&targets.all, &mut budget)?;
    OpenAdapter::of_changes(changes, invocation, unused)
}

fn check_kind(file: &GgufFile, weights: &Weights) -> Result<(), String> {
    let text = |key: &str| match file.get(key) {
        Some(value) => value.as_str().map(Some).ok_or_else(|| format!("{key} is of type {}, expected string", value.type_name())),
        None => Ok(None),
    };
    let (kind, form) = (text("general.type")?, text("adapter.type")?);
    match (kind, form) {
        (Some("adapter"), Some("lora")) => {}
        (Some("adapter"), form) => return Err(format!("adapter.type is {}, expected \"lora\"", shown(form))),
        (None | Some("model"), None) => return Err("is a model, expected an adapter (general.type is not \"adapter\")".to_owned()),
        (kind, _) => return Err(format!("general.type is {}, expected \"adapter\"", shown(kind))),
    }
    let (own, found) = (weights.file.architecture(), text("general.architecture")?);
    match found == own {
        true => Ok(()),
        false => Err(format!("general.architecture is {}, but the model's is {}: give an adapter of this model", shown(found), shown(own))),
    }
}

fn shown(text: Option<&str>) -> String {
    text.map_or_else(|| "missing".to_owned(), |text| format!("{text:?}"))
}

/// The numerator of the scale. 0: the scale is 1.
fn alpha(file: &GgufFile) -> Result<f32, String> {
    let key = "adapter.lora.alpha";
    let Some(value) = file.get(key) else { return Ok(0.0) };
    value.as_f32().filter(|alpha| alpha.is_finite()).ok_or_else(|| format!("{key} is {value:?}, expected a finite number"))
}

/// The tokens that switch an activated LoRA on.
fn invocation(file: &GgufFile, weights: &Weights) -> Result<Vec<u32>, String> {
    let key = "adapter.alora.invocation_tokens";
    let Some(value) = file.get(key) else { return Ok(Vec::new()) };
    let Some(ids) = value.as_array().and_then(|array| array.ints()) else {
        return Err(format!("{key} is of type {}, expected an array of integers", value.type_name()));
    };
    invocation_of(key, &ids, weights)
}

/// The tensors with both halves, in the order of the file.
fn pairs(file: &GgufFile) -> Result<Vec<Halves<'_>>, String> {
    let mut pairs = Vec::new();
    for tensor in file.tensors() {
        let half = |end: &str| tensor.name.strip_suffix(end);
        let missing = |end: &str| format!("tensor {} has no {end} beside it", outside::in_line(&tensor.name));
        if let Some(name) = half(".lora_a") {
            let b = file.tensor(&format!("{name}.lora_b")).ok_or_else(|| missing(".lora_b"))?;
            pairs.push(Halves { name, a: tensor, b });
        } else if let Some(name) = half(".lora_b") {
            file.tensor(&format!("{name}.lora_a")).ok_or_else(|| missing(".lora_a"))?;
        } else {
            return Err(format!("tensor {} is not part of a LoRA adapter, expected .lora_a or .lora_b", outside::in_line(&tensor.name)));
        }
    }
    Ok(pairs)
}

/// The shape of the matrices that the halves change, and their rank.
fn shape_of(halves: &Halves) -> Result<(Shape, usize), String> {
    let [a, b] = [dims(halves.a)?, dims(halves.b)?];
    let differ = |what: &str| {
        let (a, b) = (&halves.a.dims, &halves.b.dims);
        format!("{}: lora_a has shape {a:?} and lora_b {b:?} (innermost first), so their {what} differ", outside::in_line(halves.name))
    };
    if halves.name == TABLE {
        return match a[0] == b[0] && a[2] == 1 && b[2] == 1 {
            true => Ok((Shape { count: 1, rows: a[1], cols: b[1] }, a[0])),
            false => Err(differ("ranks")),
        };
    }
    match (a[1] == b[0], a[2] == b[2]) {
        (true, true) => Ok((Shape { count: a[2], rows: b[1], cols: a[0] }, a[1])),
        (false, _) => Err(differ("ranks")),
        _ => Err(differ("numbers of matrices")),
    }
}

/// Three dimensions, innermost first.
fn dims(tensor: &TensorInfo) -> Result<[usize; 3], String> {
    let mut dims = [1; 3];
    for (i, &dim) in tensor.dims.iter().enumerate().filter(|(_, dim)| **dim != 1) {
        match (dims.get_mut(i), usize::try_from(dim)) {
            (Some(place), Ok(dim)) => *place = dim,
            _ => return Err(format!("tensor {} has shape {:?}, expected at most 3 dimensions", tensor.name, tensor.dims)),
        }
    }
    Ok(dims)
}

/// Refuses a rank above both dimensions. One above the smaller dimension is a waste that training tools allow: a router has few rows.
pub fn check_rank(name: &str, rank: usize, shape: Shape) -> Result<(), String> {
    match rank <= shape.rows.max(shape.cols) {
        true => Ok(()),
        false => Err(format!("{}: the rank {rank} is larger than the matrix, which has {shape}", outside::in_line(name))),
    }
}

/// The transpose of a matrix with rows of `width` numbers.
pub fn transposed(matrix: &[f32], width: usize) -> Vec<f32> {
    let rows = matrix.len() / width.max(1);
    (0..width).flat_map(|col| (0..rows).map(move |row| matrix[row * width + col])).collect()
}
