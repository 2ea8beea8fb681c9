//! Gathers tensors that files hold besides a matrix or instead of one: factors of its products, and a stack's experts as separate tensors.

use crate::error::ModelFault;
use crate::tensor_check::{check, check_values};
use crate::tensor_roles::TensorRole::{self, *};
use crate::weights::{Stack, StackLayout, Weight};
use gguf::{GgufFile, TensorInfo};

/// Matrices whose products a file may scale. NVFP4 has a factor per tensor or per expert in addition to the scales of its blocks, and
/// BitNet has one per tensor. Factors of other matrices are refused.
const SCALED: &[TensorRole] = &[
    AttnQ,
    AttnK,
    AttnV,
    AttnOutput,
    AttnQkv,
    AttnGate,
    FfnGate,
    FfnUp,
    FfnDown,
    FfnGateShexp,
    FfnUpShexp,
    FfnDownShexp,
    FfnGateExps,
    FfnUpExps,
    FfnDownExps,
    SsmIn,
    SsmOut,
    SsmAlpha,
    SsmBeta,
    Output,
    NextnProj,
    NextnOutput,
];

/// Finds the tensor `….scale` that belongs to the matrix `….weight`, with `count` factors: one, or one per expert. `wanted` holds the roles
/// of the layer, because an architecture may have a role of that name.
pub fn scale_of(
    file: &GgufFile,
    matrix: &str,
    (role, layer): (TensorRole, usize),
    count: usize,
    wanted: &[(TensorRole, bool)],
) -> Result<Option<usize>, ModelFault> {
    let name = matrix.strip_suffix("weight").map(|stem| format!("{stem}scale"));
    let is_role = |name: &String| wanted.iter().any(|(role, _)| role.name(layer) == *name);
    let Some(name) = name.filter(|name| SCALED.contains(&role) && !is_role(name)) else { return Ok(None) };
    let Some(index) = file.tensor_index(&name) else { return Ok(None) };
    let quant = check(&file.tensors()[index], &[count], true)?;
    let factors = Weight { quant, rows: 1, cols: count, tensor: index, offset: 0, stack: None, scale: None };
    check_values(file, Some(&factors), "a finite number", |_| true)?;
    Ok(Some(index))
}

/// The stem of the tensors that hold a stack's experts one by one, as in files of the first Mixtral models.
fn stem(role: TensorRole) -> Option<&'static str> {
    match role {
        FfnGateExps => Some("ffn_gate"),
        FfnUpExps => Some("ffn_up"),
        FfnDownExps => Some("ffn_down"),
        _ => None,
    }
}

/// Gathers a stack whose experts are separate tensors. None if the file has no such tensors.
pub fn gather(
    file: &GgufFile,
    role: TensorRole,
    layer: usize,
    dims: &[usize],
    part_tensors: &mut Vec<usize>,
) -> Result<Option<Weight>, ModelFault> {
    let (Some(stem), &[cols, rows, count]) = (stem(role), dims) else { return Ok(None) };
    let prefix = format!("blk.{layer}.{stem}.");
    let number = |tensor: &TensorInfo| tensor.name.strip_prefix(&prefix)?.strip_suffix(".weight")?.parse::<usize>().ok();
    let Some(last) = file.tensors().iter().filter_map(number).max() else { return Ok(None) };
    let name = |expert: usize| format!("{prefix}{expert}.weight");
    if last >= count {
        return Err(ModelFault::ExpertNumber { tensor: name(last), count });
    }
    let (first, mut quant) = (part_tensors.len(), None);
    for expert in 0..count {
        let missing = || ModelFault::MissingTensor { tensor: name(expert), expected: vec![cols, rows] };
        let index = file.tensor_index(&name(expert)).ok_or_else(missing)?;
        let own = check(&file.tensors()[index], &[cols, rows], false)?;
        let common = *quant.get_or_insert(own);
        if own.id != common.id {
            let expected = format!("{}, the type of expert 0", common.name);
            return Err(ModelFault::TensorType { tensor: name(expert), found: own.name.to_owned(), expected });
        }
        part_tensors.push(index);
    }
    let stack = Some(Stack { count, place: StackLayout::Tensors(first) });
    Ok(quant.map(|quant| Weight { quant, rows: rows * count, cols, tensor: part_tensors[first], offset: 0, stack, scale: None }))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::testing::TinyModel;
    use crate::{ModelError, QUANTS, TensorRole, Weights, arch::Arch};
    use gguf::{GgufBuilder, GgufFile};

    fn load(file: &GgufBuilder) -> Result<Weights, ModelError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        file.write(&path).unwrap();
        Weights::load(Arc::new(GgufFile::open(&path).unwrap()))
    }

    fn mixtral() -> TinyModel {
        let (arch, quant) = (Arch::by_name("llama").unwrap(), QUANTS.iter().find(|quant| quant.name == "Q8_0").unwrap());
        TinyModel { quant, experts: Some(TinyModel::experts(arch)), ..TinyModel::new(arch) }
    }

    #[test]
    fn experts_in_tensors_of_their_own_are_those_of_a_stack() {
        let tiny = mixtral();
        let [stacked, split] = [tiny.build(), TinyModel::with_split_experts(tiny.build())].map(|file| load(&file).unwrap());
        for role in [TensorRole::FfnGateExps, TensorRole::FfnUpExps, TensorRole::FfnDownExps] {
            let (a, b) = (stacked.get(role, 1).unwrap(), split.get(role, 1).unwrap());
            assert_eq!((a.rows, a.cols, a.num_bytes()), (b.rows, b.cols, b.num_bytes()));
            assert_eq!(stacked.vector(role, 1), split.vector(role, 1));
        }
    }

    #[test]
    fn a_malformed_set_of_experts_is_refused_by_the_tensor() {
        let change = |edit: &dyn Fn(&mut GgufBuilder, usize)| {
            let mut file = TinyModel::with_split_experts(mixtral().build());
            let index = file.tensors.iter().position(|tensor| tensor.name == "blk.1.ffn_up.3.weight").unwrap();
            edit(&mut file, index);
            load(&file).err().unwrap().to_string()
        };
        let name = "tensor blk.1.ffn_up.3.weight";
        let error = change(&|file, index| drop(file.tensors.remove(index)));
        assert!(error.contains(&format!("{name} is missing, expected one of shape [256, 256] (innermost first)")), "{error}");
        let error = change(&|file, index| file.tensors[index].dims = vec![128, 512]);
        assert!(error.contains(&format!("{name} has shape [128, 512], expected [256, 256]")), "{error}");
        let error = change(&|file, index| {
            file.tensors[index].type_id = 0;
            file.tensors[index].bytes = vec![0; 4 << 16];
        });
        assert!(error.contains(&format!("{name} is of type F32, expected Q8_0, the type of expert 0")), "{error}");
        let error = change(&|file, index| file.tensors[index].name = "blk.1.ffn_up.5.weight".to_owned());
        assert!(error.contains("tensor blk.1.ffn_up.5.weight belongs to an expert beyond the model's 5"), "{error}");
        let error = change(&|file, index| file.tensors[index].name = "blk.1.ffn_up.18446744073709551615.weight".to_owned());
        assert!(error.contains("belongs to an expert beyond the model's 5"), "{error}");
        let error = change(&|file, _| file.tensors.retain(|tensor| !tensor.name.starts_with("blk.1.ffn_up.")));
        assert!(error.contains("tensor blk.1.ffn_up_exps.weight is missing"), "{error}");
    }

    #[test]
    fn factors_beside_a_matrix_are_found_and_all_others_are_refused() {
        let with = |name: &str, dims: &[u64], values: &[f32]| load(&mixtral().build().tensor_f32(name, dims, values));
        let weights = with("blk.0.attn_q.scale", &[1], &[0.5]).unwrap();
        assert_eq!(weights.scales(weights.get(TensorRole::AttnQ, 0).unwrap()), [0.5]);
        assert!(weights.scales(weights.get(TensorRole::AttnQ, 1).unwrap()).is_empty());
        let factors = [1.0, 2.0, 3.0, 4.0, 5.0];
        let weights = with("blk.1.ffn_down_exps.scale", &[5], &factors).unwrap();
        assert_eq!(weights.scales(weights.get(TensorRole::FfnDownExps, 1).unwrap()), factors);
        assert!(with("blk.0.attn_q.input_scale", &[1], &[0.5]).is_ok());
        for (name, dims, values, fault) in [
            ("blk.0.attn_q.scale", &[2u64][..], &[1.0f32, 1.0][..], "has shape [2], expected [1]"),
            ("blk.0.ffn_up_exps.scale", &[4], &[1.0; 4], "has shape [4], expected [5]"),
            ("blk.0.attn_k.scale", &[1], &[f32::NAN], "holds NaN at index 0, expected a finite number"),
            ("blk.0.ffn_gate_inp.scale", &[1], &[1.0], "is not part of architecture llama"),
            ("output.scale", &[1], &[1.0], "is not part of architecture llama"),
        ] {
            let error = with(name, dims, values).err().unwrap().to_string();
            assert!(error.contains(&format!("tensor {name} {fault}")), "{error}");
        }
    }
}
