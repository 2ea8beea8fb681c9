//! Finds the tensor of every role in an open file and checks its shape and type.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::error::{ModelError, ModelFault};
use crate::gather::{gather, scale_of};
use crate::spec::ModelSpec;
use crate::tensor_check::{check, check_values};
use crate::tensor_roles::TensorRole::{self, *};
use crate::weights::{Stack, StackLayout, Weight, Weights};
use gguf::GgufFile;

/// The tensors found so far.
#[derive(Default)]
pub struct FoundTensors {
    pub by_role: HashMap<(TensorRole, usize), Weight>,
    pub part_tensors: Vec<usize>,
}

/// Tensors that may hold the rows of several roles one after another, in files without separate tensors for these roles. A stack of experts
/// holds them expert by expert.
pub const FUSED: &[(&str, &[TensorRole])] = &[
    ("blk.{}.attn_qkv.weight", &[AttnQ, AttnK, AttnV]),
    ("blk.{}.attn_qkv.bias", &[AttnQBias, AttnKBias, AttnVBias]),
    ("blk.{}.ffn_up.weight", &[FfnGate, FfnUp]),
    ("blk.{}.ffn_up.bias", &[FfnGateBias, FfnUpBias]),
    ("blk.{}.ffn_gate_up_exps.weight", &[FfnGateExps, FfnUpExps]),
    ("blk.{}.ffn_gate_up_exps.bias", &[FfnGateExpsBias, FfnUpExpsBias]),
];

impl Weights {
    /// Validates the model in an open file. Copies nothing: the weights stay in the file's map.
    pub fn load(file: Arc<GgufFile>) -> Result<Self, ModelError> {
        let spec = ModelSpec::from_gguf(&file)?;
        match assign_tensors(&file, &spec) {
            Ok(FoundTensors { by_role, part_tensors }) => Ok(Weights { spec, file, by_role, part_tensors }),
            Err(fault) => Err(ModelError { path: file.path().to_owned(), fault }),
        }
    }

    /// The model with its first draft head as a further layer. None if the file has no tensor of such a head.
    ///
    /// # Errors
    /// [`ModelError`] names the head's key or tensor that is missing or does not fit.
    pub fn with_draft_head(&self) -> Result<Option<Self>, ModelError> {
        let Some(spec) = self.spec.with_draft_head(&self.file)? else { return Ok(None) };
        let FoundTensors { by_role, part_tensors } =
            assign_tensors(&self.file, &spec).map_err(|fault| ModelError { path: self.file.path().to_owned(), fault })?;
        Ok(Some(Self { spec, file: self.file.clone(), by_role, part_tensors }))
    }
}

fn assign_tensors(file: &GgufFile, spec: &ModelSpec) -> Result<FoundTensors, ModelFault> {
    file.verify_unchanged().map_err(|error| ModelFault::Changed(error.fault))?;
    let mut found = FoundTensors::default();
    assign_part(file, spec, 0, &spec.global_roles(), &mut found)?;
    for layer in 0..spec.num_layers() {
        assign_part(file, spec, layer, &spec.layer_roles(layer), &mut found)?;
    }
    for role in [RopeFreqs, RopeFactorsLong, RopeFactorsShort] {
        check_values(file, found.by_role.get(&(role, 0)), "a positive number", |factor| factor > 0.0)?;
    }
    // With a positive decay, the state would grow without bound.
    for layer in 0..spec.num_layers() {
        check_values(file, found.by_role.get(&(SsmA, layer)), "a negative number or 0", |decay| decay <= 0.0)?;
    }
    refuse_unused(file, spec, &found)?;
    if let Some(&embedding) = found.by_role.get(&(TokenEmbd, 0)) {
        found.by_role.entry((Output, 0)).or_insert(embedding);
    }
    Ok(found)
}

/// Assigns the tensors of one layer, or of the roles outside the layers.
pub fn assign_part(
    file: &GgufFile,
    spec: &ModelSpec,
    layer: usize,
    roles: &[(TensorRole, bool)],
    found: &mut FoundTensors,
) -> Result<(), ModelFault> {
    for &(role, required) in roles {
        if found.by_role.contains_key(&(role, layer)) {
            continue;
        }
        let Some(dims) = role.dims(spec, layer) else { continue };
        let name = |pattern: &str| pattern.replace("{}", &layer.to_string());
        let own = spec.arch.names_of(role).find_map(|pattern| file.tensor_index(&name(&pattern)));
        if own.is_none()
            && let Some(stack) = gather(file, role, layer, &dims, &mut found.part_tensors)?
        {
            found.by_role.insert((role, layer), stack);
            continue;
        }
        let fused = FUSED.iter().find(|(_, parts)| parts.contains(&role));
        let fused = fused.map(|(pattern, parts)| (format!("{}{pattern}", spec.arch.prefix), *parts));
        match (own, fused) {
            (Some(index), _) if !holds_gate_too(file, index, role, &dims, roles) => {
                let quant = check(&file.tensors()[index], &dims, dims.len() == 1)?;
                let rows = dims[1..].iter().product();
                let scale = scale_of(file, &file.tensors()[index].name, (role, layer), dims.get(2).copied().unwrap_or(1), roles)?;
                found.by_role.insert((role, layer), Weight { quant, rows, cols: dims[0], tensor: index, offset: 0, stack: None, scale });
            }
            (_, Some((pattern, parts))) if is_fused(file, &name(&pattern), role, &dims, roles) => {
                let wanted = |part: &&TensorRole| roles.iter().any(|(role, _)| role == *part);
                let parts: Vec<TensorRole> = parts.iter().filter(wanted).copied().collect();
                assign_fused(file, spec, &name(&pattern), (&parts, roles), layer, found)?;
            }
            (None, Some((pattern, parts))) if required && file.tensor_index(&name(&pattern)).is_some() => {
                // the tensor exists, but has too few rows or too many
                assign_fused(file, spec, &name(&pattern), (parts, roles), layer, found)?;
            }
            _ if required => {
                let tensor = spec.arch.names_of(role).next().map_or_else(|| role.name(layer), |pattern| name(&pattern));
                return Err(ModelFault::MissingTensor { tensor, expected: dims });
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether the file has the fused tensor `name` with the rows of `role`, which has no separate tensor.
fn is_fused(file: &GgufFile, name: &str, role: TensorRole, dims: &[usize], roles: &[(TensorRole, bool)]) -> bool {
    let Some(index) = file.tensor_index(name) else { return false };
    match role {
        FfnGate | FfnUp => holds_gate_too(file, index, FfnUp, dims, roles),
        FfnGateBias | FfnUpBias => holds_gate_too(file, index, FfnUpBias, dims, roles),
        _ => true,
    }
}

/// Whether the tensor of `FfnUp` holds the gate's rows before its own, as in files without a separate gate.
fn holds_gate_too(file: &GgufFile, index: usize, role: TensorRole, dims: &[usize], roles: &[(TensorRole, bool)]) -> bool {
    let gate = match role {
        FfnUp => FfnGate,
        FfnUpBias => FfnGateBias,
        _ => return false,
    };
    let found = &file.tensors()[index].dims;
    let twice = dims.last().zip(found.last()).is_some_and(|(&expected, &found)| found == 2 * expected as u64);
    twice && found.len() == dims.len() && roles.iter().any(|(role, _)| *role == gate)
}

/// Assigns the rows (or the elements of a vector) of one tensor to those of several roles that are wanted.
fn assign_fused(
    file: &GgufFile,
    spec: &ModelSpec,
    name: &str,
    (parts, wanted): (&[TensorRole], &[(TensorRole, bool)]),
    layer: usize,
    found: &mut FoundTensors,
) -> Result<(), ModelFault> {
    let dims: Vec<Vec<usize>> = parts.iter().filter_map(|role| role.dims(spec, layer)).collect();
    let Some(mut whole) = dims.first().cloned() else { return Ok(()) };
    // the dimension that counts rows: the elements of a vector, or the rows of a matrix
    let is_vector = whole.len() == 1;
    let at = if is_vector || name.ends_with(".bias") { 0 } else { 1 };
    whole[at] = dims.iter().map(|dims| dims[at]).sum();
    let Some(index) = file.tensor_index(name) else {
        return Err(ModelFault::MissingTensor { tensor: name.to_owned(), expected: whole });
    };
    let quant = check(&file.tensors()[index], &whole, is_vector)?;
    let mut offset = 0;
    for (&role, dims) in parts.iter().zip(&dims) {
        let (cols, rows) = (dims[0], dims[1..].iter().product::<usize>());
        let stacked = dims.len() > at + 1;
        let scale = if stacked { None } else { scale_of(file, name, (role, layer), 1, wanted)? };
        let one = Weight { quant, rows: if at == 1 { dims[1] } else { 1 }, cols, tensor: index, offset, stack: None, scale };
        let pitch = quant.row_bytes(whole[0]) * if at == 1 { whole[1] } else { 1 };
        let stack = stacked.then(|| Stack { count: dims[at + 1], place: StackLayout::Apart(pitch) });
        offset += one.num_bytes();
        found.by_role.insert((role, layer), Weight { rows, stack, ..one });
    }
    Ok(())
}

/// What changes the results of a matrix beside its weights: a bias, a scale, the bounds of its inputs and outputs (Gemma 4's encoders).
const CHANGES: [&str; 6] = ["bias", "scale", "input_min", "input_max", "output_min", "output_max"];

/// Refuses a bias, a scale or a bound without a role, because ignoring it would change the results. Other tensors without a role are logged
/// and ignored. That includes scales of inputs: they are for inputs that are rounded to four bits, which the engines do not do.
pub fn refuse_unused(file: &GgufFile, spec: &ModelSpec, found: &FoundTensors) -> Result<(), ModelFault> {
    let of_roles = found.by_role.values().flat_map(|weight| [Some(weight.tensor), weight.scale]);
    let used: HashSet<usize> = of_roles.flatten().chain(found.part_tensors.iter().copied()).collect();
    // A bias whose weights are unused belongs to a part that the model does not compute.
    let has_unused_weights = |name: &str| {
        let weights = CHANGES.iter().find_map(|kind| name.strip_suffix(kind)).map(|stem| format!("{stem}weight"));
        weights.and_then(|name| file.tensor_index(&name)).is_some_and(|index| !used.contains(&index))
    };
    let is_ignored = |name: &str| spec.arch.ignored.iter().any(|role| (0..spec.num_layers()).any(|layer| role.name(layer) == name));
    for (_, tensor) in file.tensors().iter().enumerate().filter(|(index, _)| !used.contains(index)) {
        let has_part =
            is_behind(&tensor.name, spec) || has_unused_weights(&tensor.name) || is_ignored(&tensor.name) || is_idle(&tensor.name, spec);
        if tensor.name.rsplit_once('.').is_some_and(|(_, last)| CHANGES.contains(&last)) && !has_part {
            return Err(ModelFault::UnusedTensor { tensor: tensor.name.clone(), arch: spec.arch.name });
        }
        tracing::debug!(path = %file.path().display(), tensor = tensor.name, "tensor is not used");
    }
    Ok(())
}

/// Whether a tensor belongs to a layer after the last one. Such layers predict further tokens.
fn is_behind(name: &str, spec: &ModelSpec) -> bool {
    layer_of(name, spec).is_some_and(|layer| layer >= spec.num_layers())
}

/// Whether a tensor belongs to the keys and values of a layer that reads those of another layer.
fn is_idle(name: &str, spec: &ModelSpec) -> bool {
    let Some(layer) = layer_of(name, spec).filter(|&layer| layer < spec.num_layers()) else { return false };
    let reads_another = spec.layers[layer].attention().is_some_and(|attention| attention.kv_of.is_some());
    reads_another
        && [AttnQBias, AttnKBias, AttnVBias]
            .iter()
            .any(|role| spec.arch.names_of(*role).any(|of| of.replace("{}", &layer.to_string()) == name))
}

fn layer_of(name: &str, spec: &ModelSpec) -> Option<usize> {
    name.strip_prefix(spec.arch.prefix)?.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}
