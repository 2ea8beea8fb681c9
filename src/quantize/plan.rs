//! [`plan`]: chooses the type of every tensor of the output.

use crate::encoder::Encoder;
use crate::error::QuantizeError;
use crate::file_type::FileType;
use crate::mixture::{Role, Traits, type_of};
use gguf::{Array, GgufFile, TensorInfo, Value};
use model::Quant;

/// The planned type and size of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorPlan {
    /// The index into the source's tensors.
    pub tensor: usize,
    /// ggml's id of the type to write.
    pub type_id: u32,
    /// The number of bytes to write.
    pub bytes: u64,
}

/// Parts of the names of matrices that keep their type, because they are small and sensitive: norms, routers, tables of positions,
/// convolutions, and the low-rank parts of recurrent layers.
const KEPT: &[&str] = &[
    "_norm.weight",
    "ffn_gate_inp.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "position_embd",
    "token_types",
    "ssm_conv1d",
    "shortconv.conv",
    "time_mix_first",
    "time_mix_w0",
    "time_mix_w1",
    "time_mix_w2",
    "time_mix_v0",
    "time_mix_v1",
    "time_mix_v2",
    "time_mix_a0",
    "time_mix_a1",
    "time_mix_a2",
    "time_mix_g1",
    "time_mix_g2",
    "time_mix_decay_w1",
    "time_mix_decay_w2",
    "time_mix_lerp_fused",
    "attn_rel_b",
];

/// Whether the file type decides this tensor's type.
pub fn is_matrix(name: &str, dims: &[u64]) -> bool {
    name.ends_with("weight") && dims.iter().filter(|&&dim| dim > 1).count() >= 2 && !KEPT.iter().any(|part| name.contains(part))
}

/// The layer in a tensor's name, such as 7 in `blk.7.attn_v.weight`.
fn layer_of(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

/// Plans every tensor, in the source's order.
///
/// # Errors
/// [`QuantizeError::Source`] if a matrix is of a type that cannot be dequantised.
pub fn plan(source: &GgufFile, kind: &FileType) -> Result<Vec<TensorPlan>, QuantizeError> {
    let traits = traits(source);
    let tensors = source.tensors();
    let layers_with = |role: Role| {
        let of = tensors.iter().filter(|tensor| is_matrix(&tensor.name, &tensor.dims) && Role::of(&tensor.name) == role);
        let mut layers: Vec<_> = of.filter_map(|tensor| layer_of(&tensor.name)).collect();
        layers.sort_unstable();
        layers.dedup();
        layers
    };
    let (values, downs) = (layers_with(Role::Value), layers_with(Role::Down));
    let place = |tensor: &TensorInfo, role: Role| {
        let layers = match role {
            Role::Value => &values,
            Role::Down => &downs,
            _ => return (0, 1),
        };
        let index = layer_of(&tensor.name).and_then(|layer| layers.binary_search(&layer).ok()).unwrap_or(0);
        (index, layers.len())
    };
    let planned = |(index, tensor): (usize, &TensorInfo)| {
        let keep = TensorPlan { tensor: index, type_id: tensor.type_id, bytes: tensor.nbytes };
        if !is_matrix(&tensor.name, &tensor.dims) {
            return Ok(keep);
        }
        let (role, cols) = (Role::of(&tensor.name), tensor.dims[0]);
        let type_id = type_of(kind, role, place(tensor, role), cols, &traits);
        if type_id == tensor.type_id {
            return Ok(keep);
        }
        let unknown = || QuantizeError::Source { tensor: tensor.name.clone(), type_name: tensor.type_name() };
        Quant::by_id(tensor.type_id).ok_or_else(unknown)?;
        let encoder = Encoder::by_id(type_id).ok_or_else(unknown)?;
        let bytes = tensor.elements() / encoder.quant.block_size as u64 * encoder.quant.block_bytes as u64;
        Ok(TensorPlan { tensor: index, type_id, bytes })
    };
    tensors.iter().enumerate().map(planned).collect()
}

fn traits(source: &GgufFile) -> Traits {
    let largest = |suffix: &str| match source.arch_value(suffix) {
        Some(Value::Array(array)) => Array::ints(array).and_then(|items| items.into_iter().max()).and_then(|n| usize::try_from(n).ok()),
        Some(value) => value.as_int().and_then(|n| usize::try_from(n).ok()),
        None => None,
    };
    let heads = largest("attention.head_count").unwrap_or(1);
    let kv_heads = largest("attention.head_count_kv").unwrap_or(heads).max(1);
    Traits {
        is_falcon: source.architecture() == Some("falcon"),
        num_layers: source.num_layers().unwrap_or(0),
        num_experts: largest("expert_count").unwrap_or(0),
        heads_per_kv: heads / kv_heads,
        is_tied: source.tensor("output.weight").is_none(),
    }
}
