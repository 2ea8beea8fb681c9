//! [`assign`]: assigns the tensors of the checkpoint to tensors of the output.

use std::collections::BTreeMap;

use safetensors::tensor::Dtype;

use crate::checkpoint::Checkpoint;
use crate::error::{Fallible, wrong};
use crate::family::{Family, Rule, Shape, TensorTransform};
use crate::pattern::{filled, numbers};
use crate::rows::RowSelection;
use crate::shard::{Tensor, float_type};

/// Prefixes that the classes of `transformers` put before the names of the patterns.
const PREFIXES: &[&str] = &["model.", "language_model.", "transformer.", "gpt_neox."];
/// Suffixes of the names of buffers, which follow from the configuration.
const BUFFERS: &[&str] = &["rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias"];
/// The most names that an error lists.
const MAX_NAMES: usize = 8;

/// Some rows of a tensor of the checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// The index into the checkpoint's tensors.
    pub tensor: usize,
    pub rows: RowSelection,
}

/// A tensor of the output: its parts, in order.
#[derive(Clone, Debug)]
pub struct Assigned {
    pub name: String,
    /// Outermost dimension first.
    pub shape: Vec<u64>,
    pub parts: Vec<Part>,
    pub plus_one: bool,
    /// The type of the checkpoint's weights in ggml.
    pub type_id: u32,
}

/// An output tensor, with its rule and its sources.
struct Target {
    rule: &'static Rule,
    /// Indexes into the checkpoint's tensors, by the second number of the pattern.
    sources: BTreeMap<u32, usize>,
}

/// The name without the classes' prefixes.
pub fn bare(mut name: &str) -> &str {
    while let Some(rest) = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)) {
        name = rest;
    }
    name
}

/// The rows and columns of a tensor. A vector has rows of one element.
pub fn matrix(shape: &[u64]) -> (u64, u64) {
    match shape {
        [] => (1, 1),
        [len] => (*len, 1),
        [rows @ .., cols] => (rows.iter().product(), *cols),
    }
}

/// Assigns the tensors of the output, except those of the rotation. Tensors of the whole model come first, then those of each layer.
///
/// # Errors
/// If a tensor of the checkpoint has no place in the output, or if one of several parts of a tensor is missing.
pub fn assign(checkpoint: &Checkpoint, family: &'static Family, shape: &Shape, is_tied: Option<bool>) -> Fallible<Vec<Assigned>> {
    // Keyed by layer (0 for none), the rule's number and the ending, in the order of the output.
    let mut targets: BTreeMap<(u32, usize, &str, String), Target> = BTreeMap::new();
    let mut unknown = Vec::new();
    for (index, tensor) in checkpoint.tensors().enumerate() {
        let name = bare(&tensor.name);
        if is_buffer(tensor) || family.beside.iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        let places = places(family, name);
        if places.is_empty() {
            unknown.push(tensor.name.as_str());
        }
        if !places.is_empty() && float_type(tensor.dtype).is_none() {
            return refuse_type(tensor);
        }
        for (order, rule, found, ending) in places {
            if rule.to.contains("{}") && found.first().is_some_and(|&layer| layer >= shape.layers) {
                let (name, layers) = (&tensor.name, shape.layers);
                return wrong(format!("tensor {name} belongs to a layer beyond the {layers} layers of config.json (num_hidden_layers)"));
            }
            let layer = found.first().filter(|_| rule.to.contains("{}"));
            let name = format!("{}{ending}", filled(rule.to, layer.map(std::slice::from_ref).unwrap_or_default()));
            let key = (layer.map_or(0, |layer| layer.saturating_add(1)), order, ending, name);
            let sources = &mut targets.entry(key).or_insert(Target { rule, sources: BTreeMap::new() }).sources;
            if let Some(other) = sources.insert(found.get(1).copied().unwrap_or(0), index) {
                return wrong(format!("tensors {} and {} map to the same part of the output", checkpoint.tensor(other).name, tensor.name));
            }
        }
    }
    if !unknown.is_empty() {
        let more = if unknown.len() > MAX_NAMES { format!(" and {} more", unknown.len() - MAX_NAMES) } else { String::new() };
        let names = unknown[..unknown.len().min(MAX_NAMES)].join(", ");
        return wrong(format!("no tensor of {} takes {names}{more}: is the checkpoint of another family?", family.classes[0]));
    }
    let is_output = |key: &(u32, usize, &str, String)| key.3 == "output.weight";
    match is_tied {
        Some(true) => targets.retain(|key, _| !is_output(key)),
        Some(false) if !targets.keys().any(is_output) => {
            return wrong("lm_head.weight is missing, although tie_word_embeddings is false: is a part of the checkpoint missing?");
        }
        _ => {}
    }
    let assigned: Vec<Assigned> =
        targets.into_iter().map(|((.., name), target)| built(checkpoint, name, &target, shape)).collect::<Fallible<_>>()?;
    match assigned.windows(2).find(|pair| pair[0].name == pair[1].name) {
        Some(pair) => wrong(format!("two tensors of the checkpoint map to {}", pair[0].name)),
        None => Ok(assigned),
    }
}

/// The names in the checkpoint of the tensors that an output tensor is made from.
pub fn origin(family: &'static Family, name: &str) -> Option<String> {
    let at = name.len() - [".weight", ".bias"].into_iter().find(|ending| name.ends_with(ending))?.len();
    let (stem, ending) = name.split_at(at);
    let found = |rule: &Rule| Some(format!("{}{ending}", filled(rule.from, &numbers(rule.to, stem)?)));
    let names: Vec<String> = family.rules().filter_map(found).collect();
    (!names.is_empty()).then(|| names.join(" or "))
}

/// Whether the tensor is a buffer, stored although it follows from the configuration. A bias that the model uses is a vector.
fn is_buffer(tensor: &Tensor) -> bool {
    BUFFERS.iter().any(|end| tensor.name.ends_with(end)) && (tensor.shape.len() != 1 || tensor.name.ends_with("inv_freq"))
}

/// Every rule that matches a name, with the rule's number, the name's numbers and its ending.
pub fn places<'a>(family: &'static Family, name: &'a str) -> Vec<(usize, &'static Rule, Vec<u32>, &'a str)> {
    let ending = [".weight", ".bias"].into_iter().find(|ending| name.ends_with(ending));
    let Some(ending) = ending else { return Vec::new() };
    let (stem, ending) = name.split_at(name.len() - ending.len());
    let fits = |(order, rule): (usize, &'static Rule)| Some((order, rule, numbers(rule.from, stem)?, ending));
    family.rules().enumerate().filter_map(fits).collect()
}

fn built(checkpoint: &Checkpoint, name: String, target: &Target, shape: &Shape) -> Fallible<Assigned> {
    let (how, is_weight) = (target.rule.how, name.ends_with(".weight"));
    let count = target.sources.len();
    if let Some(missing) = (0..count as u32).find(|n| !target.sources.contains_key(n)) {
        return wrong(format!("{name}: number {missing} of `{}` is missing: is a part of the checkpoint missing?", target.rule.from));
    }
    let first = checkpoint.tensor(target.sources[&0]);
    let Some(type_id) = float_type(first.dtype) else { return refuse_type(first) };
    let mut parts = Vec::new();
    for &index in target.sources.values() {
        let tensor = checkpoint.tensor(index);
        if tensor.dtype != first.dtype || tensor.shape != first.shape {
            let ([a, b], found) = ([&first.shape, &tensor.shape], tensor.dtype);
            return wrong(format!("{} is {found} {b:?}, but {} is {} {a:?}: expected equal ones", tensor.name, first.name, first.dtype));
        }
        let (rows, cols) = matrix(&tensor.shape);
        for rows_taken in choices(how, &tensor.shape, shape) {
            if rows_taken.count(rows, cols).is_none() {
                return wrong(format!(
                    "{} has the shape {:?}, which does not fit {} heads of {}",
                    tensor.name, tensor.shape, shape.heads, shape.head_dim
                ));
            }
            parts.push(Part { tensor: index, rows: rows_taken });
        }
    }
    let mut dims = first.shape.clone();
    match how {
        TensorTransform::Stacked => dims.insert(0, count as u64),
        TensorTransform::Row if dims.first() == Some(&1) && dims.len() == 2 => drop(dims.remove(0)),
        TensorTransform::Transposed if dims.len() == 2 => dims.reverse(),
        TensorTransform::FirstHalves | TensorTransform::SecondHalves if dims.len() >= 2 => {
            let rows = dims.len() - 2;
            dims[rows] /= 2;
        }
        _ => {}
    }
    Ok(Assigned { name, shape: dims, parts, plus_one: how == TensorTransform::PlusOne && is_weight, type_id })
}

/// The rows to take from a tensor, as one or more selections.
pub fn choices(how: TensorTransform, dims: &[u64], shape: &Shape) -> Vec<RowSelection> {
    let (head, rotated) = (u64::from(shape.head_dim), u64::from(shape.rotated));
    // The rows of each expert.
    let rows = dims.len().checked_sub(2).map_or(1, |at| dims[at]);
    match how {
        TensorTransform::PairedQueries | TensorTransform::PairedKeys => vec![RowSelection::Pairs { head, rotated }],
        TensorTransform::Transposed if dims.len() == 2 => vec![RowSelection::Columns],
        TensorTransform::GroupedQkv => {
            let queries = u64::from(shape.heads / shape.kv_heads) * head;
            let group = queries + 2 * head;
            let part = |start, count| RowSelection::Grouped { group, start, count };
            vec![part(0, queries), part(queries, head), part(queries + head, head)]
        }
        // No selection fits an odd number of rows.
        TensorTransform::FirstHalves => vec![RowSelection::Grouped { group: rows / 2 * 2, start: 0, count: rows / 2 }],
        TensorTransform::SecondHalves => vec![RowSelection::Grouped { group: rows / 2 * 2, start: rows / 2, count: rows / 2 }],
        _ => vec![RowSelection::All],
    }
}

fn refuse_type<T>(tensor: &Tensor) -> Fallible<T> {
    let is_fp8 = matches!(tensor.dtype, Dtype::F8_E4M3 | Dtype::F8_E5M2 | Dtype::F8_E8M0 | Dtype::F8_E4M3FNUZ | Dtype::F8_E5M2FNUZ);
    let hint = if is_fp8 { "FP8 checkpoints are not supported: use the BF16 checkpoint" } else { "expected F32, F16 or BF16" };
    wrong(format!("tensor {} is of type {}: {hint}", tensor.name, tensor.dtype))
}
