//! Reads the rotation of queries and keys.

use super::keys::{Fallible, Keys, MAX_DIM, metadata, shown};
use crate::arch::Mixers;
use crate::spec::{RopeScaling, RopeSpec, Temperature};
use crate::tensor_roles::TensorRole;
use gguf::Value;

/// The rotation of a layer with heads of `head_dim` elements. `local` says whether the layer has a window.
pub fn read(keys: &Keys, head_dim: usize, local: bool, context_length: usize) -> Fallible<RopeSpec> {
    let arch = keys.arch;
    let suffix =
        if local && keys.value("rope.dimension_count_swa").is_some() { "rope.dimension_count_swa" } else { "rope.dimension_count" };
    let dim = keys.count(suffix, MAX_DIM)?.unwrap_or(head_dim);
    if dim > head_dim || !dim.is_multiple_of(2) {
        let expected = format!("an even number up to the {head_dim} elements of a head");
        return metadata(keys.key(suffix), dim.to_string(), expected);
    }
    let theta = keys.positive("rope.freq_base")?.unwrap_or(arch.default_rope_theta);
    let local_theta = if local { keys.positive("rope.freq_base_swa")?.or(arch.local_rope_theta) } else { None };
    // Layers with a base of their own are not scaled.
    let scaling = if local_theta.is_some() { RopeScaling::None } else { scaling(keys, context_length)? };
    Ok(RopeSpec { dim, theta: local_theta.unwrap_or(theta), scaling, factors: local_theta.is_none() })
}

fn scaling(keys: &Keys, context_length: usize) -> Fallible<RopeScaling> {
    // `rope.scale_linear` is the older key for linear scaling.
    let factor = keys.positive_or_none("rope.scaling.factor")?.or(keys.positive_or_none("rope.scale_linear")?).unwrap_or(1.0);
    let kind = match keys.value("rope.scaling.type") {
        // Phi's files have tensors of factors but no key for the type.
        None if keys.file.tensor_index(&TensorRole::RopeFactorsLong.name(0)).is_some() => "longrope",
        None => "linear",
        Some(Value::String(kind)) => kind,
        Some(other) => return metadata(keys.key("rope.scaling.type"), shown(other), "a string"),
    };
    let original_context =
        || -> Fallible<usize> { Ok(keys.count_or_none("rope.scaling.original_context_length", MAX_DIM)?.unwrap_or(context_length)) };
    let attn_factor = keys.positive_or_none("rope.scaling.attn_factor")?;
    let attn_factor = attn_factor.or(keys.positive_or_none("rope.scaling.yarn_attn_factor")?).unwrap_or(1.0);
    match kind {
        "none" | "linear" if attn_factor != 1.0 => {
            metadata(keys.key("rope.scaling.attn_factor"), attn_factor.to_string(), format!("1 or no such key with {kind} scaling"))
        }
        "none" => Ok(RopeScaling::None),
        "linear" if factor == 1.0 => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor }),
        "longrope" => Ok(RopeScaling::Long { original_context: original_context()?, attn_factor }),
        "yarn" => {
            if factor < 1.0 {
                return metadata(keys.key("rope.scaling.factor"), factor.to_string(), "1 or more for yarn");
            }
            if let Some(ext) = keys.positive_or_none("rope.scaling.yarn_ext_factor")?.filter(|&ext| ext != 1.0) {
                return metadata(keys.key("rope.scaling.yarn_ext_factor"), ext.to_string(), "1 or no such key (not supported)");
            }
            let (fast, slow) = (keys.positive("rope.scaling.yarn_beta_fast")?, keys.positive("rope.scaling.yarn_beta_slow")?);
            Ok(RopeScaling::Yarn {
                factor,
                original_context: original_context()?,
                attn_factor: attn_factor * yarn_attn_factor(keys, factor)?,
                beta_fast: fast.unwrap_or(32.0),
                beta_slow: slow.unwrap_or(1.0),
            })
        }
        other => metadata(keys.key("rope.scaling.type"), format!("{other:?}"), "none, linear, yarn or longrope"),
    }
}

/// YaRN's factor of sine and cosine: the factor of `mscale`, which is 1, divided by the factor of `mscale_all_dim` if the file has that
/// key. In files with latent attention both are equal, and attention scores are scaled instead (see `latent.rs`).
fn yarn_attn_factor(keys: &Keys, factor: f32) -> Fallible<f32> {
    let of = |mscale: f32| 0.1 * mscale * factor.ln() + 1.0;
    Ok(match yarn_log_multiplier(keys)? {
        None => of(1.0),
        Some(_) if keys.arch.mixers == Mixers::Latent => 1.0,
        Some(mscale_all_dim) => of(1.0) / of(mscale_all_dim),
    })
}

/// `mscale_all_dim`, if the file has it. Files with latent attention store a tenth of the value.
pub fn yarn_log_multiplier(keys: &Keys) -> Fallible<Option<f32>> {
    keys.positive_or_none("rope.scaling.yarn_log_multiplier")
}

/// How queries grow with their position. None if they do not.
pub fn temperature(keys: &Keys) -> Fallible<Option<Temperature>> {
    let Some(scale) = keys.positive_or_none("attention.temperature_scale")? else { return Ok(None) };
    let floor = keys.count_or_none("attention.temperature_length", MAX_DIM)?;
    let floor = floor.or(keys.count_or_none("rope.scaling.original_context_length", MAX_DIM)?).unwrap_or(8192);
    Ok(Some(Temperature { scale, floor: floor as f32, offset: 0.0 }))
}
